"""Jobs and outcomes on their way between the server's process and a worker: bytes in shared memory, and small headers beside them.

What many jobs share goes once: a payload is written once for all workers, and read once by each; a job's method, tier and graphs are one
context, which a worker reads once. The rest of a job, and an outcome, takes a few hundred bytes and goes with each.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from edgefl.client.job import Job
from edgefl.engine.shared_memory import Arena, Region, Window
from edgefl.records import Outcome
from edgefl.timing.spans import Span

LASTING = 8
"""So many payloads, and contexts, that no job on its way has are kept for jobs that may follow."""

Entry = tuple[int, int, int]
"""What is shared: its number, where it begins in the arena, and how many bytes it has."""
Header = tuple[Entry, Entry, int | None, int, int, float | None, int | None]
"""A job: context, payload, bytes of what its client kept, the round, the client, memory in bytes, samples at once."""
Request = tuple[Sequence[int], Sequence[Header]]
"""What a worker reads: numbers that it may forget, and jobs. Before it lies what their clients kept, one after the other."""
Frame = tuple[int, int, int, int]
"""Where a request lies: the region's start and size, and from the start on the request's place and length."""
Sizes = Sequence[tuple[int, int]]
"""Of each outcome the bytes of its payload and of what its client keeps."""


class Answer(NamedTuple):
    """What a worker says of a request.

    Attributes:
        changes: of each outcome the fields that have a value, except its client and bytes.
        sizes: of those bytes.
        had_room: whether they lie in the request's region; else they follow, one by one.
        spans: the worker's, since its last answer.
        seconds: what the request took.
    """

    changes: Sequence[Mapping[str, Any]]
    sizes: Sizes
    had_room: bool
    spans: Sequence[Span]
    seconds: float


@dataclass(eq=False)
class _Shared:
    """What lies in the arena for several jobs: the objects that it stands for, which so keep their identity, and who has it."""

    of: tuple[object, ...]
    number: int
    region: Region
    length: int
    lasts: bool
    jobs: int = 0
    room_bytes: int = 0  # of a context: the most that an outcome had

    @property
    def entry(self) -> Entry:
        return self.number, self.region.start, self.length


@dataclass(eq=False)
class Reader:
    """A worker as a reader of the arena: the numbers that it has read, and those that it is to forget with its next request."""

    has: set[int] = field(default_factory=set)
    forgets: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Parcel:
    """Jobs on their way: where the request lies, the region that its answer takes too, and what else must stay until then."""

    frame: Frame
    region: Region
    contexts: tuple[_Shared, ...]
    payloads: tuple[_Shared, ...]


class Packer:
    """The server's end: writes requests, reads answers, and owns the arena. ``readers`` are the workers that there are."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.readers: list[Reader] = []
        self._count = 0
        self._contexts: OrderedDict[Hashable, _Shared] = OrderedDict()  # the longest unused first
        self._payloads: OrderedDict[Hashable, _Shared] = OrderedDict()

    def pack(self, jobs: Sequence[Job], reader: Reader) -> Parcel:
        """Write ``jobs`` for a worker to the arena."""
        contexts = tuple(self._context(job) for job in jobs)
        payloads = tuple(self._payload(job) for job in jobs)
        headers = [
            (
                *(context.entry, payload.entry, None if job.kept is None else len(job.kept)),
                *(job.round, job.client, job.memory_bytes, job.micro_batch),
            )
            for job, context, payload in zip(jobs, contexts, payloads, strict=True)
        ]
        kept = [job.kept for job in jobs if job.kept is not None]
        kept_bytes = sum(map(len, kept))
        request = dumps((reader.forgets, headers))
        # The answer is written over the request, which has been read by then.
        room = sum(
            context.room_bytes or payload.length + len(job.kept or b"")
            for job, context, payload in zip(jobs, contexts, payloads, strict=True)
        )
        region = self.arena.allocate(max(kept_bytes + len(request), room))
        place = region.start
        for part in (*kept, request):
            self.arena.write(place, part)
            place += len(part)
        reader.has.update(shared.number for shared in (*contexts, *payloads))
        reader.forgets = []
        return Parcel((region.start, region.size, kept_bytes, len(request)), region, contexts, payloads)

    def unpack(self, jobs: Sequence[Job], parcel: Parcel, answer: Answer, receive: Callable[[], bytes]) -> list[Outcome]:
        """Return the outcomes of ``jobs`` from an answer; ``receive`` returns the bytes that had no room, one part at a time."""
        outcomes, place = [], parcel.region.start
        for job, context, changed, lengths in zip(jobs, parcel.contexts, answer.changes, answer.sizes, strict=True):
            context.room_bytes = max(context.room_bytes, sum(lengths))
            parts = []
            for length in lengths:
                parts.append(b"" if not length else self.arena.read(place, length) if answer.had_room else receive())
                place += length
            outcomes.append(Outcome(job.client, **changed, payload=parts[0], kept=parts[1]))
        return outcomes

    def release(self, parcel: Parcel) -> None:
        """Take back what a parcel had: it was answered, or its worker is gone."""
        self.arena.free(parcel.region)
        for shared in (*parcel.contexts, *parcel.payloads):
            shared.jobs -= 1
        self._trim(self._contexts, LASTING)
        self._trim(self._payloads, LASTING)

    def forget_payloads(self) -> None:
        """Let go of the payloads that no job on its way has: the jobs have ended."""
        self._trim(self._payloads, 0)

    def write(self, content: bytes) -> Region:
        """Write ``content`` to a region of its own."""
        region = self.arena.allocate(len(content))
        self.arena.write(region.start, content)
        return region

    def _context(self, job: Job) -> _Shared:
        of = job.method, job.tier, job.graphs
        return self._shared(self._contexts, (id(job.method), job.tier, id(job.graphs)), of, lambda: dumps(of), True)

    def _payload(self, job: Job) -> _Shared:
        lasts = not job.method.per_client  # nobody else is sent this one
        return self._shared(self._payloads, id(job.payload), (job.payload,), lambda: job.payload, lasts)

    def _shared(
        self,
        table: OrderedDict[Hashable, _Shared],
        key: Hashable,
        of: tuple[object, ...],
        content: Callable[[], bytes],
        lasts: bool,
    ) -> _Shared:
        if (shared := table.get(key)) is None:
            written = content()
            self._count += 1
            shared = table[key] = _Shared(of, self._count, self.write(written), len(written), lasts)
        table.move_to_end(key)
        shared.jobs += 1
        return shared

    def _trim(self, table: OrderedDict[Hashable, _Shared], most: int) -> None:
        idle = [key for key, shared in table.items() if not shared.jobs]
        lasting = sum(table[key].lasts for key in idle)
        for key in idle:
            if not table[key].lasts or lasting > most:
                lasting -= table[key].lasts
                gone = table.pop(key)
                self.arena.free(gone.region)
                for reader in self.readers:
                    if gone.number in reader.has:
                        reader.has.remove(gone.number)
                        reader.forgets.append(gone.number)


class Unpacker:
    """A worker's end: reads requests and writes answers. Jobs that share a payload, a method or graphs get the same object.

    ``known`` reads a context, as :func:`loads` does.
    """

    def __init__(self, window: Window, known: Callable[[bytes], Any]) -> None:
        self._window, self._known = window, known
        self._contexts: dict[int, Any] = {}
        self._payloads: dict[int, bytes] = {}

    def unpack(self, frame: Frame) -> list[Job]:
        """Return the jobs of a request."""
        start, _, at, length = frame
        request: Request = loads(self._window.read(start + at, length))
        forgets, headers = request
        for number in forgets:
            self._contexts.pop(number, None)
            self._payloads.pop(number, None)
        jobs = []
        for context, payload, kept_bytes, round_, client, memory_bytes, micro_batch in headers:
            method, tier, graphs = self._context(*context)
            kept = None
            if kept_bytes is not None:
                kept = self._window.read(start, kept_bytes)
                start += kept_bytes
            jobs.append(Job(round_, client, method, tier, self._payload(*payload), kept, memory_bytes, micro_batch, graphs))
        return jobs

    def pack(
        self, frame: Frame, jobs: Sequence[Job], outcomes: Sequence[Outcome], spans: Sequence[Span], seconds: float
    ) -> tuple[Answer, list[bytes]]:
        """Write the bytes of the outcomes of ``jobs`` to the request's region; return the answer, and what follows it for want of room."""
        start, size, _, _ = frame
        parts = [(outcome.payload, outcome.kept) for outcome in outcomes]
        sizes = [(len(payload), len(kept)) for payload, kept in parts]
        changes = list(map(_changes, outcomes))
        filled = [part for pair in parts for part in pair if part]
        if sum(map(len, filled)) > size:
            return Answer(changes, sizes, False, spans, seconds), filled
        for part in filled:
            self._window.write(start, part)
            start += len(part)
        return Answer(changes, sizes, True, spans, seconds), []

    def _context(self, number: int, start: int, length: int) -> Any:
        if number not in self._contexts:
            self._contexts[number] = self._known(self._window.read(start, length))
        return self._contexts[number]

    def _payload(self, number: int, start: int, length: int) -> bytes:
        if number not in self._payloads:
            self._payloads[number] = self._window.read(start, length)
        return self._payloads[number]


def _changes(outcome: Outcome) -> dict[str, Any]:
    """Return the fields of ``outcome`` that have a value, except its client and bytes."""
    return {
        name: value for name, value in vars(outcome).items() if value is not None and name not in ("client", "payload", "kept")
    }


def dumps(content: object) -> bytes:
    """Return ``content`` as another process of this run reads it: what a connection would make of it."""
    return bytes(ForkingPickler.dumps(content))


def loads(content: bytes) -> Any:
    """Return what :func:`dumps` wrote."""
    return ForkingPickler.loads(content)
