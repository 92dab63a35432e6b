"""Clustered-FL: clients with opposing updates are separated into clusters, and each cluster trains its own model."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.rank1 import cosines
from edgefl.factor.width import cut
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Figures, Remembers
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.fedper import last_layers
from edgefl.methods.networks import skeleton, slices, submodel_of, upload_shapes
from edgefl.methods.options import PersonalClassifierConfig
from edgefl.methods.personal import Personal
from edgefl.methods.state import GlobalState, Tensors
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture
from edgefl.records import Observed, Submodel, Tier, Update
from edgefl.registry import method

ASSIGNED = "cluster"
"""Name in the server's memory of a client: the number of its cluster, a scalar."""


class ClusteredFLConfig(PersonalClassifierConfig):
    """Options of Clustered-FL; the defaults are those of the authors' experiment.

    Attributes:
        eps1: ε₁. A cluster splits only if the norm of its mean update is below it: the cluster is near a stationary point.
        eps2: ε₂. A cluster splits only if the largest norm of a client's update is above it: some client is far from one of its own.
        least: a cluster splits only with at least this many participants in the round.
    """

    eps1: float = Field(0.4, ge=0)
    eps2: float = Field(1.6, ge=0)
    least: int = Field(3, ge=2)


@dataclass(frozen=True)
class _Member:
    """One participant of a round: its number, its update Δ as one vector (values,) float32, and its number of samples."""

    client: int
    delta: Tensor
    samples: int


@method("clustered-fl")
class ClusteredFL(Personal, Remembers, Figures, FedAvg):
    """FedAvg within clusters. A cluster splits in two if one model cannot serve all (Sattler et al. 2020, Algorithms 1 and 3).

    All clients begin in cluster 0. Δ_i = θ_i − θ is the update of participant i, which has n_i samples. If ‖Σ n_i Δ_i / Σ n_i‖ < ε₁ and
    max ‖Δ_i‖ > ε₂, the participants are separated into two groups. In the chosen separation, the largest cosine similarity between
    members of different groups is as small as possible. Each group's model becomes θ plus its own mean update. The group with more
    participants has the old cluster number; of two equal groups, the one with the smallest client number. Absent clients stay in the old
    cluster, and may be separated from it later.

    New clients join cluster 0. Its model is the global model. Without a particular client, this model is deployed. The state has the
    cluster of every client that took part. A split depends on every pair of updates. So the server holds all updates of a round in memory
    at once, one model per client.

    With a personal classifier, Δ_i is the update of all tensors before the classifier, and every client has a classifier of its own.
    Jeong and Hwang (2022, section 5.2) do so in all methods if labels are permuted.

    Differs from the paper: clients may be absent from a round. A split is not checked against the bound on cross-cluster similarity (γ),
    which requires the noise of the clients' gradients.
    """

    config: ClusteredFLConfig
    title = "Clustered-FL"
    paper = "Sattler et al., Clustered Federated Learning, IEEE TNNLS 2020"
    travels = "every weight of the client's cluster, both ways"
    stays = "the classifier, if it is personal: by default with permuted labels or several data sets"
    per_client = True
    personalised = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "tier_means": "clients of a tier are sent the models of their clusters, and clusters are found by comparing clients",
        "stale_updates": "clusters are split by comparing updates of one round",
        "server_step": "a split replaces the model that a server optimizer gathered its momentum or moments for by two others",
        "common_model": "clusters have a model each, and a split changes whose it is",
        "shared_coordinates": "updates of one cluster are expected to differ from those of another: they split the clusters",
    }

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no tensor is left to average."""
        network = skeleton(self, architecture, tiers[0])
        if self.personal(network) >= network.state_dict().keys():
            raise ConfigError(
                f"method_options.personal_classifier: {architecture.model} has no layer before its classifier to average; give false"
            )

    def personal(self, network: nn.Module) -> frozenset[str]:
        return last_layers(network) if self.config.keeps_classifier else frozenset()

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        places = slices(self, state, tier, partial(upload_shapes, self))
        tensors = cut(_model(state, _cluster_of(state, client)), places)
        return submodel_of(self, state, tier, tensors, places)

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return a state in which every cluster has moved by its mean update, by samples, and some clusters have split."""
        members: dict[int, list[_Member]] = {}
        shared = upload_shapes(self, state.architecture, state.tiers[0]).keys()
        for update in checked(self, state, updates):
            cluster = _cluster_of(state, update.client)
            model = _model(state, cluster)
            moved = [(update.tensors[name] - model[name]).flatten() for name in model if name in shared]
            members.setdefault(cluster, []).append(_Member(update.client, torch.cat(moved), update.samples))
        models, clients = {0: state.tensors, **state.clusters}, dict(state.clients)
        for cluster in sorted(members):
            groups = self._groups(sorted(members[cluster], key=lambda member: member.client))
            for number, group in zip((cluster, len(models)), groups, strict=False):
                models[number] = _moved(_model(state, cluster), _mean(group), shared)
                clients |= {member.client: {ASSIGNED: torch.tensor(float(number))} for member in group}
        return state.replace(models.pop(0), clients=clients, clusters=models)

    def _groups(self, members: Sequence[_Member]) -> list[list[_Member]]:
        """Return the participants of a cluster in one group, or in two if it splits; the first group has the old number."""
        largest = max(_norm(member.delta) for member in members)
        if len(members) < self.config.least or _norm(_mean(members)) >= self.config.eps1 or largest <= self.config.eps2:
            return [list(members)]
        parted = bipartition(cosines(torch.stack([member.delta for member in members])))
        groups = [[members[i] for i in part] for part in parted]
        return sorted(groups, key=lambda group: (-len(group), group[0].client))

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> Observed:
        """Return the number of known clients in each cluster."""
        clusters = [_cluster_of(state, client) for client in state.clients]
        return {"clusters": [clusters.count(cluster) for cluster in range(max(clusters) + 1)]} if clusters else {}

    def client_shapes(self, state: GlobalState) -> Mapping[str, tuple[int, ...] | None]:
        return {ASSIGNED: ()}

    def misfit(self, stored: GlobalState) -> str:
        """Check that the clusters are numbered without gaps, and that every client's cluster exists."""
        count = 1 + len(stored.clusters)
        if stored.clusters.keys() != set(range(1, count)):
            return f"its clusters are numbered {', '.join(map(str, sorted(stored.clusters)))}, expected 1 to {count - 1}"
        strangers = {_cluster_of(stored, client) for client in stored.clients} - set(range(count))
        return f"it has clients in cluster {min(strangers)}, which is none of its {count}" if strangers else ""


def bipartition(similarity: Tensor) -> tuple[list[int], list[int]]:
    """Return two groups of positions whose largest ``similarity`` (n, n) between the groups is smallest (Sattler et al., Eq. 18).

    Each position begins as a group of its own. From the most similar pair on, the groups of each pair are merged until two are left. This
    is optimal, because a pair may only be separated if all more similar pairs are together.

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
    """Return Σ n_i Δ_i / Σ n_i, (values,) float64."""
    total = sum((member.samples * member.delta.double() for member in members), torch.zeros((), dtype=torch.float64))
    return total / sum(member.samples for member in members)


def _moved(base: Tensors, delta: Tensor, shared: Collection[str]) -> dict[str, Tensor]:
    """Return ``base`` with ``delta`` (values,) added to its tensors ``shared``, in their order and dtypes; the others are copied."""
    parts = iter(delta.split([tensor.numel() for name, tensor in base.items() if name in shared]))
    return {
        name: (tensor.double() + next(parts).view(tensor.shape)).to(tensor.dtype) if name in shared else tensor.clone()
        for name, tensor in base.items()
    }


def _norm(vector: Tensor) -> float:
    return math.sqrt(float(vector.double().square().sum()))
