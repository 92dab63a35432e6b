"""Requests to a worker and its answers, through memory that the worker and the server's process share.

The bytes lie in the shared memory (the arena), and a small JSON header says where. Payloads and setups (method, tier and graphs) that many
jobs share are written once for all workers and read once by each. They are addressed by their hashes. Bytes that only one job has lie in
its request, in the order of the jobs, and are not hashed.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.client.messages import JobSetup, Setups, job_of, job_row, outcome_of, outcome_row, read_setup
from edgefl.engine.shared_memory import Region, SharedArena, SharedFile
from edgefl.errors import WireError
from edgefl.records import Outcome
from edgefl.timing.spans import Span
from edgefl.wire.message import Blob, MessageFields, checked, read_header, write_header

LASTING = 8
"""So many payloads, and as many setups, stay in the shared memory when no pending job needs them."""

Place = tuple[int, int]
"""Where a blob lies in the shared memory: its first byte and its length."""
Frame = tuple[int, int, int, int]
"""Where a request lies: first byte and size of its region, then offset in the region and length of its header."""


@dataclass(eq=False)
class _Shared:
    """Blobs in the arena that belong together: a payload, or a setup with its graphs.

    Attributes:
        digest: hash of the first blob, which stands for all.
        places: hash → place of each blob; ``regions`` are allocated for them.
        jobs: how many pending jobs need the blobs.
        room_bytes: of a setup, the largest number of bytes that an outcome had.
    """

    digest: str
    regions: tuple[Region, ...]
    places: Mapping[str, Place]
    jobs: int = 0
    room_bytes: int = 0


@dataclass(eq=False)
class Reader:
    """A worker as a reader of the arena: the hashes that it ``has`` read, and those that its next request tells it to forget.

    It forgets sums by their names.
    """

    has: set[str] = field(default_factory=set)
    forgets: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WorkerRequest:
    """A request as its worker reads it: ``jobs`` to run or, if there are none, to send the sums ``fold``.

    ``fold`` is the name of the sums that the updates of the jobs are added to; empty if the server needs every update.
    """

    jobs: Sequence[Job]
    fold: str = ""


@dataclass(frozen=True)
class Request:
    """Pending jobs of a worker: where they lie, the setup of each job, and the payloads that they share."""

    frame: Frame
    region: Region
    setups: tuple[_Shared, ...]
    payloads: tuple[_Shared, ...]


class ServerMailbox:
    """The server's end: writes requests, reads answers, and owns the ``arena``; ``readers`` are the live workers."""

    def __init__(self) -> None:
        self.arena = SharedArena()
        self.readers: list[Reader] = []
        self._written = Setups()
        self._setups: OrderedDict[str, _Shared] = OrderedDict()  # the longest unused first
        self._payloads: OrderedDict[str, _Shared] = OrderedDict()

    def write_request(self, jobs: Sequence[Job], reader: Reader, fold: str = "") -> Request:
        """Write ``jobs`` to the arena, for the worker ``reader``; for ``fold`` see :class:`WorkerRequest`."""
        setups, payloads, rows, own, room = [], [], [], list[bytes](), 0
        for job in jobs:
            setup, kept = self._shared(self._setups, self._written.of(job)), job.kept or b""
            setups.append(setup)
            if job.method.per_client:  # no other job has this payload
                own.append(job.payload)
                payload: str | int = len(job.payload)
            else:
                blob = Blob.of(job.payload)
                payloads.append(self._shared(self._payloads, (blob,)))
                payload = blob.digest
            own.append(kept)
            rows.append(job_row(job, setup.digest, payload, None if job.kept is None else len(kept)))
            room += 0 if fold else setup.room_bytes or len(job.payload) + len(kept)
        places = {shared.digest: shared.places[shared.digest] for shared in payloads}
        told = {setup.digest: setup.places for setup in setups}
        fields = {"forget": reader.forgets, "setups": told, "payloads": places, "jobs": rows, "fold": fold}
        header = write_header("jobs", fields)
        own_bytes = sum(map(len, own))
        region = self.arena.allocate(max(own_bytes + len(header), room))
        start = region.start
        for part in (*own, header):
            self.arena.write(start, part)
            start += len(part)
        reader.has.update(shared.digest for shared in (*setups, *payloads))
        reader.forgets = []
        return Request((region.start, region.size, own_bytes, len(header)), region, tuple(setups), tuple(payloads))

    def read_answer(self, request: Request, fields: MessageFields, receive: Callable[[], bytes]) -> list[Outcome]:
        """Return the outcomes of an answer with header ``fields``; ``receive`` returns the next part of the bytes that had no room."""
        outcomes, start = [], request.region.start
        for row, setup in zip(fields["outcomes"], request.setups, strict=True):
            parts = []
            for length in row[:2]:
                parts.append(b"" if not length else self.arena.read(start, length) if fields["had_room"] else receive())
                start += length
            setup.room_bytes = max(setup.room_bytes, sum(row[:2]))
            outcomes.append(outcome_of(row, *parts))
        return outcomes

    def release(self, request: Request) -> None:
        """Free the memory of a request that was answered, or that belongs to a worker that is gone."""
        self.arena.free(request.region)
        for shared in (*request.setups, *request.payloads):
            shared.jobs -= 1
        self._trim(self._setups, LASTING)
        self._trim(self._payloads, LASTING)

    def forget_payloads(self) -> None:
        """Free the payloads that no pending job needs."""
        self._trim(self._payloads, 0)

    def write(self, content: bytes) -> Region:
        """Write ``content`` to a region of its own."""
        region = self.arena.allocate(len(content))
        self.arena.write(region.start, content)
        return region

    def _shared(self, table: OrderedDict[str, _Shared], parts: tuple[Blob, ...]) -> _Shared:
        first = parts[0]
        if (shared := table.get(first.digest)) is None:
            blobs = {blob.digest: blob for blob in parts}
            regions = {digest: self.write(blob) for digest, blob in blobs.items()}
            places = {digest: (regions[digest].start, len(blob)) for digest, blob in blobs.items()}
            shared = table[first.digest] = _Shared(first.digest, tuple(regions.values()), places)
        table.move_to_end(first.digest)
        shared.jobs += 1
        return shared

    def _trim(self, table: OrderedDict[str, _Shared], most: int) -> None:
        idle = [digest for digest, shared in table.items() if not shared.jobs]
        for digest in idle[: max(0, len(idle) - most)]:
            for region in table.pop(digest).regions:
                self.arena.free(region)
            for reader in self.readers:
                if digest in reader.has:
                    reader.has.remove(digest)
                    reader.forgets.append(digest)


class WorkerMailbox:
    """A worker's end: reads requests and writes answers. Jobs with the same payload or setup get the same object.

    Args:
        memory: the server's arena, as this process sees it.
        prepare: called with the header of each setup before the setup is read.

    Attributes:
        sums: the sums of updates that the server has not asked for yet, by name.
    """

    def __init__(self, memory: SharedFile, prepare: Callable[[bytes], None] = lambda header: None) -> None:
        self._memory, self._prepare = memory, prepare
        self._setups: dict[str, JobSetup] = {}
        self._payloads: dict[str, Blob] = {}
        self.sums: dict[str, Sums] = {}

    def read_request(self, frame: Frame) -> WorkerRequest:
        """Return what a request asks for; raise :class:`WireError` if its header or a blob is damaged, or of another version."""
        start, _, at, length = frame
        fields, _ = read_header(self._memory.read(start + at, length), "jobs")
        for digest in fields["forget"]:
            self._setups.pop(digest, None)
            self._payloads.pop(digest, None)
            self.sums.pop(digest, None)
        for digest, places in fields["setups"].items():
            if digest not in self._setups:
                self._setups[digest] = self._setup(digest, places)
        for digest, place in fields["payloads"].items():
            if digest not in self._payloads:
                self._payloads[digest] = checked(self._memory.read(*place), digest)
        jobs = []
        for row in fields["jobs"]:
            setup, payload, kept_bytes, *_ = row
            content: bytes = self._payloads[payload] if isinstance(payload, str) else self._memory.read(start, payload)
            start += 0 if isinstance(payload, str) else payload
            kept = None if kept_bytes is None else self._memory.read(start, kept_bytes)
            start += kept_bytes or 0
            jobs.append(job_of(row, self._setups[setup], content, kept))
        return WorkerRequest(jobs, fields["fold"])

    def write_answer(
        self, frame: Frame, outcomes: Sequence[Outcome], spans: Sequence[Span], seconds: float, sums: Sums | None = None
    ) -> list[bytes]:
        """Return a request's answer: a header, then the outcomes' bytes unless they fit into the request's region and are written there.

        The limbs of ``sums`` follow.
        """
        start, size, _, _ = frame
        rows = [outcome_row(outcome, len(outcome.payload), len(outcome.kept)) for outcome in outcomes]
        parts = [part for outcome in outcomes for part in (outcome.payload, outcome.kept) if part]
        had_room = sum(map(len, parts)) <= size
        for part in parts if had_room else ():
            self._memory.write(start, part)
            start += len(part)
        told = [(s.name, s.start_s, s.duration_s, 0, s.detail, s.thread) for s in spans]
        of_tiers, limbs = ([], []) if sums is None else sums.written()
        fields = {"outcomes": rows, "had_room": had_room, "spans": told, "seconds": seconds, "sums": of_tiers}
        return [write_header("outcomes", fields), *(() if had_room else parts), *limbs]

    def _setup(self, digest: str, places: Mapping[str, Place]) -> JobSetup:
        def blob(digest: str) -> Blob:
            if digest not in places:
                raise WireError(f"a setup refers to a blob that its request lacks: {digest[:16]}…")
            return checked(self._memory.read(*places[digest]), digest)

        header = blob(digest)
        self._prepare(header)
        return read_setup(header, blob)
