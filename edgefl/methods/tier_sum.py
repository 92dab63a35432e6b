"""The sum of a tier's updates: exact, so that updates can be added up anywhere, in any order and grouping."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edgefl.methods.state import Shape
from edgefl.methods.updates import check
from edgefl.records import Update
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
        if tensors:
            self.total.add(torch.cat([tensors[name].reshape(-1) for name in self.shapes]), weight)
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
            name: ExactSum([limb.view(shape) for limb in of], list(self.total.bounds))
            for (name, shape), of in zip(self.shapes.items(), limbs, strict=True)
        }
