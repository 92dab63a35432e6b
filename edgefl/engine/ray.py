"""The engines that train clients on the nodes of a Ray cluster: an actor on each node runs jobs in a pool of processes.

This process sends each node some jobs more than it has slots, so that no slot waits for a message. Payloads and setups are put into Ray's
object store once, from where each node fetches them once. A node that is lost is left out, and its jobs run again on others, to the same
bits. A node that joins gets jobs as soon as it is ready.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import queue
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.client.messages import Setups, Shared, apart, error_of, outcomes_in, task_fields
from edgefl.engine.contract import Cluster
from edgefl.engine.fingerprint import Fingerprint
from edgefl.engine.inline import batches_of
from edgefl.engine.peer import Batch
from edgefl.engine.pool import TOGETHER
from edgefl.engine.ray_cluster import Place, connected, places
from edgefl.engine.ray_node import Node
from edgefl.engine.shared_memory import share
from edgefl.errors import ConfigError, EdgeflError
from edgefl.registry import engine
from edgefl.timing.spans import Span, absorb
from edgefl.wire.message import read_header, read_message, write_header, write_message

DEPTH = 3
"""Batches of a slot, the one that it runs included: the others are on their way, in either direction."""
LASTING = 16
"""So many payloads and setups stay in Ray's object store after the last job that needed them."""
_TRIES = 4  # so many losses per node, with no answer in between, end the run
_LOOK_S = 5.0  # time between two looks for new nodes
_HURRY_S = 0.5  # the same while there is no node
_ALONE_S = 30.0  # a run without nodes ends after this time
_START_S = 180.0  # until when one node must be ready
_COMPANY_S = 60.0  # until when the others should be


@dataclass(eq=False)
class _Member:
    """A node, or a graphics card of it, that takes part.

    Attributes:
        actor: Ray's handle.
        slots: how many of the place's slots this run uses.
        first: the number of its first worker, less one.
        ahead_s: by so much this process's clock is ahead of the node's.
    """

    place: Place
    actor: Any
    slots: int
    first: int
    state: Literal["asked", "starting", "ready"] = "asked"
    ahead_s: float = 0.0
    batches: list[Batch] = field(default_factory=list)


@dataclass(frozen=True)
class _Answer:
    """What an actor has answered, about a batch or (None) about itself, and when by this process's clock."""

    member: _Member
    batch: Batch | None
    content: Future[bytes]
    arrived_s: float


class RayEngine:
    """Runs jobs on a Ray cluster.

    Args:
        clients: the run's.
        workers: most slots of the cluster to use; 0: all.
        cluster: where it is.
        together: most jobs of one kind in a batch, see :func:`edgefl.engine.inline.cut`.
    """

    def __init__(self, clients: Clients, workers: int, cluster: Cluster, together: int = 1) -> None:
        self._clients, self._workers, self._cluster, self._together = clients, workers, cluster, together
        self._here = Fingerprint.own()
        self._stack = contextlib.ExitStack()
        self._setups = Setups()
        self._members: list[_Member] = []
        self._firsts: dict[Place, int] = {}
        self._unlike: dict[Place, str] = {}  # nodes that are left out, and why
        self._put: OrderedDict[str, Any] = OrderedDict()  # by hash, the longest unused first
        self._again: deque[Batch] = deque()
        self._begun = False  # nodes that come later join
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._losses, self._looked_s, self._lost_s, self._why = 0, 0.0, 0.0, ""

    def __enter__(self) -> Self:
        with self._stack:
            self._ray = self._stack.enter_context(connected(self._cluster, self._workers))
            self._stack.callback(self._stop)
            self._start = self._told()
            self._gather()
            self._begun = True
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the outcome of every job, batch by batch; raise EdgeflError if no node is left."""
        batches = batches_of(jobs, self._together)
        alive: deque[Batch] = deque()
        more = True
        try:
            while more or alive:
                self._serve(0.0)
                while more and len(alive) < 2 * self._room and (member := self._free()) is not None:
                    if (numbered := next(batches, None)) is None:
                        more = False
                    else:
                        alive.append(Batch([number for number, _ in numbered], [job for _, job in numbered]))
                        self._give(member, alive[-1])
                if alive and alive[0].result is not None:
                    batch = alive.popleft()
                    if isinstance(batch.result, EdgeflError):
                        raise batch.result
                    yield from zip(batch.numbers, batch.result or (), strict=True)
                elif more or alive:
                    self._serve(_LOOK_S)
        finally:
            for batch in alive:
                batch.wanted = False

    @property
    def _ready(self) -> list[_Member]:
        return [member for member in self._members if member.state == "ready"]

    @property
    def _room(self) -> int:
        """How many batches the nodes have room for."""
        return sum(DEPTH * member.slots for member in self._ready)

    def _free(self) -> _Member | None:
        """Return the node with the fewest batches per slot, if it has room for one more."""
        member = min(self._ready, key=lambda m: len(m.batches) / m.slots, default=None)
        return None if member is None or len(member.batches) >= DEPTH * member.slots else member

    def _give(self, member: _Member, batch: Batch) -> None:
        rows, own, shared = apart(batch.jobs, self._setups)
        references = {
            one.digest: [self._reference(one)] for one in shared
        }  # in lists, so that the actor decides when to fetch them
        member.batches.append(batch)
        self._call(member, "run", write_message("jobs", {"jobs": rows}, own), references, batch=batch)

    def _reference(self, shared: Shared) -> Any:
        """Return Ray's reference to what jobs share, which is put into the object store once."""
        if shared.digest not in self._put:
            self._put[shared.digest] = self._ray.put(write_message("shared", {}, shared.blobs))
            while len(self._put) > LASTING:
                self._put.popitem(last=False)  # Ray keeps it for the calls that are under way
        self._put.move_to_end(shared.digest)
        return self._put[shared.digest]

    def _call(self, member: _Member, method: str, *arguments: Any, batch: Batch | None = None) -> None:
        """Call a method of a node's actor; its answer comes to ``_answers``."""
        found: Future[bytes] = getattr(member.actor, method).remote(*arguments).future()
        found.add_done_callback(lambda content: self._answers.put(_Answer(member, batch, content, time.perf_counter())))

    def _serve(self, timeout_s: float) -> None:
        """Read what nodes have answered, waiting up to ``timeout_s`` for the first answer, and give jobs of lost nodes to others."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._read(self._answers.get(timeout=timeout_s) if timeout_s else self._answers.get_nowait())
                timeout_s = 0.0
        if not self._members and time.monotonic() - self._lost_s > _ALONE_S:
            raise EdgeflError(
                f"no node of the Ray cluster is left ({self._why}); continue with --resume when there are nodes again"
            )
        if time.monotonic() - self._looked_s > (_LOOK_S if self._members else _HURRY_S):
            self._look()
        while self._again and (free := self._free()) is not None:
            if (batch := self._again.popleft()).wanted:
                self._give(free, batch)

    def _read(self, answer: _Answer) -> None:
        member = answer.member
        if member not in self._members:
            return  # it was lost before
        try:
            content = answer.content.result()
        except self._ray.exceptions.RayError as error:
            self._lost(member, str(error))
            return
        if answer.batch is None:
            self._greet(member, content, answer.arrived_s)
            return
        fields, blobs = read_message(content, "outcomes", "error")
        member.batches.remove(answer.batch)
        self._losses = 0
        if fields["kind"] == "error":
            answer.batch.result = error_of(fields)
            return
        absorb((Span(*span) for span in fields["spans"]), member.first, member.ahead_s)
        answer.batch.result = outcomes_in(fields, blobs)

    # Nodes that join and leave --------------------------------------------------------------------------------------------------

    def _told(self) -> tuple[dict[str, Any], list[Any]]:
        """Return what nodes need to start, except the number of their workers: the data set is put into the object store once."""
        fd, layout = share(self._clients.data)
        try:
            with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as pages:
                reference = self._ray.put(np.frombuffer(bytes(pages), np.uint8))
        finally:
            os.close(fd)
        return layout, [reference]

    def _gather(self) -> None:
        """Wait until nodes are ready: all of them for a while, one of them for longer."""
        began_s = time.monotonic()
        self._look()
        if not self._members:
            what = "graphics cards" if self._clients.task.device == "cuda" else "processors"
            raise ConfigError(f"ray_address: no node of the Ray cluster offers {what} to jobs; start nodes that do")
        while not self._members or len(self._ready) < len(self._members):
            waited_s = time.monotonic() - began_s
            if self._ready and waited_s > _COMPANY_S:
                return
            if waited_s > _START_S:
                told = f"no node of the Ray cluster had processors free for {_START_S:g} s"
                raise EdgeflError(f"{told}; wait until other jobs of the cluster end, or give --ray-address local")
            self._serve(1.0)

    def _look(self) -> None:
        """Start an actor on each place of the cluster that has none, as long as fewer slots than wanted are in use."""
        self._looked_s = time.monotonic()
        used = {member.place for member in self._members}
        for place in places(self._ray, self._clients.task.device == "cuda"):
            wanted = self._workers - sum(member.slots for member in self._members) if self._workers else place.slots
            if place not in used and place not in self._unlike and wanted > 0:
                self._members.append(self._member(place, min(place.slots, wanted)))

    def _member(self, place: Place, slots: int) -> _Member:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_cpus": slots,
            "num_gpus": 0 if place.card is None else 1,
            "max_restarts": 0,
            "max_concurrency": DEPTH * slots + 2,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node, soft=False),
        }
        first = self._firsts.setdefault(place, sum(one.slots for one in self._firsts))
        member = _Member(place, self._ray.remote(**options)(Node).remote(), slots, first)
        self._call(member, "facts")
        return member

    def _greet(self, member: _Member, content: bytes, arrived_s: float) -> None:
        """Read what an actor says of itself: its fingerprint, or that its workers have been started."""
        fields, _ = read_header(content, "facts", "ready", "error")
        if fields["kind"] == "error":
            raise error_of(fields)
        if fields["kind"] == "ready":
            member.state = "ready"
            return
        if unlike := self._refusal(member.place, Fingerprint.of(fields)):
            self._unlike[member.place] = unlike
            self._dismiss(member)
            if not self._begun:
                raise ConfigError(unlike)
            logging.getLogger(__name__).warning("a node that joined is not used: %s", unlike)
            return
        member.state, member.ahead_s = "starting", arrived_s - fields["clock_s"]
        layout, data = self._start
        told = {"task": task_fields(self._clients.task), "workers": member.slots, "data": layout}
        self._call(member, "start", write_header("start", told), data)

    def _refusal(self, place: Place, there: Fingerprint) -> str:
        """Return why the node of a fingerprint cannot take part; "" if it can."""
        if there.edgefl != self._here.edgefl:
            told = f"node {place.title} has edgefl {there.edgefl}, expected {self._here.edgefl} as on this computer"
            return f"ray_address: {told}; install the same release there"
        differences = "; ".join(there.differences(self._here))
        if not differences or self._cluster.mixed:
            return ""
        remedy = "use nodes like this computer, or give --mixed-nodes if results may depend on which node trains which client"
        return f"mixed_nodes: node {place.title} would train to other bits than this computer ({differences}); {remedy}"

    def _lost(self, member: _Member, why: str) -> None:
        """Leave a node out, whose jobs others will run, unless too many were lost."""
        self._dismiss(member)
        if member.state == "asked" and "import" in why:
            told = f"node {member.place.title} cannot import edgefl"
            raise ConfigError(f"ray_address: {told}; install edgefl {self._here.edgefl} with its extra ray there")
        self._again.extend(member.batches)
        self._losses += 1
        self._lost_s, self._why = time.monotonic(), why.strip().partition("\n")[0]
        if self._losses > _TRIES * max(1, len(self._firsts)):
            told = f"nodes of the Ray cluster are lost one after the other ({self._why})"
            raise EdgeflError(f"{told}; continue with --resume, if need be without Ray")
        self._looked_s = self._lost_s  # the cluster needs a moment to notice

    def _dismiss(self, member: _Member) -> None:
        self._members.remove(member)
        with contextlib.suppress(Exception):  # it is gone
            self._ray.kill(member.actor)

    def _stop(self) -> None:
        for member in list(self._members):
            self._dismiss(member)
        self._put.clear()


@engine("ray", remote=True)
def ray(clients: Clients, workers: int, cluster: Cluster) -> RayEngine:
    """Return the engine that trains clients on a Ray cluster, each client on its own."""
    return RayEngine(clients, workers, cluster)


@engine("ray-group", remote=True, groups_clients=True)
def ray_group(clients: Clients, workers: int, cluster: Cluster) -> RayEngine:
    """Return the engine that trains clients on a Ray cluster, up to :data:`edgefl.engine.pool.TOGETHER` of a tier at once."""
    return RayEngine(clients, workers, cluster, TOGETHER)
