"""PriSM: a tier is a keep ratio; every client trains its own draw of the principal kernels, at the first channels only."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.factor.kernels import (
    KernelLayer,
    Sampling,
    draw,
    effective_rank,
    importance,
    kernel_layer,
    kernel_modules,
    kernel_parameters,
)
from edgefl.factor.layers import frobenius_sq
from edgefl.factor.svd import Factors
from edgefl.factor.width import cut
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method, MethodConfig
from edgefl.methods.kernel_places import dense_name, gates_of, kernel_counts, matrices
from edgefl.methods.state import GlobalState, Tensors, shapes_of
from edgefl.models.base import Architecture, replace_layer
from edgefl.records import Place, Submodel, Tier, Update
from edgefl.registry import method
from edgefl.util.compute import in_parallel


class KernelConfig(MethodConfig):
    """Options of methods that train principal kernels.

    Attributes:
        frobenius_decay: λ of λ/2·‖Σ u′v′ᵀ‖²_F (Eq. 6; value of Table 10), in place of weight decay on the factors.
    """

    frobenius_decay: float = Field(2e-4, ge=0, allow_inf_nan=False)


class PriSMConfig(KernelConfig):
    """Options of PriSM.

    Attributes:
        sampling: a kernel's chance as a function of its singular value: "power" is the method (Eq. 2), the others its ablation.
        kappa: κ of σ^κ; None: the paper's 4 for keep ratios up to 0.2, 2.5 above (Table 10).
    """

    sampling: Sampling = "power"
    kappa: float | None = Field(None, ge=0, allow_inf_nan=False)


@method("prism")
class PriSM(Method):
    """W̄ = Σ σᵢuᵢvᵢᵀ, of whose N kernels a client gets r = ⌈c·N⌉, drawn without replacement with pᵢ ∝ σᵢ^κ afresh every round (Eq. 2).

    A layer is Conv_V, k×k from its input channels to the r kernels, then Conv_U, 1×1 to the first ⌈c·n⌉ outputs, which are the next
    layer's inputs: the client's network has the shapes of width c. A linear layer is the case k = 1; each gate of a recurrent layer has
    kernels of its own (Remark 3.1). The server averages every uᵢ and vᵢ over the Cᵢ clients that trained kernel i, restores what none of
    them had (ûᵢ, and vᵢ's other input channels), and adds the kernels up (Eq. 5); other kernels do not change. The next round decomposes
    the sum anew (orthogonal space refresh). c = 1 trains all kernels at all channels.

    1×1 and grouped convolutions, the stem, the classifier, embeddings, biases and the parameters of normalisation layers are leading
    slices, averaged entry by entry over the clients that have them. The paper shares no statistics: ``norm = "batch"`` is its activation
    normalisation, which has none.

    A deployed tier is the plain network of width c whose weights are the sums of the first r kernels, largest σ first; tier 1 is the
    server's dense model. If no client has all channels, that model's other channels move only through the vᵢ that they share.

    Differs from the paper: N = min(n, m·k²), where it assumes a tall W̄, so that r = ⌈c·n⌉ only there. With several tiers the entries of uᵢ
    and vᵢ are averaged over those of the Cᵢ clients that have them. Its κ for LSTMs is 2, which must be set.
    """

    config: PriSMConfig
    title: ClassVar[str] = "PriSM"
    paper: ClassVar[str] = "Niu et al., TMLR 2023, Overcoming Resource Constraints in Federated Learning"
    tier_meaning: ClassVar[str] = "keep ratio c: the share of principal kernels that a client is given, and of channels"
    travels: ClassVar[str] = (
        "both factors of the drawn kernels at the first channels, and leading slices of the dense rest, both ways"
    )
    default_tiers: ClassVar[tuple[float, ...]] = (1.0, 0.4, 0.2)
    per_client: ClassVar[bool] = True
    lacks: ClassVar[Mapping[Need, str]] = {
        "stale_updates": "the kernels of every step are a new decomposition: what an older one changed has no place in it",
        "fixed_coordinates": "a client draws other kernels of a new decomposition every round: remembered gradients and "
        "control variates would be of other coordinates",
    }

    def width(self, tier: Tier) -> float:
        """Return the share of channels that a client of ``tier`` has."""
        return tier.ratio

    def factorized(self, tier: Tier) -> bool:
        """Return whether a client of ``tier`` trains kernels, not dense layers."""
        return True

    def chosen(self, layer: KernelLayer, values: Tensor, tier: Tier, rng: np.random.Generator) -> Tensor:
        """Return one client's kernels of a layer with singular values ``values``: int64, ascending."""
        kappa = (4.0 if tier.ratio <= 0.2 else 2.5) if self.config.kappa is None else self.config.kappa
        return draw(layer.key, importance(values, self.config.sampling, kappa), layer.count, rng)

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer has kernels, or if a keep ratio leaves a layer too few or too many."""
        if not gates_of(architecture.skeleton()):
            raise ConfigError(
                f"{self.title} finds no layer with principal kernels: all are the stem, 1x1, grouped, or the classifier"
            )
        super().check(architecture, tiers, clients)

    def network(self, architecture: Architecture, tier: Tier) -> nn.Module:
        counts = kernel_counts(architecture, tier) if self.factorized(tier) else {}
        network = architecture.build(self.width(tier))
        for name, of in counts.items():
            replace_layer(network, name, kernel_layer(network.get_submodule(name), of))
        return network

    def deployed(self, architecture: Architecture, tier: Tier) -> nn.Module:
        return architecture.build(self.width(tier))

    def _kernel_layers(self, state: GlobalState, tier: Tier) -> tuple[KernelLayer, ...]:
        """Return the tier's matrices of kernels, in the order of the network."""

        def derive() -> tuple[KernelLayer, ...]:
            places = self._dense_places(state, tier)
            return tuple(
                layer
                for name, of in kernel_counts(state.architecture, tier).items()
                for weight, counts in of.items()
                for layer in matrices(name, weight, counts, places[f"{name}.{weight}"], state)
            )

        return state.once(f"kernels {tier.label}", derive) if self.factorized(tier) else ()

    def _dense_places(self, state: GlobalState, tier: Tier) -> dict[str, Place]:
        """Return the places of the plain network of the tier's width."""
        return state.slices(tier, lambda architecture, tier: shapes_of(architecture.skeleton(self.width(tier)).state_dict()))

    def _factors(self, state: GlobalState, layer: KernelLayer) -> Factors:
        """Return all kernels of a layer; all layers are decomposed at once per state: the orthogonal space refresh."""

        def derive() -> dict[str, Factors]:
            layers = {of.key: of for tier in state.tiers for of in self._kernel_layers(state, tier)}
            largest_first = sorted(layers.values(), key=lambda of: -math.prod(of.shape))
            return in_parallel({of.key: partial(of.decompose, state.tensors[of.target]) for of in largest_first})

        found = state.once("svd", derive)
        return found.get(layer.key) or state.once(f"svd {layer.key}", lambda: layer.decompose(state.tensors[layer.target]))

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return a fresh draw of kernels at the first channels, and leading slices of the rest.

        The place of a factor is the dense weight and a column of its kernels' numbers, which are no rows of the weight.
        """
        return self._cut(state, tier, lambda layer, values: self.chosen(layer, values, tier, rng))

    def _cut(self, state: GlobalState, tier: Tier, choose: Callable[[KernelLayer, Tensor], Tensor]) -> Submodel:
        shapes = state.once(f"shapes {tier.label}", lambda: self.shapes(state.architecture, tier))
        factors: dict[str, tuple[Tensor, Place]] = {}
        for layer in self._kernel_layers(state, tier):
            decomposed = self._factors(state, layer)
            kernels = choose(layer, decomposed.values)
            place = Place(layer.target, (kernels[:, None],))
            for name, factor in zip((layer.u, layer.v), layer.cut(decomposed, kernels), strict=True):
                factors[name] = factor.reshape(shapes[name]).contiguous(), place
        dense = self._dense_places(state, tier)
        places = {name: factors[name][1] if name in factors else dense[dense_name(name, dense)] for name in shapes}
        rest = cut(state.tensors, {name: place for name, place in places.items() if name not in factors})
        tensors = {name: factors[name][0] if name in factors else rest[name] for name in shapes}
        return Submodel(tier, tensors, partial(self.network, state.architecture, tier), places)

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Average every kernel over the clients that trained it, the rest entry by entry, and add the kernels up (Eq. 5)."""
        layers = {layer.key: layer for tier in state.tiers for layer in self._kernel_layers(state, tier)}
        decomposed = {key: self._factors(state, layer) for key, layer in layers.items()}
        kernels = {f"{key} u": factors.left for key, factors in decomposed.items()}
        kernels |= {f"{key} v": layers[key].right(factors) for key, factors in decomposed.items()}
        trained = {key: torch.zeros(factors.left.shape[1], dtype=torch.bool) for key, factors in decomposed.items()}
        targets = {layer.target for layer in layers.values()}
        dense = {name: tensor for name, tensor in state.tensors.items() if name not in targets}
        total = WeightedSum({**dense, **kernels})
        for update in self.checked(state, updates):
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
            of = trained[key]
            # W + Σ (ūᵢv̄ᵢᵀ − uᵢvᵢᵀ) over trained kernels is the sum of all, without rounding the others.
            before = decomposed[key].left[:, of].double() @ decomposed[key].right[of].double()
            after = means[f"{key} u"][:, of] @ means[f"{key} v"][of].flatten(1)
            part = tensors[layer.target][layer.span]
            part.copy_(part.double() + (after - before).view(layer.shape))
        return state.replace(tensors)

    def observe(self, state: GlobalState, sent: Sequence[Submodel]) -> dict[str, Any]:
        """Return each layer's effective rank (section 4.4.1) and how many clients drew each of its kernels (Figure 9)."""
        found: dict[str, Any] = {}
        layers = {layer.key: layer for tier in state.tiers for layer in self._kernel_layers(state, tier)}
        for key, layer in layers.items():
            values = self._factors(state, layer).values
            draws = torch.zeros(len(values), dtype=torch.int64)
            for submodel in sent:
                if layer.u in submodel.places:
                    draws[submodel.places[layer.u].index[0].flatten()] += 1  # type: ignore[union-attr]
            found[key] = {"effective_rank": round(effective_rank(values), 3), "draws": draws.tolist()}
        return {"kernels": found}

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the plain network of the tier's width with the sums of its first r kernels; at 1 the server's weights."""
        if tier.ratio >= 1:
            return self.factored(state, tier, personal, client)
        parts: dict[str, list[Tensor]] = {}
        for layer in self._kernel_layers(state, tier):
            first = torch.arange(layer.count)
            parts.setdefault(layer.target, []).append(layer.composed(self._factors(state, layer), first))
        return self._plain(state, tier, {name: torch.cat(of) for name, of in parts.items()})

    def _plain(self, state: GlobalState, tier: Tier, composed: Tensors) -> nn.Module:
        network = self.deployed(state.architecture, tier)
        network.load_state_dict({**cut(state.tensors, self._dense_places(state, tier)), **composed})
        return network.eval()

    def factored(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the network of the tier's width with its first r kernels; at 1 the server's weights."""
        if tier.ratio >= 1:
            return self._plain(state, tier, {})
        submodel = self._cut(state, tier, lambda layer, values: torch.arange(layer.count))
        network = submodel.build()
        network.load_state_dict(dict(submodel.tensors))
        return network.eval()

    def penalties(self, module: nn.Module) -> Iterable[Tensor]:
        """Return λ/2·‖Σ u′v′ᵀ‖²_F of each layer (Eq. 6)."""
        decay = self.config.frobenius_decay
        return (decay / 2 * frobenius_sq(layer) for layer in kernel_modules(module) if decay)

    def decayed(self, module: nn.Module) -> list[nn.Parameter]:
        """Return every parameter except the factors, which Eq. 6 regularises."""
        factors = kernel_parameters(module)
        return [p for p in module.parameters() if p not in factors]
