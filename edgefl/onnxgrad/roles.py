"""Which input of a training graph is what: the one place that knows how graphs call a network's tensors. No torch in the process.

An input that a step changes has an output of the same name with ``.out`` behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

OUT = ".out"
"""What the output of a changed tensor is called after its input."""
LOSS, PREDICTION = "loss", "logits"
"""Outputs: of a training graph the loss, of an inference graph what the network computes."""
STEP_COUNT, LEARNING_RATE, BETA, SHARE = "t", "lr", "beta", "share"
"""Scalar inputs: Adam's number of steps so far, two settings of the optimizer, and the share of a batch's samples that a part has."""
STATES: Mapping[str, tuple[str, ...]] = {"sgd": (), "momentum": ("m",), "adam": ("m", "v")}
"""Optimizer → prefixes of the tensors that it stores for each parameter."""


def state_inputs(name: str, optimizer: str) -> tuple[str, ...]:
    """Return the inputs of what ``optimizer`` stores for a parameter.

    >>> state_inputs("fc.weight", "adam")
    ('m.fc.weight', 'v.fc.weight')
    """
    return tuple(f"{kind}.{name}" for kind in STATES[optimizer])


def sum_input(name: str) -> str:
    """Return the input of a parameter's sum of gradients, for batches in parts."""
    return f"g.{name}"


@dataclass(frozen=True)
class Roles:
    """What the inputs of a training graph are.

    Attributes:
        trained: parameters that steps change: name in the network → input.
        statistics: running statistics that steps change: name in the network → input.
        frozen: tensors that steps only read: name in the network → input.
        batch: inputs whose first dimension is the batch, in the order of a step's arguments.
        shared: inputs that are the same for all samples of a batch, such as a mask of labels.
    """

    trained: Mapping[str, str]
    statistics: Mapping[str, str] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)
    batch: tuple[str, ...] = ("x", "y")
    shared: tuple[str, ...] = ()

    @classmethod
    def of(cls, trained: Iterable[str], statistics: Iterable[str] = (), frozen: Iterable[str] = ()) -> Roles:
        """Return the roles of a network's tensors, given by their names.

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
        """Return the roles whose fields were written as JSON."""
        fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
        return cls(**fields)

    @property
    def tensors(self) -> dict[str, str]:
        """Every tensor of the network: name in the network → input."""
        return {**self.trained, **self.statistics, **self.frozen}
