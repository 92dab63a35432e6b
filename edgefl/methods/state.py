"""The state of the server between rounds: the global model, and the tensors that a method remembers of clients and clusters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import numpy as np
from torch import Tensor, nn

from edgefl.factor.width import nested, stacked_in
from edgefl.models.base import Architecture
from edgefl.records import Place, Tier
from edgefl.rng import torch_seeded

T = TypeVar("T")
Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class GlobalState:
    """The state of the server between rounds.

    A state never changes: ``aggregate`` returns a new one. :meth:`once` caches derived values, so that one decomposition serves every tier
    and client of a round.

    Attributes:
        architecture: builds the networks.
        tiers: the run's tiers.
        tensors: name → tensor of the global model.
        warm: name → tensor: results of the previous state, such as singular vectors, that speed up the same computation for this one.
            Checkpoints store them, because results depend on them in their last bits. They are neither sent nor averaged.
        clients: client → name → tensor: the server's memory of clients. It grows with the number of clients that took part.
        clusters: number → name → tensor: the models of clusters from 1 on. Cluster 0 has the global model.
    """

    architecture: Architecture
    tiers: tuple[Tier, ...]
    tensors: Tensors
    warm: Tensors = field(default_factory=dict)
    clients: Mapping[int, Tensors] = field(default_factory=dict)
    clusters: Mapping[int, Tensors] = field(default_factory=dict)
    _derived: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def begun(
        cls, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator, build: Callable[[], nn.Module]
    ) -> Self:
        """Return the state before the first round: the tensors of ``build()``, with weights drawn by ``rng``."""
        with torch_seeded(rng):
            return cls(architecture, tiers, copied(build()))

    def once(self, key: str, derive: Callable[[], T]) -> T:
        """Return ``derive()``. The first call with ``key`` computes it; it is cached as long as this state exists."""
        if key not in self._derived:
            self._derived[key] = derive()
        return self._derived[key]

    def slices(
        self,
        tier: Tier,
        shapes: Callable[[Architecture, Tier], Mapping[str, Shape]],
        width: float | None = None,
        within: float = 1.0,
    ) -> dict[str, Place]:
        """Return name → place in this state of a tier's narrow network, cached.

        ``shapes`` returns the network's name → shape, ``width`` is its width (None: the tier's ratio), ``within`` that of this state.
        """
        return self.once(
            f"places {tier.label}",
            lambda: places_in(
                self.architecture,
                self.architecture.skeleton(within),
                shapes(self.architecture, tier),
                shapes_of(self.tensors),
                tier.ratio if width is None else width,
                within,
            ),
        )

    def replace(self, tensors: Tensors, **parts: Any) -> Self:
        """Return a state with other tensors, and with ``parts`` (``warm``, ``clients``, ``clusters``) in place of this state's."""
        return replace(self, tensors=tensors, _derived={}, **parts)

    def parts(self) -> dict[str, Tensors]:
        """Return all tensors as a file stores them, part by part: ``model``, ``warm``, ``client <number>``, ``cluster <number>``."""
        clients = {f"client {number}": tensors for number, tensors in self.clients.items()}
        clusters = {f"cluster {number}": tensors for number, tensors in self.clusters.items()}
        return {"model": self.tensors, "warm": self.warm, **clients, **clusters}

    def of_parts(self, parts: Mapping[str, Tensors]) -> Self:
        """Return the state with this architecture, these tiers and the given :meth:`parts`; ValueError for a part of unknown name."""
        numbered: dict[str, dict[int, Tensors]] = {"client": {}, "cluster": {}}
        for part, tensors in parts.items():
            kind, _, number = part.partition(" ")
            if kind in numbered and number.isdecimal():
                numbered[kind][int(number)] = tensors
            elif part not in ("model", "warm"):
                raise ValueError(f"{part!r} is no part of a server's state")
        clients, clusters = numbered["client"], numbered["cluster"]
        return self.replace(parts.get("model", {}), warm=parts.get("warm", {}), clients=clients, clusters=clusters)


def places_in(
    architecture: Architecture,
    network: nn.Module,
    narrow: Mapping[str, Shape],
    wide: Mapping[str, Shape],
    width: float,
    within: float,
) -> dict[str, Place]:
    """Return name → place of the network of ``width`` in that of width ``within``, from name → shape of both.

    ``network`` is either of them: its recurrent layers say which tensors stack gates.
    """
    return nested(narrow, wide, stacked_in(network), lambda name: architecture.entries(name, width, within))


def copied(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every tensor in the state_dict of ``network``."""
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def shapes_of(tensors: Tensors) -> dict[str, Shape]:
    """Return name → shape of ``tensors``."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def travelling_shapes(network: nn.Module) -> dict[str, Shape]:
    """Return name → shape of the tensors of ``network`` that travel: all except counters, such as BatchNorm's."""
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
