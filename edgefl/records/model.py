"""Tiers, minibatches, sub-models and updates: what methods, clients and the server exchange as tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

Index = tuple["slice | Tensor", ...]
"""Which entries of a tensor: a slice, or int64 positions, for each of its dimensions."""


@dataclass(frozen=True)
class Batch:
    """One minibatch.

    Attributes:
        x: samples, (batch, …) float32 or int64; of several inputs, name → such a tensor.
        y: labels, (batch,) int64, or targets of a regression, (batch, …) float32.
        present: bool (classes,), true for the labels that the client has samples of; None without a client.
        draw: uniform in [0, 1), one for all micro-batches of a step: decides what a method chooses at random in every step. None, while
            costs are counted, stands for the most expensive choice.
        loss: the run's own loss, (outputs, y) → scalar; None: the mean cross-entropy.
    """

    x: Tensor | Mapping[str, Tensor]
    y: Tensor
    present: Tensor | None = None
    draw: float | None = None
    loss: Callable[[Any, Tensor], Tensor] | None = None


@dataclass(frozen=True, order=True)
class Tier:
    """A capacity level of the global model: ``ratio`` in (0, 1] is the method's own measure of size (rank ratio, width, keep ratio).

    >>> Tier(0.25).label, Tier(1.0).label
    ('0.25', '1')
    """

    ratio: float

    @property
    def label(self) -> str:
        """The ratio with at most six significant digits: the name of the tier's folder in a bundle, and its heading in tables."""
        return f"{self.ratio:g}"

    @property
    def number(self) -> int | float:
        """The ratio as JSON writes it: ``1`` rather than ``1.0``."""
        return int(self.ratio) if self.ratio == int(self.ratio) else self.ratio


@dataclass(frozen=True)
class Place:
    """Which entries of the server's state a local tensor stands for.

    Attributes:
        target: name of a tensor in the server's state.
        index: entries of that tensor, never a mask.
        client: the client whose own tensor it is; None: the tensor belongs to the global model or to the model of a cluster.
    """

    target: str
    index: Index
    client: int | None = None


@dataclass(frozen=True)
class Submodel:
    """The model that a client of one tier receives: tensors of the tier's own small shapes, and the network they belong to.

    Attributes:
        tensors: name → tensor, in the order of the network's ``state_dict``; only these travel.
        build: returns the tier's network with arbitrary weights; ``tensors`` are loaded into it.
        places: name → entries of the server's state that the tensor stands for.
    """

    tier: Tier
    tensors: Mapping[str, Tensor]
    build: Callable[[], nn.Module]
    places: Mapping[str, Place]


@dataclass(frozen=True)
class Update:
    """A client's decoded update as the server aggregates it.

    Attributes:
        client: the client's number.
        tier: the tier that it trained.
        tensors: float32, of the tier's own shapes.
        places: see :class:`Submodel`.
        samples: how many training samples the client has.
        labels: the labels that it has samples of, ascending; None: not known. Like ``samples`` it is metadata of the message, which no
            count of bytes includes.
        sent: the tensors that the client was sent, by name, as far as the method needs them and the server's state has others now.
        start: the tensors that the client was sent, by name, for the stages that it passes.
        payload: the encoded update until a stage decodes it.
        figures: what the client reports beside the update, by name.
        folded: whether it is part of a sum already, so that it has no tensors here.
    """

    client: int
    tier: Tier
    tensors: Mapping[str, Tensor]
    places: Mapping[str, Place]
    samples: int
    labels: tuple[int, ...] | None = None
    sent: Mapping[str, Tensor] = field(default_factory=dict)
    start: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    payload: bytes = field(default=b"", repr=False)
    figures: Mapping[str, float] = field(default_factory=dict)
    folded: bool = False
