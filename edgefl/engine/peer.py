"""Where jobs run as the server's process sees it, a worker process or a node, and what it was given."""

import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.engine.fork_server import fork_server
from edgefl.engine.mailbox import Reader, Request
from edgefl.engine.shared_memory import Region
from edgefl.errors import EdgeflError, WireError
from edgefl.records import Outcome
from edgefl.wire.message import read_header


@dataclass(eq=False)
class Fold:
    """The sums of a map, if its peers add up updates.

    Attributes:
        name: what the peers know the sums by.
        error: what a peer raised.
    """

    sums: Sums
    name: str
    error: EdgeflError | None = None


@dataclass(eq=False)
class JobBatch:
    """Jobs that one peer runs together; without jobs, the peer is asked for its part of the sums ``fold``.

    Attributes:
        numbers: those of the jobs in their map.
        fold: the sums that the peer adds the updates to; None: the server needs every update.
        covers: the batches with updates in the sums that this one asks for.
        request: where it lies in shared memory; None: it was not given to a worker yet.
        result: None until a peer answers.
        wanted: true until its map ends.
    """

    numbers: list[int]
    jobs: list[Job]
    fold: Fold | None = None
    covers: list["JobBatch"] = field(default_factory=list)
    request: Request | None = None
    result: list[Outcome] | EdgeflError | None = None
    wanted: bool = True


class Peer:
    """Who runs batches, and may add up their updates.

    ``batches`` were given to it and have no answer yet, the oldest first. ``folded`` were answered, but their updates are in sums that the
    peer still has: they run again if it is lost.
    """

    def __init__(self) -> None:
        self.batches: deque[JobBatch] = deque()
        self.folded: list[JobBatch] = []

    def of(self, fold: Fold | None) -> list[JobBatch]:
        """Return the batches of ``fold`` with updates that it has not sent, in the order in which it was given them."""
        return [] if fold is None else [batch for batch in (*self.folded, *self.batches) if batch.fold is fold]

    def due(self, fold: Fold) -> JobBatch | None:
        """Return what asks for the sums ``fold``, behind the last of their batches; None: it was asked, or has none."""
        own = self.of(fold)
        return JobBatch([], [], fold, own) if own and own[-1].jobs else None

    def settle(self, batch: JobBatch) -> None:
        """Note that ``batch`` was answered: if it asked for sums, their updates have arrived."""
        self.batches.remove(batch)
        if batch.fold is not None and batch.jobs and batch.wanted:
            self.folded.append(batch)
        if covers := set(batch.covers):
            self.folded = [other for other in self.folded if other not in covers]

    def lost(self) -> list[JobBatch]:
        """Return the batches that must run again if this peer is lost."""
        return [batch for batch in (*self.folded, *self.batches) if batch.jobs]

    def abandon(self, fold: Fold | None) -> bool:
        """Note that nobody wants the sums ``fold``; return whether the peer has, or may get, a part of them."""
        own = self.of(fold)
        for batch in own:
            batch.wanted = False
        self.folded = [batch for batch in self.folded if batch.wanted]
        return bool(own)


class Worker(Peer):
    """A worker process: ``pid`` is None until it runs, and ``batches`` begins with the batch that it runs.

    Nothing is sent on ``lifeline``: the worker exits when it is closed.
    """

    def __init__(self, number: int, files: Sequence[int]) -> None:
        super().__init__()
        self.number = number
        self.pid: int | None = None
        self.reader = Reader()
        self.assignment: Region | None = None
        ours, theirs = socket.socketpair()
        self.lifeline, its_lifeline = socket.socketpair()
        with ours, theirs, its_lifeline:
            self._started = fork_server().start([theirs.fileno(), its_lifeline.fileno(), *files])
            self.connection = Connection(ours.detach())

    def stop(self) -> None:
        """Stop the process, wait until it is gone, and close the connection."""
        with contextlib.suppress(EOFError, OSError, WireError):
            if self.pid is None and self.connection.poll():
                self.pid = read_header(self.connection.recv_bytes(), "worker")[0]["pid"]
        fork_server().stop(self._started, wait=self.pid is not None)
        self.connection.close()
