"""A server of a bundle that ends with its block, and its page loaded anew."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from edgefl.contrib.serve.connection import ConnectionLimits
from edgefl.contrib.serve.files import ServedFile, bundle_addresses, page_addresses, seal
from edgefl.contrib.serve.server import PageServer


@contextlib.contextmanager
def serving(bundle: Path, runtime_folder: Path, limits: ConnectionLimits | None = None) -> Iterator[PageServer]:
    """Serve until the block ends."""
    with running(bundle_addresses(bundle) | page_addresses(runtime_folder), limits) as server:
        yield server


@contextlib.contextmanager
def running(table: Mapping[str, ServedFile], limits: ConnectionLimits | None = None) -> Iterator[PageServer]:
    """Serve a table of files until the block ends."""
    with PageServer("127.0.0.1", 0, table, limits) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def served_as_it_is(server: PageServer, bundle: Path) -> None:
    """Serve the files of a bundle with their present contents, right or wrong."""
    served = {address: one for address, one in server.table.items() if one.folder == bundle}
    server.table = {**server.table, **{address: seal(one.path, bundle) for address, one in served.items()}}


def reload(page: Any) -> None:
    """Load a page anew. The browser's own end of loading sometimes never comes: wait for what the page shows."""
    page.reload(wait_until="commit")
