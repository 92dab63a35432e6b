"""Updates of clients: their checks, and their changes applied to another model."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from torch import Tensor

from edgefl.errors import AggregationError
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


def checked(
    updates: Iterable[Update], expected: Callable[[Update], Mapping[str, tuple[int, ...]]], classes: int | None = None
) -> Iterator[Update]:
    """Yield ``updates``, each after :func:`check` with ``expected(update)``; AggregationError if there is none."""
    count = 0
    for update in updates:
        check(update, expected(update), classes)
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
        got = ", ".join(map(str, labels)) or "none"
        raise AggregationError(f"{who}: labels: got {got}; expected labels from 0 to {classes - 1}, each once, ascending")
