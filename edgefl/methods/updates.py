"""Updates of clients: their checks, and their changes applied to another model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from edgefl.errors import AggregationError
from edgefl.methods.networks import MethodLike, upload_shapes
from edgefl.methods.state import GlobalState
from edgefl.records import Update
from edgefl.util.compute import is_finite


def check(update: Update, shapes: Mapping[str, tuple[int, ...]], classes: int | None = None) -> None:
    """Raise :class:`AggregationError`, as :meth:`Method.aggregate` says, unless the tensors of ``update`` have these ``shapes``.

    Labels are checked against the number of ``classes``; None: a method that does not use them.
    """
    who = f"client {update.client}, tier {update.tier.label}"
    if update.samples <= 0:
        raise AggregationError(f"{who}: an update needs a positive number of samples, got {update.samples}")
    if classes is not None and update.labels is not None:
        _check_labels(who, update.labels, classes)
    if missing := shapes.keys() ^ update.tensors.keys():
        raise AggregationError(f"{who}: tensors missing or not expected: {', '.join(sorted(missing))}")
    for name, tensor in update.tensors.items():
        if tuple(tensor.shape) != shapes[name]:
            raise AggregationError(f"{who}: {name} has shape {tuple(tensor.shape)}, expected {shapes[name]}")
        if not is_finite(tensor):
            raise AggregationError(f"{who}: {name} holds NaN or infinity")


def checked(method: MethodLike, state: GlobalState, updates: Iterable[Update]) -> Iterator[Update]:
    """Yield ``updates``, each after :func:`check` with the shapes that clients of its tier send; AggregationError if there is none."""
    shapes = {tier: upload_shapes(method, state.architecture, tier) for tier in state.tiers}
    count = 0
    for update in updates:
        check(update, shapes[update.tier], state.architecture.classes)
        count += 1
        yield update
    if not count:
        raise AggregationError("no update arrived: the state cannot be aggregated from nothing")


def moved(
    received: Mapping[str, Tensor], sent: Mapping[str, Tensor], now: Mapping[str, Tensor], weight: float
) -> dict[str, Tensor]:
    """Return ``now + weight · (received − sent)``, tensor by tensor: the client's change, applied to the present model.

    >>> import torch
    >>> moved({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, {"w": torch.tensor([10.0])}, 0.5)
    {'w': tensor([11.])}
    """
    return {name: now[name] + weight * (tensor - sent[name]) for name, tensor in received.items()}


def _check_labels(who: str, labels: tuple[int, ...], classes: int) -> None:
    if not labels or sorted({*labels} & {*range(classes)}) != [*labels]:
        listed = ", ".join(map(str, labels)) or "none"
        raise AggregationError(f"{who}: labels: got {listed}; expected labels from 0 to {classes - 1}, each once, ascending")
