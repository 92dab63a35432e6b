"""PriSM: a tier is a keep ratio, and every client trains its own random draw of principal kernels, at the first channels only."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.kernels import KernelLayer, Sampling, draw, effective_rank, importance, kernel_layer, kernels_of
from edgefl.factor.svd import Factors
from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Composes, Figures, Phased
from edgefl.methods.kernel_places import dense_place, gates_of, kernel_counts, matrices
from edgefl.methods.momenta import momentum_name, parameter_of, with_momenta
from edgefl.methods.networks import submodel_of, upload_shapes
from edgefl.methods.penalties import FrobeniusConfig, FrobeniusDecay
from edgefl.methods.state import GlobalState, Shape, Tensors, shapes_of
from edgefl.methods.updates import checked
from edgefl.models.base import Architecture, loaded, replace_layer
from edgefl.records import Observed, Place, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.util.compute import in_parallel


class KernelConfig(FrobeniusConfig):
    """Options of methods that train principal kernels.

    Attributes:
        frobenius_decay: λ of λ/2·‖Σ u′v′ᵀ‖²_F (Eq. 6; the default is Table 10's), in place of weight decay on the factors.
    """

    frobenius_decay: float = Field(2e-4, ge=0, allow_inf_nan=False)


class PriSMConfig(KernelConfig):
    """Options of PriSM.

    Attributes:
        outputs: the share of a convolution's outputs that Conv_U computes at keep ratios below 1, in a network of full width; 0.4 in the
            authors' code. None: the keep ratio, in a network of that width, as in the paper.
        warmup_rounds: the number of rounds in which every client receives the kernels of largest σ, before kernels are drawn.
        warming_up: whether the present round is one of these. Set by the run.
        sampling: how a kernel's probability follows from its singular value. "power" is the method (Eq. 2), the others its ablation.
        kappa: κ of σ^κ. None: the paper's 4 for keep ratios up to 0.2, and 2.5 above (Table 10).
        handed_momentum: whether clients send their optimizer's momentum too, and begin with the server's average of it.
    """

    outputs: float | None = Field(None, gt=0, le=1)
    warmup_rounds: int = Field(0, ge=0)
    warming_up: bool = False
    sampling: Sampling = "power"
    kappa: float | None = Field(None, ge=0, allow_inf_nan=False)
    handed_momentum: bool = False

    @model_validator(mode="after")
    def _kappa_has_effect(self) -> Self:
        if self.kappa is not None and self.sampling != "power":
            raise ValueError(f"kappa: got {self.kappa:g}, expected none: sampling={self.sampling} does not use it")
        return self


@method("prism")
class PriSM(Phased, FrobeniusDecay, Composes, Figures):
    """W̄ = Σ σᵢuᵢvᵢᵀ: in every round a client draws r = ⌈c·N⌉ of the N kernels i, without replacement, with pᵢ ∝ σᵢ^κ (Eq. 1 and 2).

    A layer is two convolutions: Conv_V, k×k from its input channels to the r kernels, then Conv_U, 1×1 to the first ⌈c·n⌉ of n outputs.
    These are the next layer's inputs, so the client's network has the shapes of width c. A linear layer is the case k = 1; each gate of a
    recurrent layer has its own kernels (Remark 3.1). c = 1 trains all kernels at all channels.

    The server averages every uᵢ and vᵢ over the Cᵢ clients that trained kernel i. Entries that none of them had, at other outputs (ûᵢ in
    Eq. 5) and at other inputs, are those before the round. The server then adds the kernels up (Eq. 5). Other kernels do not change. The
    next round decomposes the sum anew (orthogonal space refresh).

    1×1 and grouped convolutions, the stem, the classifier, embeddings, biases and the parameters of normalisation layers are leading
    slices. Each entry is averaged over the clients that have it. The paper shares no statistics of normalisation; ``norm = "batch"`` is
    its activation normalisation, which stores none.

    A deployed tier is the plain network of width c, with the sums of the r kernels of largest σ as weights; tier 1 is the server's dense
    model. If no client has all channels, the other channels of that model change only through the vᵢ that they share.

    The paper's Table 1 counts the small network above. The published code trains a wider one (its version of September 2022 did not),
    and draws kernels by softmax of σ, or uniformly. At every keep ratio, its Conv_U computes ⌈0.4·n⌉ outputs and Conv_V reads all
    inputs. Stem, 1×1 convolutions, norms and classifier have their full size. ``outputs = 0.4`` is that network. Its weights and
    products are small: ⌈0.4·n⌉ × r and r × m·k². Its maps are not: norm, ReLU and the next layers have n channels, and those without
    kernels contain only the bias. On ResNet-18 at c = 0.2, it has 21 % of the full network's parameters, 22 % of its MACs and 110 % of
    its activations. The small network has 4.6, 4.7 and 32 %. With this option, linear and recurrent layers compute all outputs, and a
    tier below 1 is deployed in factors.

    Differs from the paper: N = min(n, m·k²); the paper assumes N = n, so that r = ⌈c·n⌉. With several tiers the entries of uᵢ and vᵢ are
    averaged over those of the Cᵢ clients that have them. Its κ for LSTMs, 2, must be set as an option. The authors' code also clips
    gradients to norm 5, as ``clip_gradient = 5`` does. It passes the averaged momentum on to the next round, as ``handed_momentum`` does:
    that of the i-th kernel to the i-th kernel of the new decomposition, although this is another vector. A client of theirs has none in
    the first round that it takes part in; here all begin with the server's. Their code also lets masked outputs learn for one step, and
    reports the best round on test data. edgefl does not.
    """

    config: PriSMConfig
    title = "PriSM"
    weighs_samples = False
    paper = "Niu et al., TMLR 2023, Overcoming Resource Constraints in Federated Learning"
    tier_meaning = "keep ratio c: the share of principal kernels that a client is given, and of channels"
    travels = "both factors of the drawn kernels at the first channels, and leading slices of the dense rest, both ways"
    default_tiers = (1.0, 0.4, 0.2)
    per_client = True
    LACKS: ClassVar[Mapping[Need, str]] = {
        "tier_means": "clients of a tier train other kernels each, drawn at random",
        "stale_updates": "every step decomposes the weights again, so an update of older kernels does not match",
        "shared_coordinates": "every client draws kernels of its own: tensors of one name hold different kernels",
        "fixed_coordinates": "a client draws other kernels of a new decomposition every round: remembered gradients and "
        "control variates would belong to other coordinates",
    }

    @property
    def lacks(self) -> Mapping[Need, str]:
        handed = "handed_momentum hands the momentum of SGD in torch on to the next round"
        return {**self.LACKS, "fresh_momentum": handed} if self.hands_momentum else self.LACKS

    def width(self, tier: Tier) -> float:
        """Return the share of channels that a client of ``tier`` has."""
        return tier.ratio if self.config.outputs is None else 1.0

    def outputs(self, tier: Tier) -> float:
        """Return the share of these channels that Conv_U of a client of ``tier`` computes."""
        return 1.0 if self.config.outputs is None or tier.ratio >= 1 else self.config.outputs

    @property
    def hands_momentum(self) -> bool:
        """Whether clients hand their momentum on."""
        return self.config.handed_momentum

    def factorized(self, tier: Tier) -> bool:
        """Return whether a client of ``tier`` trains kernels, not dense layers."""
        return True

    def chosen(self, layer: KernelLayer, values: Tensor, tier: Tier, rng: np.random.Generator) -> Tensor:
        """Return the numbers of one client's kernels of a layer with singular values ``values`` (N,): (r,) int64, ascending."""
        if self.config.warming_up:
            return torch.arange(layer.count)
        kappa = (4.0 if tier.ratio <= 0.2 else 2.5) if self.config.kappa is None else self.config.kappa
        return draw(layer.key, importance(values, self.config.sampling, kappa), layer.count, rng)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer has principal kernels, or if a keep ratio leaves a layer none or too many."""
        if not gates_of(architecture.skeleton()):
            others = "all are the stem, 1x1, grouped, the classifier, or kept dense"
            raise ConfigError(f"{self.title} finds no layer with principal kernels: {others}")
        super().check(architecture, tiers, clients)

    def init(self, architecture: Architecture, tiers: tuple[Tier, ...], rng: np.random.Generator) -> GlobalState:
        """Return the initial weights of the dense network, and with ``handed_momentum`` a momentum of 0 for each of its kernels."""
        state = super().init(architecture, tiers, rng)
        return state.replace({**state.tensors, **self._first_momenta(state)}) if self.hands_momentum else state

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        network = self._in_kernels(architecture, tier)
        return with_momenta(network) if self.hands_momentum else network

    def _in_kernels(self, architecture: Architecture, tier: Tier) -> nn.Module:
        counts = kernel_counts(architecture, tier) if self.factorized(tier) else {}
        network = architecture.build(self.width(tier))
        for name, weights in counts.items():
            replace_layer(network, name, kernel_layer(network.get_submodule(name), weights, self.outputs(tier)))
        return network

    def device_network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return self._in_kernels(architecture, tier) if self._deploys_factors(tier) else architecture.build(self.width(tier))

    def _deploys_factors(self, tier: Tier) -> bool:
        return self.config.outputs is not None and tier.ratio < 1

    def advance(self, state: GlobalState, round_: int, rng: np.random.Generator) -> tuple[Method, GlobalState]:
        """Return the method with the option ``warming_up`` of round ``round_``."""
        warming_up = round_ <= self.config.warmup_rounds
        if warming_up == self.config.warming_up:
            return self, state
        return self.with_options(warming_up=warming_up), state

    def _kernel_layers(self, state: GlobalState, tier: Tier) -> tuple[KernelLayer, ...]:
        """Return the tier's matrices that consist of kernels, in the order of the network; cached."""

        def derive() -> tuple[KernelLayer, ...]:
            places = self._dense_places(state, tier)
            return tuple(
                layer
                for name, weights in kernel_counts(state.architecture, tier).items()
                for weight, counts in weights.items()
                for layer in matrices(name, weight, counts, places[f"{name}.{weight}"], self.outputs(tier), state)
            )

        return state.once(f"kernels {tier.label}", derive) if self.factorized(tier) else ()

    def _dense_places(self, state: GlobalState, tier: Tier) -> dict[str, Place]:
        """Return name → place of the plain network of the tier's width."""
        width = self.width(tier)
        return state.slices(tier, lambda architecture, tier: shapes_of(architecture.skeleton(width).state_dict()), width)

    def _factors(self, state: GlobalState, layer: KernelLayer) -> Factors:
        """Return all N kernels of a layer. The first call decomposes all layers of this state (orthogonal space refresh)."""

        def derive() -> dict[str, Factors]:
            layers = {each.key: each for tier in state.tiers for each in self._kernel_layers(state, tier)}
            largest_first = sorted(layers.values(), key=lambda each: -math.prod(each.shape))
            return in_parallel({each.key: partial(each.decompose, state.tensors[each.target]) for each in largest_first})

        factors = state.once("svd", derive)
        return factors.get(layer.key) or state.once(f"svd {layer.key}", lambda: layer.decompose(state.tensors[layer.target]))

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return a new draw of kernels at the first channels, and leading slices of all other tensors.

        The place of a factor has the name of the dense weight, and as index a column (r, 1) with the numbers of its kernels.
        """
        return self._cut(state, tier, lambda layer, values: self.chosen(layer, values, tier, rng))

    def _cut(self, state: GlobalState, tier: Tier, choose: Callable[[KernelLayer, Tensor], Tensor]) -> Submodel:
        """Return the sub-model with the kernels ``choose(layer, singular values)`` of each layer."""
        shapes = state.once(f"shapes {tier.label}", lambda: upload_shapes(self, state.architecture, tier))
        factors: dict[str, Tensor] = {}
        places: dict[str, Place] = {}
        for layer in self._kernel_layers(state, tier):
            decomposed = self._factors(state, layer)
            kernels = choose(layer, decomposed.values)
            indices = layer.of_left(kernels), layer.of_right(kernels)
            for name, factor, all_of, index in zip(
                (layer.u, layer.v), layer.cut(decomposed, kernels), "uv", indices, strict=True
            ):
                factors[name] = factor.reshape(shapes[name]).contiguous()
                places[name] = Place(layer.target, (kernels[:, None],))
                places[momentum_name(name)] = Place(momentum_name(f"{layer.key}.{all_of}"), index)
        dense = self._dense_places(state, tier)
        places = {name: places[name] if name in places else dense_place(name, dense) for name in shapes}
        rest = cut(state.tensors, {name: place for name, place in places.items() if name not in factors})
        tensors = {name: factors[name] if name in factors else rest[name] for name in shapes}
        return submodel_of(self, state, tier, tensors, places)

    def _first_momenta(self, state: GlobalState) -> dict[str, Tensor]:
        """Return the momentum of every kernel, of the shape of all u (n, N, …) and all v (N, m, …), and of every dense parameter."""
        layers = {layer.key: (layer, tier) for tier in state.tiers for layer in self._kernel_layers(state, tier)}
        shapes: dict[str, Shape] = {}
        for key, (layer, tier) in layers.items():
            count, tail = kernels_of(layer.shape), upload_shapes(self, state.architecture, tier)[layer.u][2:]
            shapes |= {f"{key}.u": (layer.shape[0], count, *tail), f"{key}.v": (count, *layer.shape[1:])}
        targets = {layer.target for layer, _ in layers.values()}
        dense = state.architecture.skeleton().named_parameters()
        shapes |= {name: tuple(parameter.shape) for name, parameter in dense if name not in targets}
        return {momentum_name(name): torch.zeros(shape) for name, shape in shapes.items()}

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the sums of kernels, each averaged over the clients that trained it (Eq. 5), and entry-wise means of other tensors."""
        layers = {layer.key: layer for tier in state.tiers for layer in self._kernel_layers(state, tier)}
        decomposed = {key: self._factors(state, layer) for key, layer in layers.items()}
        kernels = {f"{key} u": factors.left for key, factors in decomposed.items()}
        kernels |= {f"{key} v": layers[key].right(factors) for key, factors in decomposed.items()}
        trained = {key: torch.zeros(factors.left.shape[1], dtype=torch.bool) for key, factors in decomposed.items()}
        targets = {layer.target for layer in layers.values()}
        dense = {name: tensor for name, tensor in state.tensors.items() if name not in targets}
        total = WeightedSum({**dense, **kernels})
        for update in checked(self, state, updates):
            rest = dict(update.tensors)
            for layer in self._kernel_layers(state, update.tier):
                drawn = update.places[layer.u].index[0].flatten()  # type: ignore[union-attr]
                total.add(f"{layer.key} u", rest.pop(layer.u).flatten(1), 1.0, layer.of_left(drawn))
                total.add(f"{layer.key} v", rest.pop(layer.v), 1.0, layer.of_right(drawn))
                trained[layer.key][drawn] = True
            for name, tensor in rest.items():
                total.add(update.places[name].target, tensor, 1.0, update.places[name].index)
        means = total.mean({**dense, **{name: factor.double() for name, factor in kernels.items()}})
        tensors = {name: means[name] if name in dense else tensor.clone() for name, tensor in state.tensors.items()}
        for key, layer in layers.items():
            mask = trained[key]
            # W + Σ (ūᵢv̄ᵢᵀ − uᵢvᵢᵀ) over trained kernels is the sum of all kernels, and adds no rounding to the others.
            before = decomposed[key].left[:, mask].double() @ decomposed[key].right[mask].double()
            after = means[f"{key} u"][:, mask] @ means[f"{key} v"][mask].flatten(1)
            part = tensors[layer.target][layer.span]
            part.copy_(part.double() + (after - before).view(layer.shape))
        return state.replace(tensors)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> Observed:
        """Return each layer's effective rank (section 4.4.1) and how many clients drew each of its kernels (Figure 9).

        Also what :meth:`Figures.observe` returns.
        """
        kernels = {}
        layers = {layer.key: layer for tier in state.tiers for layer in self._kernel_layers(state, tier)}
        for key, layer in layers.items():
            values = self._factors(state, layer).values
            draws = torch.zeros(len(values), dtype=torch.int64)
            for submodel in sent:
                if layer.u in submodel.places:
                    draws[submodel.places[layer.u].index[0].flatten()] += 1  # type: ignore[union-attr]
            kernels[key] = {"effective_rank": round(effective_rank(values), 3), "draws": draws.tolist()}
        return {"kernels": kernels, **super().observe(state, sent)}

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the plain network of the tier's width with the sums of its r kernels of largest σ; at c = 1 the server's weights.

        With the option ``outputs``, the kernels of a smaller tier remain in factors.
        """
        if tier.ratio >= 1 or self._deploys_factors(tier):
            return self.factored(state, tier, personal, client)
        parts: dict[str, list[Tensor]] = {}
        for layer in self._kernel_layers(state, tier):
            first = torch.arange(layer.count)
            parts.setdefault(layer.target, []).append(layer.composed(self._factors(state, layer), first))
        return self._plain(state, tier, {name: torch.cat(gates) for name, gates in parts.items()})

    def _plain(self, state: GlobalState, tier: Tier, composed: Tensors) -> nn.Module:
        tensors = {**cut(state.tensors, self._dense_places(state, tier)), **composed}
        return loaded(self.device_network(state.architecture, tier), tensors)

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network of the tier's width with its r kernels of largest σ in factors; at c = 1 the server's weights."""
        if tier.ratio >= 1:
            return self._plain(state, tier, {})
        first = self._cut(state, tier, lambda layer, values: torch.arange(layer.count)).tensors
        tensors = {name: tensor for name, tensor in first.items() if parameter_of(name) == name}
        return loaded(self._in_kernels(state.architecture, tier), tensors)
