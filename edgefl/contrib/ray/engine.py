"""The engines that train clients on the nodes of a Ray cluster: an actor on each node runs jobs in a pool of processes.

This process sends each node some jobs more than it has slots, so that no slot waits for a message. Payloads and setups are put into Ray's
object store once, from where each node fetches them once. Nodes add up the updates that their workers have added up, and send one sum per
tier. A node that is lost is left out. Its jobs run again on others, to the same bits, also those with updates in its sums. A node that
joins gets jobs as soon as it is ready.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Self

from edgefl.client.client import Clients
from edgefl.client.messages import Setups, Shared, apart, error_of, outcomes_in
from edgefl.contrib.ray.cluster import connected
from edgefl.contrib.ray.members import LOOK_S, Members, RayMember
from edgefl.engine.contract import Cluster
from edgefl.engine.dispatch import Dispatch
from edgefl.engine.peer import Fold, JobBatch
from edgefl.engine.pool import TOGETHER
from edgefl.errors import ConfigError, EdgeflError
from edgefl.records import NodeRecord
from edgefl.registry import engine
from edgefl.timing.spans import Span, absorb
from edgefl.wire.message import read_message, write_message

LASTING = 16
"""So many payloads and setups stay in Ray's object store after the last job that needed them."""
_START_S = 180.0  # until when one node must be ready
_COMPANY_S = 60.0  # until when the others should be


@dataclass(frozen=True)
class _Answer:
    """The answer of an actor, about a batch or (None) about itself, and when it came by this process's clock."""

    member: RayMember
    batch: JobBatch | None
    content: Future[bytes]
    arrived_s: float


class RayEngine(Dispatch[RayMember]):
    """Runs jobs on a Ray cluster.

    Args:
        clients: the run's.
        workers: most slots of the cluster to use; 0: all.
        cluster: where it is.
        together: most jobs of one kind in a batch, see :func:`edgefl.engine.inline.cut`.
    """

    def __init__(self, clients: Clients, workers: int, cluster: Cluster, together: int = 1) -> None:
        super().__init__(together)
        self._clients, self._workers, self._cluster = clients, workers, cluster
        self._stack = contextlib.ExitStack()
        self._setups = Setups()
        self._put: OrderedDict[str, Any] = OrderedDict()  # by hash, the longest unused first
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        with self._stack:
            self._ray = self._stack.enter_context(connected(self._cluster, self._workers))
            self._members = Members(self._ray, self._clients, self._workers, self._cluster, self._call)
            self._stack.callback(self._put.clear)
            self._stack.callback(self._members.stop)
            self._gather()
            self._members.begun = True
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def folds(self) -> bool:
        """Whether nodes add up updates. Under "hard" they do not, as the workers of :class:`edgefl.engine.pool.PoolEngine` do not."""
        return self._clients.task.enforce != "hard"

    @property
    def nodes(self) -> Sequence[NodeRecord]:
        """The nodes that have taken part, first those that joined first."""
        return list(self._members.records.values())

    @property
    def _peers(self) -> Sequence[RayMember]:
        return self._members.live

    @property
    def _most(self) -> int:
        return 2 * self._members.room

    def _free(self) -> RayMember | None:
        return self._members.free()

    def _await(self, more: bool) -> None:
        self.serve(LOOK_S)

    def _end(self, fold: Fold | None) -> None:
        for member in self._members.live:
            if member.abandon(fold):
                member.actor.forget.remote(member.part(fold))

    def _give(self, member: RayMember, batch: JobBatch) -> None:
        member.batches.append(batch)
        part = member.part(batch.fold)
        if batch.fold is not None and not batch.jobs:
            member.asked[batch.fold.name] += 1
            self._call(member, "sums", part, batch=batch)
            return
        rows, blobs, shared = apart(batch.jobs, self._setups)
        references = {item.digest: [self._reference(item)] for item in shared}  # in lists: the actor decides when to fetch them
        self._call(member, "run", write_message("jobs", {"jobs": rows, "part": part}, blobs), references, batch=batch)

    def _reference(self, shared: Shared) -> Any:
        """Return Ray's reference to what jobs share, which is put into the object store once."""
        if shared.digest not in self._put:
            self._put[shared.digest] = self._ray.put(write_message("shared", {}, shared.blobs))
            while len(self._put) > LASTING:
                self._put.popitem(last=False)  # Ray keeps it for the calls that are under way
        self._put.move_to_end(shared.digest)
        return self._put[shared.digest]

    def _call(self, member: RayMember, method: str, *arguments: Any, batch: JobBatch | None = None) -> None:
        """Call a method of a node's actor; its answer comes to ``_answers``."""
        future: Future[bytes] = getattr(member.actor, method).remote(*arguments).future()
        future.add_done_callback(lambda content: self._answers.put(_Answer(member, batch, content, time.perf_counter())))

    def serve(self, timeout_s: float | None) -> None:
        """Read what nodes have answered, waiting up to ``timeout_s`` for the first answer, and give batches of lost nodes to others."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._read(self._answers.get(timeout=timeout_s) if timeout_s else self._answers.get_nowait())
                timeout_s = 0.0
        self._members.check()
        self._give_again()

    def _read(self, answer: _Answer) -> None:
        member, batch = answer.member, answer.batch
        if member not in self._members.live:
            return  # it was lost before
        try:
            content = answer.content.result()
        except self._ray.exceptions.RayError as error:
            self._again.extend(self._members.lost(member, str(error)))
            return
        if batch is None:
            self._members.greet(member, content, answer.arrived_s)
            return
        fields, blobs = read_message(content, "outcomes", "sums", "error")
        self._members.answered()
        if fields["kind"] == "error":
            batch.result = raised = error_of(fields)
            if batch.fold is not None:
                batch.fold.error = raised
        elif fields["kind"] == "sums":
            if batch.fold is not None and batch.wanted:
                batch.fold.sums.merge(fields["sums"], [blobs[digest] for digest in fields["limbs"]])
        else:
            absorb((Span(*span) for span in fields["spans"]), member.first, member.ahead_s)
            batch.result = outcomes_in(fields, blobs)
        member.settle(batch)

    def _gather(self) -> None:
        """Wait until nodes are ready: all of them for a while, one of them for longer."""
        began_s, members = time.monotonic(), self._members
        members.look()
        if not members.live:
            what = "graphics cards" if self._clients.task.device == "cuda" else "processors"
            raise ConfigError(f"ray_address: no node of the Ray cluster offers {what} to jobs; start nodes that do")
        while not members.live or len(members.ready) < len(members.live):
            waited_s = time.monotonic() - began_s
            if members.ready and waited_s > _COMPANY_S:
                return
            if waited_s > _START_S:
                reason = f"no node of the Ray cluster had processors free for {_START_S:g} s"
                raise EdgeflError(f"{reason}; wait until other jobs of the cluster end, or give --ray-address local")
            self.serve(1.0)


@engine("ray", remote=True, cluster_keys={"address": "ray_address", "auth": "ray_auth"})
def ray(clients: Clients, workers: int, cluster: Cluster) -> RayEngine:
    """Return the engine that trains clients on a Ray cluster, each client on its own."""
    return RayEngine(clients, workers, cluster)


@engine("ray-group", remote=True, groups_clients=True, cluster_keys={"address": "ray_address", "auth": "ray_auth"})
def ray_group(clients: Clients, workers: int, cluster: Cluster) -> RayEngine:
    """Return the engine that trains clients on a Ray cluster, up to :data:`edgefl.engine.pool.TOGETHER` of a tier at once."""
    return RayEngine(clients, workers, cluster, TOGETHER)
