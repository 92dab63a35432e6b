"""The actor on a node of a Ray cluster: it runs jobs in a pool of worker processes. Torch is imported when its methods need it.

Its methods are coroutines in one thread, whose event loop waits for Ray's calls and for the answers of the workers.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefl.wire.message import Blob, read_header, read_message, write_header, write_message

if TYPE_CHECKING:
    from edgefl.client.messages import Setup
    from edgefl.engine.peer import Batch
    from edgefl.engine.pool import PoolEngine

RECENT = 32
"""So many payloads and setups stay on a node after the last job that needed them."""

Pages = Awaitable[Any]
"""Ray's reference to an object; awaiting it returns the object."""


class Node:
    """Answers the messages of :class:`edgefl.engine.ray.RayEngine`. Errors are answers of the kind "error"."""

    def __init__(self) -> None:
        self._pool: PoolEngine | None = None
        self._setups: dict[str, Setup] = {}
        self._shared: OrderedDict[str, asyncio.Future[dict[str, Blob]]] = OrderedDict()
        self._waiting: list[tuple[Batch, asyncio.Future[None]]] = []

    async def facts(self) -> bytes:
        """Return this process's fingerprint and clock."""
        from edgefl.engine.fingerprint import Fingerprint

        return write_header("facts", {**vars(Fingerprint.own()), "clock_s": time.perf_counter()})

    async def start(self, content: bytes, data: Sequence[Pages]) -> bytes:
        """Start the pool of the task in the message ``content``, with the data set in the only element of ``data``."""
        try:
            from edgefl.client.messages import task_of
            from edgefl.engine.pool import PoolEngine
            from edgefl.engine.shared_memory import data_in

            fields, _ = read_header(content, "start")
            task = task_of(fields["task"])
            shared = data_in(await data[0], fields["data"])
            self._pool = PoolEngine(task, fields["workers"], data=shared).__enter__()
            asyncio.get_running_loop().add_reader(self._pool.fileno(), self._serve)
        except Exception as error:  # noqa: BLE001 - the server raises it
            return _error(error)
        return write_header("ready", {})

    async def run(self, content: bytes, shared: Mapping[str, Sequence[Pages]]) -> bytes:
        """Return the outcomes of the jobs in ``content``; ``shared`` has references, by hash, to payloads and setups that they share."""
        try:
            from edgefl.client.messages import together, write_outcomes
            from edgefl.timing.spans import drain

            fields, blobs = read_message(content, "jobs")
            for digest, (pages,) in shared.items():
                blobs |= await self._fetched(digest, pages)
            if len(self._setups) > RECENT:
                self._setups.clear()
            outcomes = await self._outcomes(together(fields["jobs"], blobs, self._setups))
            spans = [(s.name, s.start_s, s.duration_s, s.worker, s.detail, s.thread) for s in drain()]
            return write_outcomes(outcomes, spans=spans)
        except Exception as error:  # noqa: BLE001 - the server raises it
            return _error(error)

    async def _fetched(self, digest: str, pages: Pages) -> dict[str, Blob]:
        """Return the blobs of a shared object by hash; objects that were fetched before are the same."""
        if digest not in self._shared:
            self._shared[digest] = asyncio.ensure_future(_blobs(pages))
            if len(self._shared) > RECENT:
                self._shared.popitem(last=False)
        self._shared.move_to_end(digest)
        return await self._shared[digest]

    async def _outcomes(self, jobs: Sequence[Any]) -> list[Any]:
        assert self._pool is not None  # start was called before
        batch, done = self._pool.submit(jobs), asyncio.get_running_loop().create_future()
        self._waiting.append((batch, done))
        self._serve()
        await done
        if isinstance(batch.result, Exception):
            raise batch.result
        return batch.result or []

    def _serve(self) -> None:
        """Read what workers have sent, give them the jobs that wait, and wake the calls whose jobs are done."""
        assert self._pool is not None
        waiting, self._waiting = self._waiting, []
        try:
            self._pool.serve(0)
        except Exception as error:  # noqa: BLE001 - too many workers died: every call raises it
            for _, done in waiting:
                done.set_exception(error)
            return
        for batch, done in waiting:
            if batch.result is None:
                self._waiting.append((batch, done))
            else:
                done.set_result(None)


async def _blobs(pages: Pages) -> dict[str, Blob]:
    return read_message(await pages, "shared")[1]


def _error(error: Exception) -> bytes:
    from edgefl.client.messages import error_fields

    return write_message("error", error_fields(error))
