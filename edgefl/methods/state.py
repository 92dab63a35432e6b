"""What the server holds between rounds: the global model, and what a method remembers of single clients and clusters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor, nn

from edgefl.factor.width import nested, stacked_in
from edgefl.models.base import Architecture
from edgefl.records import Place, Tier

T = TypeVar("T")
Shape = tuple[int, ...]
Shapes = dict[str, Shape]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class GlobalState:
    """What the server holds between rounds.

    A state never changes: ``aggregate`` returns a new one. :meth:`once` caches what was derived from it, so that one decomposition serves
    every tier and client of a round.

    Attributes:
        tensors: name → tensor of the global model.
        warm: results for the state before this one that speed up the same for this one, such as its singular vectors. They are stored
            with the state, since results depend on them in their last bits, but neither sent nor averaged.
        clients: client → name → tensor, of the clients that the method remembers. It grows with the number of clients that took part.
        clusters: number → name → tensor: the models of further clusters. Cluster 0 has the global model.
    """

    architecture: Architecture
    tiers: tuple[Tier, ...]
    tensors: Tensors
    warm: Tensors = field(default_factory=dict)
    clients: Mapping[int, Tensors] = field(default_factory=dict)
    clusters: Mapping[int, Tensors] = field(default_factory=dict)
    _derived: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, key: str, derive: Callable[[], T]) -> T:
        """Return ``derive()``, computed at the first call with ``key`` and cached as long as this state exists."""
        if key not in self._derived:
            self._derived[key] = derive()
        return self._derived[key]

    def slices(self, tier: Tier, shapes: Callable[[Architecture, Tier], Mapping[str, Shape]]) -> dict[str, Place]:
        """Return where the tensors of a narrow network lie in this state, cached; ``shapes`` gives the shapes of a tier's network."""
        return self.once(
            f"places {tier.label}",
            lambda: nested(shapes(self.architecture, tier), shapes_of(self.tensors), stacked_in(self.architecture.skeleton())),
        )

    def replace(self, tensors: Tensors, **parts: Any) -> GlobalState:
        """Return a state with other tensors, and with ``parts`` (``warm``, ``clients``, ``clusters``) in place of this state's."""
        return replace(self, tensors=tensors, _derived={}, **parts)

    def parts(self) -> dict[str, Tensors]:
        """Return all tensors as a file stores them, part by part: ``model``, ``warm``, ``client <number>``, ``cluster <number>``."""
        clients = {f"client {number}": tensors for number, tensors in self.clients.items()}
        clusters = {f"cluster {number}": tensors for number, tensors in self.clusters.items()}
        return {"model": self.tensors, "warm": self.warm, **clients, **clusters}

    def of_parts(self, parts: Mapping[str, Tensors]) -> GlobalState:
        """Return the state of this architecture and these tiers whose :meth:`parts` these are, or raise ``ValueError`` at another part."""
        numbered: dict[str, dict[int, Tensors]] = {"client": {}, "cluster": {}}
        for part, tensors in parts.items():
            kind, _, number = part.partition(" ")
            if kind in numbered and number.isdecimal():
                numbered[kind][int(number)] = tensors
            elif part not in ("model", "warm"):
                raise ValueError(f"{part!r} is no part of a server's state")
        clients, clusters = numbered["client"], numbered["cluster"]
        return self.replace(parts.get("model", {}), warm=parts.get("warm", {}), clients=clients, clusters=clusters)


def copied(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every tensor in the state_dict of ``network``."""
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def shapes_of(tensors: Tensors) -> dict[str, Shape]:
    """Return name → shape."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
