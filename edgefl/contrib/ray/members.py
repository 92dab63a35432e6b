"""The nodes of a Ray cluster that take part in a run: who joins, who is refused, and what is known of them."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from edgefl.client.client import Clients
from edgefl.client.messages import error_of, task_fields
from edgefl.contrib.ray.cluster import NodePlace, places
from edgefl.contrib.ray.node import Node
from edgefl.engine.contract import Cluster
from edgefl.engine.fingerprint import Fingerprint
from edgefl.engine.peer import Fold, JobBatch, Peer
from edgefl.engine.shared_memory import share
from edgefl.errors import ConfigError, EdgeflError
from edgefl.records import NodeRecord
from edgefl.wire.message import MessageFields, read_header, write_header

DEPTH = 3
"""Batches of a slot, the one that it runs included: the others are on their way, in either direction."""
LOOK_S, HURRY_S = 5.0, 0.5
"""Time between two looks for new nodes, and the same while there is none."""
_TRIES = 4  # so many losses per node, with no answer in between, end the run
_ALONE_S = 30.0  # a run without nodes ends after this time


class RayMember(Peer):
    """A node, or a graphics card of it, that takes part.

    Attributes:
        actor: Ray's handle.
        slots: how many of the place's slots this run uses.
        first: the number of its first worker, less one.
        ahead_s: by so much this process's clock is ahead of the node's.
        asked: how often it was asked for its part of each sum, by the sum's name.
    """

    def __init__(self, place: NodePlace, actor: Any, slots: int, first: int) -> None:
        super().__init__()
        self.place, self.actor, self.slots, self.first = place, actor, slots, first
        self.state: Literal["asked", "starting", "ready"] = "asked"
        self.ahead_s = 0.0
        self.asked: Counter[str] = Counter()

    def part(self, fold: Fold | None) -> str:
        """Return what the node knows its present part of the sums ``fold`` by; empty if there are no sums.

        Each time it is asked for its part, it begins another one. So it is certain which updates a part has.
        """
        return "" if fold is None else f"{fold.name}, part {self.asked[fold.name]}"

    def due(self, fold: Fold) -> JobBatch | None:
        """Return what asks for the sums ``fold`` when all of their batches have been answered: Ray's calls may overtake each other."""
        return None if any(batch.fold is fold for batch in self.batches) else super().due(fold)


class Members:
    """The live members, first those that joined first.

    Args:
        ray: Ray's module, connected.
        clients: the run's.
        workers: most slots of the cluster to use; 0: all.
        call: calls a method of a member's actor, given its name and arguments.

    Attributes:
        begun: whether nodes that come from now on join in the middle of the run: one that does not fit is left out with a warning.
        records: Ray's name of each node that has taken part → what is known of it.
    """

    def __init__(self, ray: Any, clients: Clients, workers: int, cluster: Cluster, call: Callable[..., None]) -> None:
        self._ray, self._clients, self._workers, self._cluster, self._call = ray, clients, workers, cluster, call
        self._here = Fingerprint.own()
        self.live: list[RayMember] = []
        self.begun = False
        self.records: dict[str, NodeRecord] = {}
        self._firsts: dict[NodePlace, int] = {}
        self._unlike: dict[NodePlace, str] = {}  # nodes that are left out, and why
        self._losses, self._looked_s, self._lost_s, self._why = 0, 0.0, 0.0, ""
        self._layout, self._data = self._shared_data()

    @property
    def ready(self) -> list[RayMember]:
        """Those that run jobs."""
        return [member for member in self.live if member.state == "ready"]

    @property
    def room(self) -> int:
        """How many batches they have room for."""
        return sum(DEPTH * member.slots for member in self.ready)

    def free(self) -> RayMember | None:
        """Return the member with the fewest batches per slot, if it has room for one more."""
        member = min(self.ready, key=lambda m: len(m.batches) / m.slots, default=None)
        return None if member is None or len(member.batches) >= DEPTH * member.slots else member

    def check(self) -> None:
        """Look for new nodes from time to time; raise EdgeflError if there has been none for long."""
        if not self.live and time.monotonic() - self._lost_s > _ALONE_S:
            raise EdgeflError(
                f"no node of the Ray cluster is left ({self._why}); continue with --resume when there are nodes again"
            )
        if time.monotonic() - self._looked_s > (LOOK_S if self.live else HURRY_S):
            self.look()

    def look(self) -> None:
        """Start an actor on each place of the cluster that has none, as long as fewer slots than wanted are in use."""
        self._looked_s = time.monotonic()
        used = {member.place for member in self.live}
        for place in places(self._ray, self._clients.task.device == "cuda"):
            wanted = self._workers - sum(member.slots for member in self.live) if self._workers else place.slots
            if place not in used and place not in self._unlike and wanted > 0:
                self.live.append(self._member(place, min(place.slots, wanted)))

    def greet(self, member: RayMember, content: bytes, arrived_s: float) -> None:
        """Read what an actor says of itself: its fingerprint, or that its workers have been started.

        Raises:
            ConfigError: before the run has begun, a node cannot take part; names the node.
        """
        fields, _ = read_header(content, "facts", "ready", "error")
        if fields["kind"] == "error":
            error = error_of(fields)
            self._refuse(member, f"node {member.place.title}: {error}", type(error))
        elif fields["kind"] == "ready":
            member.state = "ready"
        elif unlike := self._unfit(member.place, Fingerprint.of(fields)):
            self._refuse(member, unlike)
        else:
            there = Fingerprint.of(fields)
            self.records[member.place.node] = NodeRecord(member.place.title, vars(there), tuple(there.differences(self._here)))
            member.state, member.ahead_s = "starting", arrived_s - fields["clock_s"]
            task = {"task": task_fields(self._clients.task), "workers": member.slots, "data": self._layout}
            self._call(member, "start", write_header("start", {**task, "limits": self._cluster.limits}), self._data)

    def answered(self) -> None:
        """Note that a member has answered: losses before it do not count any more."""
        self._losses = 0

    def lost(self, member: RayMember, why: str) -> Sequence[JobBatch]:
        """Leave a member out and return the batches that others must run; raise EdgeflError if too many were lost."""
        self._dismiss(member)
        if member.state == "asked" and "import" in why:
            reason = f"node {member.place.title} cannot import edgefl"
            raise ConfigError(f"ray_address: {reason}; install edgefl {self._here.edgefl} with its extra ray there")
        self._losses += 1
        self._lost_s, self._why = time.monotonic(), why.strip().partition("\n")[0]
        if self._losses > _TRIES * max(1, len(self._firsts)):
            reason = f"nodes of the Ray cluster are lost one after the other ({self._why})"
            raise EdgeflError(f"{reason}; continue with --resume, if need be without Ray")
        self._looked_s = self._lost_s  # the cluster needs a moment to notice
        return member.lost()

    def stop(self) -> None:
        """End all actors."""
        for member in list(self.live):
            self._dismiss(member)

    def _dismiss(self, member: RayMember) -> None:
        self.live.remove(member)
        with contextlib.suppress(Exception):  # it is gone
            self._ray.kill(member.actor)

    def _member(self, place: NodePlace, slots: int) -> RayMember:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = {
            "num_cpus": slots,
            "num_gpus": 0 if place.card is None else 1,
            "max_restarts": 0,
            "max_concurrency": DEPTH * slots + 2,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(place.node, soft=False),
        }
        first = self._firsts.setdefault(place, sum(member.slots for member in self._firsts))
        member = RayMember(place, self._ray.remote(**options)(Node).remote(), slots, first)
        self._call(member, "facts")
        return member

    def _shared_data(self) -> tuple[MessageFields, list[Any]]:
        """Put the data set into the object store, once; return where its arrays lie in it, and Ray's reference to it."""
        fd, layout = share(self._clients.data)
        try:
            with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as pages:
                reference = self._ray.put(np.frombuffer(bytes(pages), np.uint8))
        finally:
            os.close(fd)
        return layout, [reference]  # in a list, so that the actor decides when to fetch it

    def _refuse(self, member: RayMember, why: str, kind: type[EdgeflError] = ConfigError) -> None:
        self._unlike[member.place] = why
        self._dismiss(member)
        if not self.begun:
            raise kind(why)
        logging.getLogger(__name__).warning("a node that joined is not used: %s", why)

    def _unfit(self, place: NodePlace, there: Fingerprint) -> str:
        """Return why the node of a fingerprint cannot take part; "" if it can."""
        if there.edgefl != self._here.edgefl:
            reason = f"node {place.title} has edgefl {there.edgefl}, expected {self._here.edgefl} as on this computer"
            return f"ray_address: {reason}; install the same release there"
        differences = "; ".join(there.differences(self._here))
        if not differences or self._cluster.mixed:
            return ""
        remedy = "use nodes like this computer, or give --mixed-nodes if results may depend on which node trains which client"
        return f"mixed_nodes: node {place.title} would train to other bits than this computer ({differences}); {remedy}"
