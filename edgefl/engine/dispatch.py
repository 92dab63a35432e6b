"""How an engine of several peers divides jobs among them: the part that worker processes and the nodes of a cluster have in common."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Generic, TypeVar

from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.engine.inline import batches_of
from edgefl.engine.peer import Fold, JobBatch, Peer
from edgefl.errors import EdgeflError
from edgefl.records import Outcome

P = TypeVar("P", bound=Peer)


class Dispatch(ABC, Generic[P]):
    """Gives batches of jobs to peers that have room, and yields what becomes of them.

    ``_again`` has the batches of peers that were lost. Those with updates in sums of the lost peer are there even if they were answered.
    Their outcomes are not yielded a second time. ``together`` is the most jobs of one kind in a batch, see
    :func:`edgefl.engine.inline.cut`.
    """

    def __init__(self, together: int) -> None:
        self._together = together
        self._again: deque[JobBatch] = deque()
        self._numbers = count()

    @property
    @abstractmethod
    def folds(self) -> bool:
        """Whether peers add up updates."""

    @property
    @abstractmethod
    def _peers(self) -> Sequence[P]:
        """The peers of now."""

    @property
    @abstractmethod
    def _most(self) -> int:
        """How many batches of one map may be under way, including those with outcomes that are not yielded yet."""

    @abstractmethod
    def _free(self) -> P | None:
        """Return the peer that a new batch should go to; None: no one has room."""

    @abstractmethod
    def _give(self, peer: P, batch: JobBatch) -> None:
        """Send a batch to a peer."""

    @abstractmethod
    def _await(self, more: bool) -> None:
        """Wait until a peer may have answered and read what has come; ``more``: there are jobs to send besides."""

    @abstractmethod
    def serve(self, timeout_s: float | None) -> None:
        """Read what peers have sent, waiting up to ``timeout_s`` (None: no limit), and run the batches of lost peers again."""

    @abstractmethod
    def _end(self, fold: Fold | None) -> None:
        """Forget what peers have of a map that has ended or was dropped, and of its sums."""

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        """Yield the number and the outcome of every job, batch by batch; raise EdgeflError if peers are lost one after the other."""
        return self._run(jobs)

    def fold(self, jobs: Iterable[Job], sums: Sums) -> Iterator[tuple[int, Outcome]]:
        """Yield as :meth:`map` does, but let the peers add the updates to ``sums``, which are complete at the end."""
        return self._run(jobs, Fold(sums, f"sums {next(self._numbers)}"))

    def _run(self, jobs: Iterable[Job], fold: Fold | None = None) -> Iterator[tuple[int, Outcome]]:
        batches = batches_of(jobs, self._together)
        alive: deque[JobBatch] = deque()
        more = True
        try:
            while more or alive or self.unsent(fold):
                self.serve(0)
                more = more and self._fill(alive, batches, fold)
                if fold is not None and not more:
                    self.collect(fold)
                if alive and alive[0].result is not None:
                    yield from self._outcomes(alive.popleft())
                elif more or alive or self.unsent(fold):
                    self._await(more)
        finally:
            for batch in (*alive, *self.unsent(fold)):
                batch.wanted = False
            self._end(fold)

    def _fill(self, alive: deque[JobBatch], batches: Iterator[list[tuple[int, Job]]], fold: Fold | None) -> bool:
        """Give batches to the peers that have room; return whether there are more."""
        while len(alive) < self._most and (peer := self._free()) is not None:
            if (numbered := next(batches, None)) is None:
                return False
            alive.append(JobBatch([number for number, _ in numbered], [job for _, job in numbered], fold))
            self._give(peer, alive[-1])
        return True

    def _outcomes(self, batch: JobBatch) -> Iterator[tuple[int, Outcome]]:
        """Yield what became of a batch, and serve the peers meanwhile."""
        if isinstance(batch.result, EdgeflError):
            raise batch.result
        for number, outcome in zip(batch.numbers, batch.result or (), strict=True):
            yield number, outcome
            if number != batch.numbers[-1]:
                self.serve(0)

    def _give_again(self) -> None:
        """Give batches of lost peers to others that have room."""
        while self._again and (free := self._free()) is not None:
            if (batch := self._again.popleft()).wanted:
                self._give(free, batch)

    def submit(self, jobs: Sequence[Job], fold: Fold | None = None) -> JobBatch:
        """Return a batch of ``jobs``, which run when :meth:`serve` finds a peer with room for them."""
        batch = JobBatch(list(range(len(jobs))), list(jobs), fold)
        self._again.append(batch)
        return batch

    def unsent(self, fold: Fold | None) -> list[JobBatch]:
        """Return the batches with updates that have not arrived in the sums ``fold``."""
        batches = (batch for peer in self._peers for batch in peer.of(fold))
        return [*batches, *(batch for batch in self._again if fold is not None and batch.fold is fold)]

    def collect(self, fold: Fold) -> None:
        """Ask every peer for its part of the sums ``fold``, unless it was asked before; raise what a peer has raised."""
        if fold.error is not None:
            raise fold.error
        for peer in list(self._peers):
            if (batch := peer.due(fold)) is not None:
                self._give(peer, batch)
