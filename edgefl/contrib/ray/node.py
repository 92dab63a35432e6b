"""The actor on a node of a Ray cluster: it runs jobs in a pool of worker processes, and merges their sums.

Torch is imported when its methods need it. These methods are coroutines in one thread. Its event loop waits for Ray's calls and for the
answers of the workers.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edgefl.wire.message import Blob, read_header, read_message, write_header, write_message

if TYPE_CHECKING:
    from edgefl.client.job import Job, Task
    from edgefl.client.messages import JobSetup
    from edgefl.engine.peer import Fold
    from edgefl.engine.pool import PoolEngine

RECENT = 32
"""So many payloads and setups stay on a node after the last job that needed them."""

Pages = Awaitable[Any]
"""Ray's reference to an object; awaiting it returns the object."""


class Node:
    """Answers the messages of :class:`edgefl.contrib.ray.engine.RayEngine`. Errors are answers of the kind "error"."""

    _task: Task

    def __init__(self) -> None:
        self._pool: PoolEngine | None = None
        self._setups: dict[str, JobSetup] = {}
        self._shared: OrderedDict[str, asyncio.Future[dict[str, Blob]]] = OrderedDict()
        self._folds: dict[str, Fold] = {}
        self._forgotten: set[str] = set()
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    async def facts(self) -> bytes:
        """Return this process's fingerprint and clock."""
        from edgefl.engine.fingerprint import Fingerprint

        return write_header("facts", {**vars(Fingerprint.own()), "clock_s": time.perf_counter()})

    async def start(self, content: bytes, data: Sequence[Pages]) -> bytes:
        """Start the pool of the task in the message ``content``, with the data set in the only element of ``data``."""
        try:
            from edgefl.client.isolation.isolate import check_limit
            from edgefl.client.messages import task_of
            from edgefl.engine.pool import PoolEngine
            from edgefl.engine.shared_memory import data_in

            fields, _ = read_header(content, "start")
            self._task = task_of(fields["task"])
            for device, memory_bytes in fields["limits"].items():
                check_limit(device, memory_bytes)
            shared = data_in(await data[0], fields["data"])
            self._pool = PoolEngine(self._task, fields["workers"], data=shared).__enter__()
            asyncio.get_running_loop().add_reader(self._pool.fileno(), self._serve)
        except Exception as error:  # noqa: BLE001 - the server raises it
            return _error(error)
        return write_header("ready", {})

    async def run(self, content: bytes, shared: Mapping[str, Sequence[Pages]]) -> bytes:
        """Return the outcomes of the jobs in ``content``, whose updates become part of the sums that it names.

        ``shared`` has references, by hash, to payloads and setups that jobs share.
        """
        try:
            from edgefl.client.messages import together, write_outcomes
            from edgefl.timing.spans import drain

            fields, blobs = read_message(content, "jobs")
            for digest, (pages,) in shared.items():
                blobs |= await self._fetched(digest, pages)
            if len(self._setups) > RECENT:
                self._setups.clear()
            jobs = together(fields["jobs"], blobs, self._setups)
            outcomes = [] if fields["part"] in self._forgotten else await self._outcomes(jobs, fields["part"])
            spans = [(s.name, s.start_s, s.duration_s, s.worker, s.detail, s.thread) for s in drain()]
            return write_outcomes(outcomes, spans=spans)
        except Exception as error:  # noqa: BLE001 - the server raises it
            return _error(error)

    async def sums(self, part: str) -> bytes:
        """Return what the workers have added up in the part ``part`` of a round's sums, one sum per tier, and forget it."""
        try:
            fold, pool = self._folds.pop(part), self._pool
            assert pool is not None  # start was called before

            def collected() -> bool:
                pool.collect(fold)
                return not pool.unsent(fold)

            await self._until(collected)
            rows, limbs = fold.sums.written()
            blobs = [Blob(limb) for limb in limbs]
            return write_message("sums", {"sums": rows, "limbs": [blob.digest for blob in blobs]}, blobs)
        except Exception as error:  # noqa: BLE001 - the server raises it
            return _error(error)

    async def forget(self, part: str) -> None:
        """Forget a part of sums, whose round was dropped; jobs of it that arrive later do not run."""
        self._forgotten.add(part)
        if self._pool is not None and (fold := self._folds.pop(part, None)) is not None:
            self._pool.drop(fold)

    async def _fetched(self, digest: str, pages: Pages) -> dict[str, Blob]:
        """Return the blobs of a shared object by hash; objects that were fetched before are the same."""
        if digest not in self._shared:
            self._shared[digest] = asyncio.ensure_future(_blobs(pages))
            if len(self._shared) > RECENT:
                self._shared.popitem(last=False)
        self._shared.move_to_end(digest)
        return await self._shared[digest]

    async def _outcomes(self, jobs: Sequence[Job], part: str) -> list[Any]:
        assert self._pool is not None  # start was called before
        batch = self._pool.submit(jobs, self._fold(part, jobs[0]) if part else None)
        await self._until(lambda: batch.result is not None)
        if isinstance(batch.result, Exception):
            raise batch.result
        return batch.result or []

    def _fold(self, part: str, job: Job) -> Fold:
        from edgefl.client.folding import Sums
        from edgefl.engine.peer import Fold

        if part not in self._folds:
            self._folds[part] = Fold(Sums(job.method, self._task.architecture, self._task.stages), part)
        return self._folds[part]

    async def _until(self, done: Callable[[], bool]) -> None:
        """Wait until ``done``, which is called whenever workers have answered."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((done, future))
        self._serve()
        await future

    def _serve(self) -> None:
        """Read what workers have sent, give them the jobs that wait, and wake the calls that have what they wait for."""
        assert self._pool is not None
        waiting, self._waiting = self._waiting, []
        try:
            self._pool.serve(0)
        except Exception as error:  # noqa: BLE001 - too many workers died: every call raises it
            for _, future in waiting:
                future.set_exception(error)
            return
        for done, future in waiting:
            try:
                if done():
                    future.set_result(None)
                else:
                    self._waiting.append((done, future))
            except Exception as error:  # noqa: BLE001 - what a worker could not add up
                future.set_exception(error)


async def _blobs(pages: Pages) -> dict[str, Blob]:
    return read_message(await pages, "shared")[1]


def _error(error: Exception) -> bytes:
    from edgefl.client.messages import error_fields

    return write_message("error", error_fields(error))
