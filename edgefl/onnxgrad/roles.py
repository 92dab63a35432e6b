"""Names of the inputs and outputs of training graphs, the tensors of the network behind them, and the optimizer. Imports no torch.

A tensor that a step changes is an input, and an output with ``.out`` appended to the name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OUT = ".out"
"""Suffix of the output with the new value of an input."""
LOSS, PREDICTION = "loss", "logits"
"""Outputs: the loss of a training graph, and the network's output of an inference graph."""
STEP_COUNT, LEARNING_RATE, BETA, SHARE = "t", "lr", "beta", "share"
"""Scalar inputs, float32: Adam's steps so far, learning rate, momentum or Adam's β₁, and the share of the batch's samples in a part."""
SEED = "seed"
"""Scalar input, float32: a whole number below 2²⁴ that decides which entries dropout drops. Each step returns its successor."""
STATES: Mapping[str, tuple[str, ...]] = {"sgd": (), "momentum": ("m",), "adam": ("m", "v")}
"""Optimizer → prefixes of the tensors that it stores for each parameter (``m``: momentum, ``v``: second moment)."""


def state_inputs(name: str, optimizer: str) -> tuple[str, ...]:
    """Return the inputs for the tensors that ``optimizer`` stores for a parameter.

    >>> state_inputs("fc.weight", "adam")
    ('m.fc.weight', 'v.fc.weight')
    """
    return tuple(f"{kind}.{name}" for kind in STATES[optimizer])


def sum_input(name: str) -> str:
    """Return the input for the sum of a parameter's gradients, for batches that are taken in parts."""
    return f"g.{name}"


@dataclass(frozen=True)
class Roles:
    """Maps the tensors of a network to the inputs of its training graphs.

    Attributes:
        trained: parameters that steps change: name in the network → input.
        statistics: running statistics that steps change: name in the network → input.
        frozen: tensors that steps only read: name in the network → input.
        batch: inputs whose first dimension is the batch, in the order of the loss's arguments; ``x.NAME`` of several in one argument.
        shared: inputs that are the same for all samples of a batch, such as a mask of labels.
    """

    trained: Mapping[str, str]
    statistics: Mapping[str, str] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    batch: tuple[str, ...] = ("x", "y")
    shared: tuple[str, ...] = ()

    @classmethod
    def of(cls, trained: Iterable[str], statistics: Iterable[str] = (), frozen: Iterable[str] = ()) -> Roles:
        """Return roles with the standard names of inputs: ``p.`` for trained tensors, ``s.`` for statistics, ``f.`` for frozen ones.

        >>> Roles.of(["fc.weight"], frozen=["mask"]).tensors
        {'fc.weight': 'p.fc.weight', 'mask': 'f.mask'}
        """
        return cls(
            {name: f"p.{name}" for name in trained},
            {name: f"s.{name}" for name in statistics},
            {name: f"f.{name}" for name in frozen},
        )

    @classmethod
    def read(cls, written: Mapping[str, Any]) -> Roles:
        """Return the roles with these fields, read from JSON, which has lists for tuples."""
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
        return cls(**fields)

    @property
    def tensors(self) -> dict[str, str]:
        """Every tensor of the network: name in the network → input."""
        return {**self.trained, **self.statistics, **self.frozen}


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
