"""The optimizer of a training step."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class StepRule:
    """The optimizer of a step. ``weight_decay`` · p is added to the gradient of parameters in ``decayed`` (names; None: all)."""

    optimizer: Literal["momentum", "sgd", "adam"] = "sgd"
    weight_decay: float = 0.0
    decayed: Collection[str] | None = field(default=None)
