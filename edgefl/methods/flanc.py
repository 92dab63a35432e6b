"""FLANC: a tier is a width; the weights of every width are combinations of one basis that all clients train."""

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.errors import ConfigError, nearest
from edgefl.factor.basis import (
    BasisRule,
    BasisSize,
    Composed,
    basis_name,
    check_divisor,
    check_size,
    coefficients_name,
    composed_layers,
    dense_state,
    first_basis,
    first_coefficients,
)
from edgefl.methods.base import Method, MethodConfig
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture, Unfilled, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Place, Tier
from edgefl.registry import method
from edgefl.rng import torch_seeded

Shapes = dict[str, dict[str, list[tuple[int, ...]]]]


class FLANCConfig(MethodConfig):
    """Options of FLANC.

    Attributes:
        orthogonality: λ of λ·Σ‖V·Vᵀ − I‖² (Eq. 3).
        share: the share of the smallest width's channels that R₁ may have (:class:`edgefl.factor.basis.BasisRule`).
        bases: R₂ is this times √(k₁k₂)·R₁.
        basis_channels: layer → R₁, in place of the rule's ("conv2", or "rnn.weight_hh_l0" in recurrent layers).
        basis_count: layer → R₂, likewise.
        tiers: the run's widths; R₁ divides the channels of each. Set by the run.
    """

    orthogonality: float = Field(1e-3, ge=0, allow_inf_nan=False)
    share: float = Field(0.5, gt=0, le=1)
    bases: float = Field(2 / 3, gt=0, allow_inf_nan=False)
    basis_channels: Mapping[str, PositiveInt] = Field(default_factory=dict)
    basis_count: Mapping[str, PositiveInt] = Field(default_factory=dict)
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


@method("flanc")
class FLANC(Method):
    """W_p = V·U_p: a basis V per layer, shared by all widths, and coefficients U_p that belong to width p (Eq. 1 and 2).

    Convolutions, linear layers and the matrices of recurrent layers are composed, the classifier included: all tiers share its basis, since
    only its input scales with p. Clients minimise cross-entropy + λ Σ‖V·Vᵀ − I‖² (Eq. 3). The server averages V over all clients and U_p
    over those of tier p, by samples (Eq. 4); a tier without clients keeps its coefficients. Biases, normalisation and embeddings belong to
    the tier too: channels of different widths are different combinations, and have nothing in common.

    One rule gives R₁ and R₂ (:class:`edgefl.factor.basis.BasisRule`), within every communication count of Table 1. Bases start
    orthonormal. First coefficients give composed weights He's variance 2/(k²S), or 1/(k²S) in the classifier and recurrent matrices, which
    no rectifier follows. A device runs the plain network of width p, composed once.

    Differs from the paper: it chooses R₁ and R₂ "depending on architecture and tasks" and does not print them; here a rule does. It does
    not say which channels form a fragment; here they are R₁ consecutive ones. The authors redraw tiers until none is empty; here an empty
    tier does not change.
    """

    config: FLANCConfig
    title: ClassVar[str] = "FLANC"
    paper: ClassVar[str] = "Mei et al., NeurIPS 2022"
    tier_meaning: ClassVar[str] = (
        "width p: the share of channels of every hidden layer, composed from a basis that all widths share"
    )
    travels: ClassVar[str] = "the shared bases, and the tier's own coefficients, norms and biases, both ways"

    def sizes(self, architecture: Architecture, tier: Tier) -> dict[str, dict[str, BasisSize]]:
        """Return layer → weight → R₁ and R₂, with ``tier`` among the widths; raise :class:`ConfigError` if an option's is impossible."""
        stem = stem_and_classifier(architecture.skeleton())[0]
        rule = BasisRule(self.config.share, self.config.bases)
        found: dict[str, dict[str, BasisSize]] = {}
        for layer, of in _shapes(architecture, (*self.config.tiers, tier.ratio)).items():
            found[layer] = {weight: self._size(rule, _key(layer, weight), at, layer == stem) for weight, at in of.items()}
        return found

    def _size(self, rule: BasisRule, name: str, shapes: list[tuple[int, ...]], whole: bool) -> BasisSize:
        size = rule.size(shapes, whole)
        if channels := self.config.basis_channels.get(name):
            size = BasisSize(channels, rule.count(channels, math.prod(shapes[0][2:])))
        size = BasisSize(size.channels, self.config.basis_count.get(name, size.count))
        check_size(name, size, shapes)
        return size

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` for widths whose channels have no common divisor, and for impossible R₁ or R₂."""
        widths = tuple(tier.ratio for tier in tiers)
        shapes = {_key(n, w): at for n, of in _shapes(architecture, widths).items() for w, at in of.items()}
        for option in ("basis_channels", "basis_count"):
            for name in getattr(self.config, option):
                if name not in shapes:
                    hint = nearest(name, shapes)
                    raise ConfigError(f"method_options.{option}: there is no layer {name!r};{hint} known: {', '.join(shapes)}")
        for name, at in shapes.items():
            if name not in self.config.basis_channels:
                check_divisor(name, at)
        for tier in tiers:
            self.sizes(architecture, tier)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network, skeleton = architecture.build(tier.ratio), architecture.skeleton(tier.ratio)
        for name, sizes in self.sizes(architecture, tier).items():
            replace_layer(network, name, Composed(network.get_submodule(name), skeleton.get_submodule(name), sizes))
        return network

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return orthonormal bases, and coefficients and everything else of each tier."""
        tensors: dict[str, Tensor] = {}
        with torch_seeded(rng):
            for tier in tiers:
                network = self.network(architecture, tier)
                places = _places(network, tier)
                _fill(network, stem_and_classifier(architecture.skeleton())[1])
                for name, tensor in network.state_dict().items():
                    if tensor.is_floating_point():
                        tensors.setdefault(places[name].target, tensor.detach().clone())
        return GlobalState(architecture, tiers, tensors)

    def places(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None) -> dict[str, Place]:

        def derive() -> dict[str, Place]:
            with torch.device("meta"), Unfilled():
                return _places(self.network(state.architecture, tier), tier)

        return state.once(f"places {tier.label}", derive)

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ‖V·Vᵀ − I‖² of each layer's bases (Eq. 3)."""
        strength = self.config.orthogonality
        return (strength * layer.penalty() for layer in composed_layers(module).values() if strength)

    def composed(self, architecture: Architecture, tier: Tier, network: nn.Module) -> nn.Module:
        plain = architecture.build(tier.ratio)
        plain.load_state_dict(dense_state(network))
        return plain.eval()

    def global_tier(self, state: GlobalState) -> Tier:
        """Return the widest tier: the server holds no other network."""
        return max(state.tiers)


def _key(layer: str, weight: str) -> str:
    """Return the name of a weight in options and messages: its layer's, if the layer has no other."""
    return layer if weight == "weight" else f"{layer}.{weight}"


def _shapes(architecture: Architecture, widths: tuple[float, ...]) -> Shapes:
    """Return layer → weight → its shapes at ``widths``, for every weight that is composed."""
    try:
        return _shapes_of(architecture, widths)
    except TypeError:  # a network of the user's own need not be hashable
        return _shapes_of.__wrapped__(architecture, widths)


@lru_cache(maxsize=32)
def _shapes_of(architecture: Architecture, widths: tuple[float, ...]) -> Shapes:
    found: Shapes = {}
    for width in sorted(set(widths)):
        network = architecture.skeleton(width)
        plain = {name for name, _ in weighted_layers(network)}
        for name, layer in network.named_modules():
            if name in plain or isinstance(layer, nn.RNNBase):
                for weight, parameter in layer.named_parameters():
                    if weight.startswith("weight"):
                        found.setdefault(name, {}).setdefault(weight, []).append(tuple(parameter.shape))
    return found


def _places(network: nn.Module, tier: Tier) -> dict[str, Place]:
    """Return where every tensor lives: a basis under its own name, everything else under that and the tier's label."""
    shared = {f"{name}.{basis_name(w)}" for name, layer in composed_layers(network).items() for w in layer.sizes}
    names = [name for name, tensor in network.state_dict().items() if tensor.is_floating_point()]
    return {name: Place(name if name in shared else f"{name}@{tier.label}", ()) for name in names}


def _fill(network: nn.Module, classifier: str) -> None:
    """Draw the first bases and coefficients."""
    with torch.no_grad():
        for name, layer in composed_layers(network).items():
            for weight, size in layer.sizes.items():
                basis, coefficients = getattr(layer, basis_name(weight)), getattr(layer, coefficients_name(weight))
                basis.copy_(first_basis(tuple(basis.shape)))
                gain = 1.0 if name == classifier or weight != "weight" else 2.0
                coefficients.copy_(first_coefficients(tuple(coefficients.shape), size.channels, gain))
