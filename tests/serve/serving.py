"""A server of a bundle that ends with its block."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgefl.serve.files import bundle_addresses, page_addresses
from edgefl.serve.server import Server


class EndingServer(Server):
    """A server that is gone when it was closed: its connections too, which a browser would go on using."""

    def __init__(self, *given: Any) -> None:
        self.connections: list[socket.socket] = []
        super().__init__(*given)

    def get_request(self) -> Any:
        connection, address = super().get_request()
        self.connections.append(connection)
        return connection, address

    def server_close(self) -> None:
        super().server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # the browser closed it
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(bundle: Path, runtime_folder: Path) -> Iterator[Server]:
    """Serve until the block ends."""
    with EndingServer("127.0.0.1", 0, bundle_addresses(bundle) | page_addresses(runtime_folder)) as server:
        thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
