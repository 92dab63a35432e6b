"""Records of :func:`edgefl.inspect`: each layer of a network, what becomes of it in each tier, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edgefl.report.results import Result, Results

Form = Literal["dense", "factorized", "cut", "frozen", "absent"]


@dataclass(frozen=True)
class LayerAtTier:
    """One layer in the network of one tier.

    Attributes:
        form: "factorized" at ``rank``, "cut" to fewer channels, "frozen": not trained, "absent" from a shallow network, or "dense": as in
            the network itself.
        rank: of its factors, the largest if it has several weights; None unless it is factorized.
        channels: how many it reads and returns; None if it has no weight of two dimensions.
        macs_forward: of one sample.
        why: one or two words: why it has this form.
        reason: the same in a sentence.
    """

    tier: float
    form: Form
    rank: int | None
    channels: tuple[int, int] | None
    macs_forward: int
    parameter_bytes: int
    why: str = ""
    reason: str = ""


@dataclass(frozen=True)
class InspectedLayer(Result):
    """One layer of a network.

    Attributes:
        layer: its name; "" for parameters of the network itself.
        kind: conv, 1x1, depthwise, grouped, linear, recurrent, attention, norm, embedding, network, or the name of its class.
        shape: of its weight, or of its first parameter if it has none of that name.
        channels: as in :class:`LayerAtTier`.
        macs_forward: of one sample.
        tied_with: layers that return the same channels, so that all are cut together; known of networks that are cut by tracing.
    """

    layer: str
    kind: str
    shape: tuple[int, ...]
    channels: tuple[int, int] | None
    macs_forward: int
    parameter_bytes: int
    tied_with: tuple[str, ...]
    tiers: tuple[LayerAtTier, ...]


@dataclass(frozen=True)
class TierTotal:
    """All of one tier: figures of :func:`edgefl.profile`, and how many layers with a weight of two dimensions have each form."""

    tier: float
    params: int
    macs_forward: int
    macs_train_step: int
    training_memory_bytes: int
    uncounted_ops: tuple[str, ...]
    layers: Mapping[Form, int]


@dataclass(frozen=True)
class Inspection(Result):
    """The result of :func:`edgefl.inspect`.

    Attributes:
        method: None for the network as it is.
        batch_size: samples of a training step.
        layers: in the order of definition.
        notes: remarks on the rules, such as how to factorize layers that stay dense.
    """

    model: str
    method: str | None
    batch_size: int
    layers: tuple[InspectedLayer, ...]
    tiers: tuple[TierTotal, ...]
    notes: tuple[str, ...] = ()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per layer; InputError: pandas is not installed."""
        return Results(self.layers).to_pandas()
