"""The sum of a tier's updates: exact, so that updates can be added up anywhere, in any order and grouping."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from edgefl.methods.averaging import WeightedSum
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.capabilities import ByLabel, Distils, label_rows
from edgefl.methods.networks import upload_shapes
from edgefl.methods.state import GlobalState, Shape
from edgefl.methods.updates import check
from edgefl.models.base import Architecture
from edgefl.records import Place, Tier, Update
from edgefl.util.exact_sum import ExactSum


@dataclass
class TierSum:
    """Σ weight · tensors over clients that all received the same sub-model.

    Attributes:
        shapes: name → shape of the tensors that a client sends.
        classes: how many labels there are.
        by_label: names of those tensors whose rows count only for clients with the row's label.
        total: the sum of all tensors, one after the other in the order of ``shapes``.
        weight: Σ weight, 0 before the first update.
        label_weights: label → Σ weight of the clients that have it; empty if ``by_label`` is.

    >>> from edgefl.records import Tier
    >>> one = TierSum.of({"fc.bias": (2,)}, frozenset(["fc.bias"]), 2)
    >>> one.add(Update(7, Tier(1.0), {"fc.bias": torch.tensor([5.0, 6.0])}, {}, 10, labels=(1,)), 10)
    >>> one.weight, one.label_weights, one.parts()["fc.bias"].value().tolist()
    (10, [0, 10], [0.0, 60.0])
    """

    shapes: Mapping[str, Shape]
    classes: int
    by_label: frozenset[str]
    total: ExactSum
    label_weights: list[int]
    weight: int = 0

    @classmethod
    def of(cls, shapes: Mapping[str, Shape], by_label: frozenset[str], classes: int) -> "TierSum":
        """Return the sum of no updates."""
        values = sum(torch.Size(shape).numel() for shape in shapes.values())
        return cls(shapes, classes, by_label, ExactSum.zeros((values,)), [0] * classes if by_label else [])

    def add(self, update: Update, weight: int) -> None:
        """Add ``weight`` times the tensors of an update; AggregationError as in :meth:`Method.aggregate`."""
        check(update, self.shapes, self.classes)
        rows = range(len(self.label_weights)) if update.labels is None else update.labels
        tensors = dict(update.tensors)
        if len(rows) < len(self.label_weights):
            absent = sorted({*range(len(self.label_weights))} - {*rows})
            for name in self.by_label:
                tensors[name] = tensors[name].clone()
                tensors[name][absent] = 0
        self.total.add_parts([tensors[name] for name in self.shapes], weight)
        self.weight += weight
        for label in rows if self.by_label else ():
            self.label_weights[label] += weight

    def merge(self, other: "TierSum") -> None:
        """Add a sum of other updates of the same tier."""
        self.total.merge(other.total)
        self.weight += other.weight
        self.label_weights = [own + more for own, more in zip(self.label_weights, other.label_weights, strict=True)]

    def parts(self) -> dict[str, ExactSum]:
        """Return name → sum of that tensor, as views of ``total``, which becomes invalid once they are changed."""
        counts = [torch.Size(shape).numel() for shape in self.shapes.values()]
        limbs = zip(*(limb.split(counts) for limb in self.total.limbs), strict=True)
        return {
            name: ExactSum([limb.view(shape) for limb in parts], list(self.total.bounds))
            for (name, shape), parts in zip(self.shapes.items(), limbs, strict=True)
        }


def folds(method: Method) -> bool:
    """Whether the server needs only the sum of each tier's updates, so that they can be added up where clients train.

    True if the method averages entries as :meth:`Method.aggregate` does by default, and all clients of a tier receive the same sub-model.
    A method with :meth:`ByLabel.label_rows` must also inherit :meth:`Method.submodel`, in which tensors have the names of the state's. One
    that :class:`Distils` needs single updates.
    """
    kind = type(method)
    averages = kind.aggregate in (Method.aggregate, ByLabel.aggregate) and not isinstance(method, Distils)
    same_names = kind.submodel is Method.submodel or not isinstance(method, ByLabel)
    return averages and same_names and not method.per_client


def gaps(method: Method) -> Mapping[Need, str]:
    """Return capability → reason: those that the method :attr:`~Method.lacks`, and ``tier_sums`` unless it :func:`folds`."""
    if folds(method):
        return method.lacks
    whose = "clients of one tier receive sub-models of their own, whose tensors do not add up"
    return {**method.lacks, "tier_sums": whose if method.per_client else method.every_update}


def tier_sum(method: Method, architecture: Architecture, tier: Tier) -> TierSum:
    """Return an empty sum, to which updates of ``tier`` can be added."""
    shapes = upload_shapes(method, architecture, tier)
    return TierSum.of(shapes, label_rows(method, architecture) & shapes.keys(), architecture.classes)


def finish(state: GlobalState, sums: Iterable[tuple[Mapping[str, Place], TierSum]]) -> GlobalState:
    """Return the state that a method that :func:`folds` would aggregate from the same updates, bit for bit.

    ``sums`` has for each tier the places of its tensors, and the sum of its updates, which must not be used afterwards.
    """
    floats = {name: tensor for name, tensor in state.tensors.items() if tensor.is_floating_point()}
    total = WeightedSum(floats)
    for places, summed in sums:
        for name, part in summed.parts().items():
            rows = summed.label_weights if name in summed.by_label else None
            total.merge(places[name].target, part, summed.weight, places[name].index, rows)
    return state.replace({**state.tensors, **total.mean(floats)})
