"""The sub-models that a method makes of a network, a ratio each, with their costs, and the largest one that fits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Literal

from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.methods.networks import skeleton
from edgefl.models.base import Architecture
from edgefl.planning.practice import Practice
from edgefl.planning.profile import cost_of
from edgefl.planning.spectral import Uses
from edgefl.records import Cost, Tier
from edgefl.registry import Options, methods

STEPS = 1000
"""Ratios are multiples of 1/1000, unless a method needs coarser ones."""


def largest_ratio(fits: Callable[[float], bool], parts: Callable[[float], Collection[str]], steps: int = STEPS) -> float | None:
    """Return the largest multiple of 1/``steps`` in (0, 1] that fits, or None if none does.

    Args:
        fits: whether a ratio fits. While a network only gains ``parts``, its needs grow with the ratio.
        parts: the names of the parameters at a ratio. Factors that give way to a dense layer are parts lost, and needs may fall: a layer
            with a stride, for one, can take fewer MACs dense. Each range of ratios without such a loss is searched by bisection.
        steps: how fine the ratios are.

    >>> largest_ratio(lambda ratio: ratio <= 0.4375, lambda ratio: ["weight"])
    0.437
    >>> largest_ratio(lambda ratio: ratio <= 0.3 or 0.5 <= ratio <= 0.7, lambda ratio: ["u", "v"] if ratio < 0.5 else ["weight"])
    0.7
    """
    if fits(1.0):
        return 1.0
    names = cache(lambda step: frozenset(parts(step / steps)))

    def losses(low: int, high: int) -> list[int]:
        if names(low) <= names(high):
            return []
        middle = (low + high) // 2
        return [high] if high - low == 1 else losses(low, middle) + losses(middle, high)

    starts = [1, *losses(1, steps - 1)]
    for low, high in reversed([*pairwise([*starts, steps])]):
        if fits(low / steps):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if fits(middle / steps) else (low, middle)
            return low / steps
    return None


def parts_of(method: Method, architecture: Architecture, ratio: float) -> set[str]:
    """Return the names of the parameters of a tier's network."""
    return {name for name, _ in skeleton(method, architecture, Tier(ratio)).named_parameters()}


@dataclass(frozen=True)
class SubModels:
    """The sub-models of a network; each is made and traced once.

    Attributes:
        sized: ratio → the method of a run with this one tier.
        cost: ratio → what the sub-model costs.
        training: how clients train, as far as it does not depend on the ratio.
    """

    architecture: Architecture
    sized: Callable[[float], Method]
    cost: Callable[[float], Cost]
    training: Training

    @property
    def method(self) -> Method:
        """The method of a run with the full model alone."""
        return self.sized(1.0)

    def largest(self, uses_of: Callable[[Cost], Uses]) -> float | None:
        """Return the largest ratio of which every need of ``uses_of`` is met; None if there is none."""
        return largest_ratio(
            lambda ratio: all(need <= have for need, have in uses_of(self.cost(ratio)).values()),
            lambda ratio: parts_of(self.sized(ratio), self.architecture, ratio),
        )


def sub_models(
    architecture: Architecture,
    method: str,
    options: Options | None,
    training: Training,
    codec: str,
    runtime: Literal["torch", "onnx"],
    recompute: bool,
) -> SubModels:
    """Return the sub-models of a method by name; InputError if the name or an option is wrong."""
    methods.check(method)
    sized = cache(lambda ratio: create(method, options, tiers=(ratio,)))
    training, cost_at = replace(training, clip_gradient=sized(1.0).clip_gradient), cost_of(runtime, recompute)
    cost = cache(lambda ratio: cost_at(Practice(sized(ratio), architecture, training), Tier(ratio), codec))
    return SubModels(architecture, sized, cost, training)
