"""FLANC: a tier is a width, and the weights of all widths are combinations of one basis that all clients train."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal

import numpy as np
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from edgefl.errors import ConfigError, nearest
from edgefl.factor.basis import BasisRule, BasisSize, Composed, Init, basis_name, check_divisor, composed_layers, dense_state
from edgefl.methods.capabilities import Composes
from edgefl.methods.kernel_places import gates_of
from edgefl.methods.layer_rules import kept_layers
from edgefl.methods.networks import cut_out, skeleton
from edgefl.methods.options import MethodConfig
from edgefl.methods.penalties import Penalised
from edgefl.methods.state import GlobalState, Tensors
from edgefl.models.base import Architecture, loaded, once_per_network, replace_layer, stem_and_classifier, weighted_layers
from edgefl.records import Place, Submodel, Tier
from edgefl.registry import method
from edgefl.rng import torch_seeded

Layers = Literal["hidden", "all"]
Shapes = dict[str, dict[str, list[tuple[int, ...]]]]
Sizes = dict[str, dict[str, BasisSize]]


class FLANCConfig(MethodConfig):
    """Options of FLANC.

    Attributes:
        composed: the layers with a shared basis. ``hidden``: recurrent and linear layers and convolutions, but not the stem, the
            classifier, 1×1 and grouped convolutions, as in the authors' code. If none of them can be composed, 1×1 convolutions are.
            ``all``: all of these.
        init: the size of the first composed weights: ``plain``, as in the authors' code, is that of the plain network's. ``he`` has the
            variance 2/(k²S), which is six times as large in torch's layers.
        orthogonality: λ of Eq. 3.
        penalty: λ multiplies the ``mean`` of the R₂² squares in ‖V·Vᵀ − I‖², as in the authors' code, or their ``sum``, as in Eq. 3.
        share: the largest share of a weight's input channels at width 1 that R₁ may have (:class:`edgefl.factor.basis.BasisRule`).
        bases: R₂ is this times √(k₁k₂)·R₁, and more if a weight has more outputs than inputs.
        basis_channels: layer → R₁, in place of the rule's. A recurrent layer has one for each weight, such as "rnn.weight_hh_l0".
        basis_count: layer → R₂, in place of the rule's.
        tiers: the run's widths. R₁ divides the input channels of each. Set by the run.
    """

    composed: Layers = "hidden"
    init: Init = "plain"
    orthogonality: float = Field(10.0, ge=0, allow_inf_nan=False)
    penalty: Literal["mean", "sum"] = "mean"
    share: float = Field(1 / 8, gt=0, le=1)
    bases: float = Field(2 / 3, gt=0, allow_inf_nan=False)
    basis_channels: Mapping[str, PositiveInt] = Field(default_factory=dict)
    basis_count: Mapping[str, PositiveInt] = Field(default_factory=dict)
    tiers: tuple[float, ...] = (1.0, 0.5, 0.25)


@method("flanc")
class FLANC(Penalised, Composes):
    """W_p = V·U_p: a basis V per layer, shared by all widths, and coefficients U_p of width p alone (Eq. 1 and 2).

    Clients minimise cross-entropy + λ Σ‖V·Vᵀ − I‖² (Eq. 3). The server averages V over all clients and U_p over the clients of tier p, by
    samples (Eq. 4). The coefficients of a tier without clients do not change. All other tensors belong to one tier too, because channels
    of different widths are different combinations: dense layers, biases, normalisation and embeddings. In the authors' code each width has
    its own stem and classifier, even if their shapes are equal. The paper speaks of every layer: ``composed="all"``.

    A layer's basis has R₂ vectors, each with R₁ input channels; a rule gives both numbers (:class:`edgefl.factor.basis.BasisRule`). On
    ``cnn-flanc`` and ``resnet18`` they are those of the authors' ``demo.sh``, and the parameters those of Table 1. A weight for which the
    rule has a single basis vector stays dense. The authors' code takes 10 times the mean of the R₂² squares in ‖V·Vᵀ − I‖². In Eq. 3 this
    is λ = 10/R₂², or 0.0098 for R₂ = 32. Initial bases are orthonormal. Initial coefficients give composed weights the mean square of the
    plain network's initial weights. In the authors' code they are torch's for a 1×1 convolution, which gives the same variance, 1/(3k²S)
    for S inputs. A device runs the plain network of width p, composed once.

    Differs from the paper: it does not say which channels form a fragment; here they are R₁ consecutive ones, as in the authors' code.
    The authors redraw tiers until none is empty, and do not weigh clients by samples.
    """

    config: FLANCConfig
    title = "FLANC"
    paper = "Mei et al., NeurIPS 2022"
    tier_meaning = "width p: the share of channels of every hidden layer, composed from a basis that all widths share"
    travels = "the shared bases, and all tensors of the tier's own, such as coefficients and biases, both ways"
    whole = False

    def sizes(self, architecture: Architecture, tier: Tier) -> Sizes:
        """Return layer → weight → R₁ and R₂, for the run's widths and ``tier``; ConfigError if options give impossible ones."""
        return self._composed(architecture, (*self.config.tiers, tier.ratio))[1]

    def _composed(self, architecture: Architecture, widths: tuple[float, ...], pointwise: bool = False) -> tuple[Shapes, Sizes]:
        """Return the shapes of the weights that may be composed, and R₁ and R₂ of those that are; ``pointwise``: of 1×1 kernels too."""
        shapes, full = (_shapes(architecture, ratios, self.config.composed, pointwise) for ratios in (widths, (1.0,)))
        sizes = self._sizes(architecture, shapes, full)
        return (shapes, sizes) if sizes or pointwise else self._composed(architecture, widths, True)

    def _sizes(self, architecture: Architecture, shapes: Shapes, full: Shapes) -> Sizes:
        sizes: Sizes = {}
        for layer, weights in self._ruled(architecture, shapes, full).items():
            for weight, ruled in weights.items():
                name = _key(layer, weight)
                size = self._chosen(name, ruled, full[layer][weight][0])
                size.check(name, shapes[layer][weight])
                if size.count > 1 or size != ruled:
                    sizes.setdefault(layer, {})[weight] = size
        return sizes

    @property
    def _rule(self) -> BasisRule:
        return BasisRule(self.config.share, self.config.bases)

    def _ruled(self, architecture: Architecture, shapes: Shapes, full: Shapes) -> Sizes:
        """Return layer → weight → the rule's R₁ and R₂, with the R₁ of another layer if the network's ``basis_like`` names one."""
        network = architecture.skeleton()
        stem, like = stem_and_classifier(network)[0], getattr(network, "basis_like", {})
        sizes = {n: {w: self._rule.size(each, full[n][w][0], n == stem) for w, each in ws.items()} for n, ws in shapes.items()}
        for layer in like.keys() & sizes.keys():
            size = sizes[layer]["weight"]
            sizes[layer] = {"weight": BasisSize(math.gcd(size.channels, sizes[like[layer]]["weight"].channels), size.count)}
        return sizes

    def _chosen(self, name: str, ruled: BasisSize, full: tuple[int, ...]) -> BasisSize:
        """Return the sizes that the options give for the weight ``name``, or else those of the rule."""
        channels = self.config.basis_channels.get(name)
        size = BasisSize(channels, self._rule.count(channels, full)) if channels else ruled
        return BasisSize(size.channels, self.config.basis_count.get(name, size.count))

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if channels have no common divisor at the run's widths, or if options give impossible R₁ or R₂."""
        layers, _ = self._composed(architecture, tuple(tier.ratio for tier in tiers))
        shapes = {_key(n, w): each for n, ws in layers.items() for w, each in ws.items()}
        for option in ("basis_channels", "basis_count"):
            for name in getattr(self.config, option):
                if name not in shapes:
                    hint = nearest(name, shapes)
                    raise ConfigError(f"method_options.{option}: there is no layer {name!r};{hint} known: {', '.join(shapes)}")
        for name, each in shapes.items():
            if name not in self.config.basis_channels:
                check_divisor(name, each)
        if not all(self.sizes(architecture, tier) for tier in tiers):
            raise ConfigError(
                "FLANC finds no layer with more than one basis vector: all are small, the stem, grouped, the classifier, or kept"
                " dense; try a larger method_options.share, or method_options.composed=all"
            )

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network, skeleton = architecture.build(tier.ratio), architecture.skeleton(tier.ratio)
        for name, sizes in self.sizes(architecture, tier).items():
            replace_layer(network, name, Composed(network.get_submodule(name), skeleton.get_submodule(name), sizes))
        return network

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(tier.ratio)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return orthonormal bases, and all other tensors of each tier."""
        tensors: dict[str, Tensor] = {}
        with torch_seeded(rng):
            for tier in tiers:
                network, plain = self.network(architecture, tier), architecture.build(tier.ratio)
                places = _places(network, tier)
                for name, layer in composed_layers(network).items():
                    layer.fill(plain.get_submodule(name), self.config.init)
                for name, tensor in network.state_dict().items():
                    if tensor.is_floating_point():
                        tensors.setdefault(places[name].target, tensor.detach().clone())
        return GlobalState(architecture, tiers, tensors)

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        places = state.once(f"places {tier.label}", lambda: _places(skeleton(self, state.architecture, tier), tier))
        return cut_out(self, state, tier, places)

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ‖V·Vᵀ − I‖² of each layer's bases (Eq. 3), or λ times the mean of its squares."""
        strength, mean = self.config.orthogonality, self.config.penalty == "mean"
        return (layer.penalty(strength, mean) for layer in composed_layers(module).values() if strength)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        network = self.factored(state, tier, personal, client)
        return loaded(self.device_network(state.architecture, tier), dense_state(network))


def _key(layer: str, weight: str) -> str:
    """Return the name of a weight in options and messages: the layer's name if it has no other weight."""
    return layer if weight == "weight" else f"{layer}.{weight}"


@once_per_network
def _shapes(architecture: Architecture, widths: tuple[float, ...], composed: Layers, pointwise: bool) -> Shapes:
    """Return layer → weight → its shape (T, S, …) at each of ``widths``, ascending; of recurrent weights, the shape of one gate."""
    shapes: Shapes = {}
    for width in sorted(set(widths)):
        network = architecture.skeleton(width)
        reasons = kept_layers(network) if composed == "all" else {}
        every = {name: {"weight": 1} for name, _ in weighted_layers(network) if name not in reasons} if composed == "all" else {}
        for name, weights in {**every, **gates_of(network, pointwise)}.items():
            for weight, gates in weights.items():
                outputs, *others = getattr(network.get_submodule(name), weight).shape
                shapes.setdefault(name, {}).setdefault(weight, []).append((outputs // gates, *others))
    return shapes


def _places(network: nn.Module, tier: Tier) -> dict[str, Place]:
    """Return name → place in the state: a basis has its own name, any other tensor ``<name>@<tier>``."""
    shared = {f"{name}.{basis_name(w)}" for name, layer in composed_layers(network).items() for w in layer.sizes}
    names = [name for name, tensor in network.state_dict().items() if tensor.is_floating_point()]
    return {name: Place(name if name in shared else f"{name}@{tier.label}", ()) for name in names}
