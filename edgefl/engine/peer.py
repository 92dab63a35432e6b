"""A worker as the server's process sees it, and what it was given."""

import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The sums of a map whose workers add up updates.

    Attributes:
        name: what the workers know the sums by.
        error: what a worker raised.
    """

    sums: Sums
    name: str
    error: EdgeflError | None = None


@dataclass(eq=False)
class Batch:
    """Jobs that one worker runs together; without jobs, the worker is asked for its part of the sums ``fold``.

    Attributes:
        numbers: those of the jobs in their map.
        fold: the sums to which the worker adds the updates; None: the server needs every update.
        request: where it lies in shared memory; None: it was not given to a worker yet.
        result: None until a worker answers.
        wanted: true until its map ends.
    """

    numbers: list[int]
    jobs: list[Job]
    fold: Fold | None = None
    request: Request | None = None
    result: list[Outcome] | EdgeflError | None = None
    wanted: bool = True


class Worker:
    """A worker process: ``pid`` is None until it runs, and ``batches`` begins with the batch that it runs.

    ``folded`` are the batches that it has answered, but whose updates are in sums that it still has. Nothing is sent on ``lifeline``: the
    worker exits when it is closed.
    """

    def __init__(self, number: int, files: Sequence[int]) -> None:
        self.number = number
        self.pid: int | None = None
        self.batches: deque[Batch] = deque()
        self.folded: list[Batch] = []
        self.reader = Reader()
        self.assignment: Region | None = None
        ours, theirs = socket.socketpair()
        self.lifeline, its_lifeline = socket.socketpair()
        with ours, theirs, its_lifeline:
            self._started = fork_server().start([theirs.fileno(), its_lifeline.fileno(), *files])
            self.connection = Connection(ours.detach())

    def of(self, fold: Fold | None) -> list[Batch]:
        """Return the batches of ``fold`` whose updates it has not sent, in the order in which it was given them."""
        return [] if fold is None else [batch for batch in (*self.folded, *self.batches) if batch.fold is fold]

    def abandon(self, fold: Fold | None) -> None:
        """Forget the sums ``fold``, here at once and in the process with its next request."""
        if fold is not None and (own := self.of(fold)):
            self.reader.forgets.append(fold.name)
            for batch in own:
                batch.wanted = False
        self.folded = [batch for batch in self.folded if batch.wanted]

    def stop(self) -> None:
        """Stop the process, wait until it is gone, and close the connection."""
        with contextlib.suppress(EOFError, OSError, WireError):
            if self.pid is None and self.connection.poll():
                self.pid = read_header(self.connection.recv_bytes(), "worker")[0]["pid"]
        fork_server().stop(self._started, wait=self.pid is not None)
        self.connection.close()
