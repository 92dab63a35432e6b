"""One connection: its requests and answers by h11, each within a limit of time and memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from io import BufferedReader

import h11

from edgefl.contrib.serve.answers import HttpAnswer, error
from edgefl.contrib.serve.files import BLOCK_BYTES, ChangedError, ServedFile

_READ_BYTES = 1 << 12  # h11 limits what it holds of an incomplete head: a read must be small beside it


@dataclass(frozen=True)
class ConnectionLimits:
    """The resources that one server spends on all who ask.

    Attributes:
        connections: open at a time.
        head_bytes: of a request line and its headers.
        request_s: from the start of a connection, or from its last answer, until the next request has arrived.
        block_s: for each 256 KiB of an answer.
        linger_s: how long a connection that ends still drops what arrives. A system that had unread bytes would take the answer back.
    """

    connections: int = 64
    head_bytes: int = 16 << 10
    request_s: float = 10
    block_s: float = 20
    linger_s: float = 1


class Connection:
    """Answers the requests of a connection, one after another.

    Attributes:
        idle_since: the loop's time when it began to wait for a request; None while it answers.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: ConnectionLimits) -> None:
        self.idle_since: float | None = asyncio.get_running_loop().time()
        self._reader, self._writer, self._limits = reader, writer, limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._method = b""
        writer.transport.set_write_buffer_limits(0)  # to wait for a write is to wait until the system has it

    async def run(self, answer: Callable[[h11.Request], HttpAnswer]) -> None:
        """Answer until the connection ends.

        Raises:
            OSError: the other side is gone, or a file cannot be read to its end.
            TimeoutError: the other side does not read.
            ChangedError: a file changed while it was sent.
        """
        while True:
            request = await self._request()
            if request is None:
                return
            self.idle_since = None
            await self._send(answer(request) if isinstance(request, h11.Request) else request)
            self.idle_since = asyncio.get_running_loop().time()
            if self._http.our_state is not h11.DONE:
                break
            self._http.start_next_cycle()
        self._writer.write_eof()
        async with asyncio.timeout(self._limits.linger_s):
            while await self._reader.read(_READ_BYTES):
                pass

    async def _request(self) -> h11.Request | HttpAnswer | None:
        """Return the next request, the answer to what is none, or None where nothing comes."""
        self._method = b""
        try:
            async with asyncio.timeout(self._limits.request_s):
                while (event := self._http.next_event()) is h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(_READ_BYTES))
            if not isinstance(event, h11.Request):
                return None
            self._method = event.method
            if _head_bytes(event) > self._limits.head_bytes:  # h11 limits only what has not come whole
                return error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"a head of more than {self._limits.head_bytes:,} bytes")
            if isinstance(self._http.next_event(), h11.EndOfMessage):
                return event
            return error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "this server reads no bodies")
        except TimeoutError:
            begun = self._http.trailing_data[0]
            return error(HTTPStatus.REQUEST_TIMEOUT, f"no request in {self._limits.request_s:g} s") if begun else None
        except h11.RemoteProtocolError as problem:
            return error(HTTPStatus(problem.error_status_hint), str(problem))

    async def _send(self, answer: HttpAnswer) -> None:
        if answer.served is None:
            return await self._write(answer, _once(answer.content))
        try:
            file = answer.served.open()
        except OSError:
            return await self._send(error(HTTPStatus.NOT_FOUND, f"{answer.served.path.name} is gone since the server started"))
        with file:
            if problem := await _problem(answer.served, file, answer.span):
                return await self._send(problem)
            return await self._write(answer, _parts(answer.served, file, answer.span))

    async def _write(self, answer: HttpAnswer, parts: AsyncIterator[bytes]) -> None:
        await self._event(answer.head())
        if self._method != b"HEAD":
            async for part in parts:
                await self._event(h11.Data(data=part))
        await self._event(h11.EndOfMessage())

    async def _event(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._writer.write(self._http.send(event) or b"")
        async with asyncio.timeout(self._limits.block_s):
            await self._writer.drain()


def _head_bytes(request: h11.Request) -> int:
    """Return the bytes of a request's first line and headers."""
    lines = [len(request.method) + len(request.target) + len(" ") + len(" HTTP/1.1")]
    lines += [len(name) + len(": ") + len(value) for name, value in request.headers]
    return sum(line + len("\r\n") for line in lines)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _parts(served: ServedFile, file: BufferedReader, span: tuple[int, int]) -> AsyncIterator[bytes]:
    """Yield the bytes of ``span``, out of blocks that have their hash; ChangedError at one that has not."""
    first, end = span
    for index in range(first // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
        start = index * BLOCK_BYTES
        block = await asyncio.to_thread(served.block, file, index)
        yield block[max(0, first - start) : end - start]


async def _problem(served: ServedFile, file: BufferedReader, span: tuple[int, int]) -> HttpAnswer | None:
    """Return the answer in place of a file that is not what it was; a file with other times is read once more for this."""
    try:
        if not served.untouched(file):
            async for _ in _parts(served, file, span):
                pass
    except ChangedError:
        return error(HTTPStatus.CONFLICT, f"{served.path.name} changed since the server started; start it again")
    except OSError as problem:
        return error(HTTPStatus.INTERNAL_SERVER_ERROR, f"{served.path.name} cannot be read ({problem.strerror})")
    return None
