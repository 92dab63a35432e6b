"""FlexLoRA: the server averages the products of clients' adapters, and truncates a decomposition of the mean to the rank of each tier."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from edgefl.factor.adapter import names_of
from edgefl.factor.layers import factor_weights, unrolled_factors
from edgefl.factor.svd import truncated, unroll
from edgefl.methods.adapters import Adapted, AdapterConfig
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.capabilities import Figures
from edgefl.methods.ranks import NEW_FACTORS
from edgefl.methods.state import GlobalState
from edgefl.records import Update
from edgefl.registry import method
from edgefl.util.compute import in_parallel

_NOISE = 1e-6
"""A singular value below this share of the largest is rounding of products in float32."""


@method("flexlora")
class FlexLoRA(Adapted, Figures):
    """ΔW = Σ nₖBₖAₖ / Σ nₖ = U Σ Vᵀ; a tier of rank r receives B = U[:, :r] Σ[:r], A = Vᵀ[:r].

    Client k has nₖ samples and the adapter BₖAₖ. This is FedHM's server step, on changes of a frozen network. The server stores one pair,
    of the largest rank: its first rows of A and first columns of B are the truncation at every smaller rank. Directions of the mean beyond
    this rank reach no client, as in the paper.

    The base is frozen and part of the application. Adapters are beside attention's projections to queries and values. If there are
    none, they are beside the layers that FedHM factorizes. Devices run the base with the adapters merged into it
    (``edgefl/methods/adapters.py``).

    Differs from the paper: a direction without energy keeps its row of A, with a column of zeros in B, as at the beginning. A decomposition
    leaves such rows undefined. They occur if only a few clients of small ranks take part. Clients of equal rank begin with the same
    adapter.
    """

    config: AdapterConfig
    title = "FlexLoRA"
    every_update = "the server multiplies each client's adapter: the product of sums is not the sum of products"
    paper = "Bai et al., NeurIPS 2024, arXiv 2402.11505"
    tier_meaning = "rank of the adapters: the share p of the option rank; the frozen base is the same in all tiers"
    lacks: ClassVar[Mapping[Need, str]] = {
        **NEW_FACTORS,
        "server_step": "every round decomposes the mean anew: a server's momentum or moments would belong to other coordinates",
    }
    contract_exceptions: ClassVar[Mapping[str, str]] = {
        "one full-tier client alone wins outright": "the server decomposes the client's product anew: other factors of the same product",
    }

    def aggregate(self, state: GlobalState, updates: Iterable[Update]) -> GlobalState:
        """Return the state with the decomposed mean of the products, and with the mean of the classifiers."""
        weights = {layer: state.tensors[f"{layer}.weight"] for layer in self.layers(state)}
        zeros = {layer: torch.zeros_like(unroll(weight)) for layer, weight in weights.items()}
        total, heads = WeightedSum(zeros), dict[str, Tensor]()
        for update in self.with_heads(state, updates, heads):
            for layer in weights:
                u, v = (update.tensors[name] for name in names_of(layer))
                total.add_product(layer, *unrolled_factors(u, v), float(update.samples))
        means = total.mean(zeros)
        pairs = in_parallel({layer: partial(self._decomposed, state, layer, mean) for layer, mean in means.items()})
        named = {name: tensor for layer, pair in pairs.items() for name, tensor in zip(names_of(layer), pair, strict=True)}
        return state.replace({**state.tensors, **heads, **named})

    def energy_bands(self, state: GlobalState) -> Mapping[str, Sequence[float]]:
        return self.pair_energies(state)

    def _decomposed(self, state: GlobalState, layer: str, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights (A, B) of ``layer`` for the unrolled mean (a × b) of the products."""
        before, _ = unrolled_factors(*(state.tensors[name] for name in names_of(layer)))
        rank = before.shape[1]
        factors = truncated(mean, [rank])
        values = factors.values[:rank]
        alive = values > _NOISE * values[0]
        roots = torch.where(alive, values, 1.0).sqrt().float()
        left = torch.where(alive, factors.left[:, :rank] / roots, before)
        right = torch.where(alive[:, None], factors.right[:rank] * roots[:, None], 0.0)
        return factor_weights(left, right, tuple(state.tensors[f"{layer}.weight"].shape))
