"""A web server for one page and one bundle, for a browser on the same computer."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from concurrent.futures import Future
from http import HTTPStatus
from types import TracebackType
from typing import Self

import h11

from edgefl.contrib.serve.answers import answer, error
from edgefl.contrib.serve.connection import Connection, ConnectionLimits
from edgefl.contrib.serve.files import ChangedError, ServedFile
from edgefl.errors import InputError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PageServer:
    """Answers GET and HEAD for the addresses of ``table`` if Host is this computer or ``host``.

    Attributes:
        table: path → file.
        port: the port it listens on.
        url: the address of the page.

    Raises:
        InputError: the port cannot be used.
    """

    def __init__(self, host: str, port: int, table: Mapping[str, ServedFile], limits: ConnectionLimits | None = None) -> None:
        self.table = table
        self._socket = _listening(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._names = frozenset({*LOOPBACK, host.lower()})
        self._limits = limits or ConnectionLimits()
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._ended: Future[None] = Future()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()

    def serve(self) -> None:
        """Answer until :meth:`stop`, or until an interrupt raises KeyboardInterrupt; then end every connection."""
        asyncio.run(self._serve())

    def stop(self) -> None:
        """End :meth:`serve`; from any thread, also before it began, once."""
        self._ended.set_result(None)

    async def _serve(self) -> None:
        listener = await asyncio.start_server(self._accept, sock=self._socket, limit=self._limits.head_bytes)
        try:
            await asyncio.wrap_future(self._ended)
        finally:
            # asyncio leaves a connection open that it was accepting when its listener closed: first every one must be a task of ours
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in self._connections:
                    task.cancel()
                await asyncio.wait(others)
            listener.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Start to serve a connection. If there are too many, the one that has waited longest for a request ends."""
        if len(self._connections) >= self._limits.connections and not self._one_ended():
            refusal = error(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")
            writer.write((h11.Connection(h11.SERVER).send(refusal.head()) or b"") + refusal.content)
            return writer.close()
        connection = Connection(reader, writer, self._limits)
        address = str(writer.get_extra_info("sockname")[0]).removeprefix("::ffff:")
        task = asyncio.create_task(self._answer(connection, address))
        self._connections[task] = connection
        task.add_done_callback(lambda task: self._forget(task, writer))
        return None

    async def _answer(self, connection: Connection, address: str) -> None:
        names = self._names | {address}
        with contextlib.suppress(OSError, TimeoutError, ChangedError):  # the other side sees that the connection broke
            await connection.run(lambda request: answer(request, self.table, names, self.url))

    def _forget(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._connections.pop(task, None)
        writer.transport.abort()

    def _one_ended(self) -> bool:
        idle = {
            task: connection.idle_since for task, connection in self._connections.items() if connection.idle_since is not None
        }
        if not idle:
            return False
        oldest = min(idle, key=lambda task: idle[task])
        del self._connections[oldest]
        return oldest.cancel()


def _listening(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if os.name == "posix":  # elsewhere the option lets two servers take the same port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError, UnicodeError) as problem:
        listening.close()
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"--host {host} --port {port}: {reason}; give another, --port 0 takes one that is free") from None
    return listening
