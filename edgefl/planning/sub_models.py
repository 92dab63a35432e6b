"""The sub-models that a method makes of a network, a ratio each, with their costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.largest_ratio import largest_ratio, parts_of
from edgefl.planning.profile import cost_of
from edgefl.planning.spectral import Uses
from edgefl.records import Cost, Tier
from edgefl.registry import Options, methods


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
    cost = cache(lambda ratio: cost_at(sized(ratio), architecture, Tier(ratio), training, codec))
    return SubModels(architecture, sized, cost, training)
