"""Shapes of tensors, sub-models, and networks with the values of a state: they follow from the networks of a method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.factor.width import cut
from edgefl.methods.state import GlobalState, Shape, Tensors, shapes_of
from edgefl.models.base import Architecture, Unfilled, loaded, once_per_network
from edgefl.records import Place, Submodel, Tier


class MethodLike(Protocol):
    """The part of a method that the functions below need; :class:`edgefl.methods.base.Method` builds on them."""

    whole: ClassVar[bool]
    weighs_samples: ClassVar[bool]

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        """Return the network that a client of ``tier`` trains."""

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the sub-model for ``client`` of ``tier``."""

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that the client sends back."""


def skeleton(method: MethodLike, architecture: Architecture, tier: Tier) -> nn.Module:
    """Return :meth:`Method.network` on the ``meta`` device: names and shapes without memory or random draws."""
    with torch.device("meta"), Unfilled():
        return method.network(architecture, tier)


def upload_shapes(method: MethodLike, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
    """Return name → shape of the tensors that a client of ``tier`` sends: those of :meth:`Method.upload`."""
    return dict(_sent(architecture, tier, method))


@once_per_network
def _sent(architecture: Architecture, tier: Tier, method: MethodLike) -> dict[str, Shape]:
    return shapes_of(method.upload(skeleton(method, architecture, tier)))


def global_tier(method: MethodLike, state: GlobalState) -> Tier:
    """Return the tier of the server's own network; it may be larger than every client's."""
    return Tier(1.0) if method.whole else max(state.tiers)


def slices(
    method: MethodLike, state: GlobalState, tier: Tier, shapes: Callable[[Architecture, Tier], Mapping[str, Shape]]
) -> dict[str, Place]:
    """Return name → place in ``state`` of the tensors that ``shapes`` names: leading slices of those with the same names."""
    return state.slices(tier, shapes, within=global_tier(method, state).ratio)


def cut_out(method: MethodLike, state: GlobalState, tier: Tier, places: Mapping[str, Place]) -> Submodel:
    """Return the sub-model of a client of ``tier`` that has copies of the entries at ``places``, name → place in ``state``."""
    return submodel_of(method, state, tier, cut(state.tensors, places), places)


def submodel_of(method: MethodLike, state: GlobalState, tier: Tier, tensors: Tensors, places: Mapping[str, Place]) -> Submodel:
    """Return the sub-model of a client of ``tier`` that has these ``tensors``, with name → place in ``state``."""
    return Submodel(tier, tensors, partial(method.network, state.architecture, tier), places)


def filled(
    method: MethodLike, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
) -> nn.Module:
    """Return the network of ``client`` (None: no particular one) with the tensors of its sub-model, in evaluation mode.

    ``personal`` has the tensors that the client stored. Tensors that are neither sent nor stored have their initial values.
    """
    submodel = method.submodel(state, tier, np.random.default_rng(0), client)
    network = submodel.build()
    first = {name: state.tensors[name] for name in network.state_dict().keys() & state.tensors.keys()}
    return loaded(network, {**first, **submodel.tensors, **(personal or {})})
