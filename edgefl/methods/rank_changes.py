"""Aggregation of changes of factorized layers: what a client was not sent stays as it is."""

from collections.abc import Callable, Mapping
from functools import cached_property, partial

import torch
from torch import Tensor

from edgefl.factor.bands import banded
from edgefl.factor.layers import unrolled_factors
from edgefl.factor.svd import Factors, roll, unroll
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.ranks import Ranks
from edgefl.methods.state import Tensors
from edgefl.records import Tier, Update


class RankChanges:
    """Running sums of clients' changes Δ of factorized layers: ÛV̂ᵀ − UVᵀ, or Ŵ − W for a client that has the layer dense.

    A client received U and V (or W) and sent Û and V̂ (or Ŵ).

    Args:
        weights: layer → the server's present dense weight.
        factors: returns layer → decomposition of this weight. It is called only if a decomposition is needed.
        bands: whether every tier has sums of its own.
    """

    def __init__(self, weights: Tensors, factors: Callable[[], Mapping[str, Factors]], bands: bool) -> None:
        self._weights, self._factors, self._bands = weights, factors, bands
        self._sums: dict[Tier | None, tuple[WeightedSum, Ranks, list[float]]] = {}

    @cached_property
    def _zeros(self) -> Tensors:
        return {layer: torch.zeros_like(unroll(weight), dtype=torch.float64) for layer, weight in self._weights.items()}

    def add(self, update: Update, ranks: Ranks, weight: float) -> None:
        """Add ``weight`` times the change of a client that has the layers ``ranks`` in factors and the others dense."""
        key = update.tier if self._bands else None
        total, _, weights = self._sums.setdefault(key, (WeightedSum(self._zeros), ranks, []))
        weights.append(weight)
        for layer, dense in self._weights.items():
            if layer not in ranks:
                total.add(layer, unroll(update.tensors[f"{layer}.weight"] - dense), weight)
                continue
            names = f"{layer}.u.weight", f"{layer}.v.weight"
            left, right = unrolled_factors(*(update.tensors[name] for name in names))
            if update.sent:
                u, v = unrolled_factors(*(update.sent[name] for name in names))
            else:
                u, v = self._decomposed(layer).leading(ranks[layer])
            # ÛV̂ − UV = (Û − U)V̂ + U(V̂ − V), which is exactly zero without training.
            total.add_product(layer, torch.cat([left - u, u], 1), torch.cat([right, right - v]), weight)

    def applied(self) -> dict[str, Tensor]:
        """Return layer → new dense weight: W plus the mean change or, with bands, each band's mean over the clients that hold it."""
        changes: dict[str, dict[int, tuple[Tensor, float]]] = {layer: {} for layer in self._weights}
        for total, ranks, weights in self._sums.values():
            weight = sum(weights)
            for layer, mean in total.mean(self._zeros).items():
                rank = ranks.get(layer, min(mean.shape))
                before, of_before = changes[layer].get(rank, (0.0, 0.0))
                changes[layer][rank] = before + mean * weight, of_before + weight
        result = {}
        for layer, dense in self._weights.items():
            change = banded(changes[layer], partial(self._decomposed, layer))
            result[layer] = (dense.double() + roll(change, tuple(dense.shape))).to(dense.dtype)
        return result

    def _decomposed(self, layer: str) -> Factors:
        return self._factors()[layer]
