"""The optimizer of a training step."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class StepRule:
    """The optimizer of a step, and what becomes of a gradient before.

    Attributes:
        optimizer: ``momentum``, ``sgd`` or ``adam``.
        weight_decay, decayed: the coefficient, whose product with a parameter is added to its gradient; of which parameters (None: all).
        clip_norm: C; before decay, the gradient g of all parameters together becomes g · min(1, C / (‖g‖ + 1e-6)). None: it stays.
    """

    optimizer: Literal["momentum", "sgd", "adam"] = "sgd"
    weight_decay: float = 0.0
    decayed: Collection[str] | None = field(default=None)
    clip_norm: float | None = None
