"""Clustered-FL: clients whose updates point away from each other are separated, and each cluster trains its own model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from edgefl.factor.rank1 import cosines
from edgefl.factor.width import cut
from edgefl.methods.axes import Need
from edgefl.methods.base import MethodConfig
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.state import GlobalState, Tensors
from edgefl.records import Submodel, Tier, Update
from edgefl.registry import method

ASSIGNED = "cluster"


class ClusteredFLConfig(MethodConfig):
    """Options of Clustered-FL; the defaults are those of the authors' experiment.

    Attributes:
        eps1: ε₁. A cluster splits only if the norm of its mean update is below it: its model is near a stationary point.
        eps2: ε₂. A cluster splits only if the largest norm of a client's update is above it: its clients are not near theirs.
        least: a cluster splits only if it has so many participants in the round.
    """

    eps1: float = Field(0.4, ge=0)
    eps2: float = Field(1.6, ge=0)
    least: int = Field(3, ge=2)


@dataclass(frozen=True)
class _Member:
    """One client of a round: its update Δ as one vector (values,), float32, and its samples."""

    client: int
    delta: Tensor
    samples: int


@method("clustered-fl")
class ClusteredFL(FedAvg):
    """FedAvg within clusters; a cluster splits in two if one model cannot serve all (Sattler et al. 2020, Algorithms 1 and 3).

    All clients begin in cluster 0. Δ_i = θ_i − θ are the updates of a cluster's participants. If ‖Σ n_i Δ_i / Σ n_i‖ < ε₁ and
    max ‖Δ_i‖ > ε₂, the participants are separated into the two groups with the smallest largest cosine similarity across them. Each
    group's model becomes θ plus its own mean update. The group with more participants (if equal: with the smallest client number) keeps
    the cluster's number. Absent clients stay with that number, and may be separated from it later. New clients join cluster 0, whose model
    is also deployed without a client.

    The global model is that of cluster 0, and the state remembers the cluster of every client that took part. A split depends on every
    pair of updates, so updates are stored as vectors until all have arrived: the server needs the memory of as many models as clients
    take part in a round.

    Differs from the paper: clients may be absent from a round. A split is not checked against the bound on cross-cluster similarity (γ),
    which needs the clients' gradient noise.
    """

    config: ClusteredFLConfig
    title: ClassVar[str] = "Clustered-FL"
    paper: ClassVar[str] = "Sattler et al., Clustered Federated Learning, IEEE TNNLS 2020"
    travels: ClassVar[str] = "every weight of the client's cluster, both ways"
    per_client: ClassVar[bool] = True
    personalised: ClassVar[bool] = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "clusters are split by comparing updates of one round",
        "server_step": "a split replaces the model that a server optimizer gathered its momentum or moments for by two others",
        "common_model": "clusters have a model each, and a split changes whose it is",
    }

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        places = self.places(state, tier, rng, client)
        tensors = cut(_model(state, _cluster_of(state, client)), places)
        return Submodel(tier, tensors, partial(self.network, state.architecture, tier), places)

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Average every cluster's updates by samples, and split the clusters that need it."""
        members: dict[int, list[_Member]] = {}
        for update in self.checked(state, updates):
            cluster = _cluster_of(state, update.client)
            moved = [(update.tensors[name] - tensor).flatten() for name, tensor in _model(state, cluster).items()]
            members.setdefault(cluster, []).append(_Member(update.client, torch.cat(moved), update.samples))
        models, clients = {0: state.tensors, **state.clusters}, dict(state.clients)
        for cluster in sorted(members):
            groups = self._groups(sorted(members[cluster], key=lambda member: member.client))
            for number, group in zip((cluster, len(models)), groups, strict=False):
                models[number] = _moved(_model(state, cluster), _mean(group))
                clients |= {member.client: {ASSIGNED: torch.tensor(float(number))} for member in group}
        return state.replace(models.pop(0), clients=clients, clusters=models)

    def _groups(self, members: Sequence[_Member]) -> list[list[_Member]]:
        """Return the participants of a cluster in one group, or in two if it splits; first the group that keeps the number."""
        largest = max(_norm(member.delta) for member in members)
        if len(members) < self.config.least or _norm(_mean(members)) >= self.config.eps1 or largest <= self.config.eps2:
            return [list(members)]
        parted = bipartition(cosines(torch.stack([member.delta for member in members])))
        groups = [[members[i] for i in part] for part in parted]
        return sorted(groups, key=lambda group: (-len(group), group[0].client))

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return how many known clients are in each cluster."""
        clusters = [_cluster_of(state, client) for client in state.clients]
        return {"clusters": [clusters.count(cluster) for cluster in range(max(clusters) + 1)]} if clusters else {}

    def client_shapes(self, state: GlobalState) -> Mapping[str, tuple[int, ...] | None]:
        return {ASSIGNED: ()}

    def fits(self, first: GlobalState, stored: GlobalState) -> str:
        """Check every cluster's model, that their numbers have no gaps, and every client's cluster."""
        if problem := super().fits(first, stored):
            return problem
        count = 1 + len(stored.clusters)
        if stored.clusters.keys() != set(range(1, count)):
            return f"its clusters are numbered {', '.join(map(str, sorted(stored.clusters)))}, expected 1 to {count - 1}"
        strangers = {_cluster_of(stored, client) for client in stored.clients} - set(range(count))
        return f"it has clients in cluster {min(strangers)}, which is none of its {count}" if strangers else ""


def bipartition(similarity: Tensor) -> tuple[list[int], list[int]]:
    """Separate the positions of ``similarity`` (n, n) into two groups with the smallest largest similarity across (Sattler et al., Eq. 18).

    Merging the groups of the most similar pair until two groups are left is optimal: a pair may only be separated if all more similar
    pairs are together.

    >>> bipartition(torch.tensor([[1.0, -0.5, 0.9], [-0.5, 1.0, 0.1], [0.9, 0.1, 1.0]]))
    ([0, 2], [1])
    """
    count = len(similarity)
    group = list(range(count))
    pairs = sorted((-float(similarity[i, j]), i, j) for i in range(count) for j in range(i + 1, count))
    for _, i, j in pairs:
        if len(set(group)) == 2:
            break
        joined, left = sorted((group[i], group[j]))
        group = [joined if g == left else g for g in group]
    one = [i for i in range(count) if group[i] == group[0]]
    return one, [i for i in range(count) if group[i] != group[0]]


def _model(state: GlobalState, cluster: int) -> Tensors:
    return state.clusters[cluster] if cluster else state.tensors


def _cluster_of(state: GlobalState, client: int | None) -> int:
    assigned = state.clients.get(client, {}).get(ASSIGNED) if client is not None else None
    return 0 if assigned is None else int(assigned)


def _mean(members: Sequence[_Member]) -> Tensor:
    """Return Σ n_i Δ_i / Σ n_i (values,) in float64."""
    total = sum((member.samples * member.delta.double() for member in members), torch.zeros((), dtype=torch.float64))
    return total / sum(member.samples for member in members)


def _moved(base: Tensors, delta: Tensor) -> dict[str, Tensor]:
    """Return ``base`` plus the parts of ``delta`` (values,), in the old dtypes."""
    parts = delta.split([tensor.numel() for tensor in base.values()])
    return {
        name: (tensor.double() + part.view(tensor.shape)).to(tensor.dtype)
        for (name, tensor), part in zip(base.items(), parts, strict=True)
    }


def _norm(vector: Tensor) -> float:
    return math.sqrt(float(vector.double().square().sum()))
