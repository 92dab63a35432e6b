"""A client's masked update: its weighted change as integers that only the sum of its group gives away."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from edgefl.contrib.secagg.vector import Coding, packed

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Masking:
    """How one client masks its update.

    Attributes:
        coding: how values become integers.
        weight: the update's weight in the sum.
        by_label: names of the tensors whose rows count only for clients with the row's label.
        classes: number of labels; 0 if ``by_label`` is empty.
        masks: seeds of the client's masks; empty: its integers travel without masks.
    """

    coding: Coding
    weight: int
    by_label: tuple[str, ...] = ()
    classes: int = 0
    masks: bytes = field(default=b"", repr=False)

    def masked(
        self, update: Mapping[str, Tensor], sent: Mapping[str, Tensor], labels: Sequence[int] | None, rng: np.random.Generator
    ) -> tuple[bytes, int]:
        """Return the masked vector of an update, and how many of its values were clipped.

        The vector has weight · (update − sent) for every tensor in the order of their names, then the weight. Methods that average rows by
        label add the weight of every label. A tensor that was not sent counts as it is.

        Args:
            update: name → float32 tensor that the client would send.
            sent: name → what it received.
            labels: the labels that it has samples of; None: all.
            rng: draws the rounding.
        """
        present = range(self.classes) if labels is None else labels
        absent = sorted({*range(self.classes)} - {*present})
        changes = []
        for name, tensor in sorted(update.items()):
            change = tensor - sent[name] if name in sent and sent[name].shape == tensor.shape else tensor.clone()
            if name in self.by_label and absent:
                change[absent] = 0
            changes.append(change.reshape(-1))
        flat = torch.cat(changes).numpy() if changes else np.zeros(0, np.float32)
        values, clipped = self.coding.encoded(flat, self.weight, rng)
        counts = np.zeros(1 + self.classes, np.uint32)
        counts[[0, *(1 + label for label in present)]] = self.weight
        vector = np.concatenate([values, counts])
        if self.masks:
            from edgefl.contrib.secagg.member import masked  # only real masks need cryptography

            vector = masked(vector, self.masks)
        return packed(vector, self.coding.bits), clipped

    def row(self) -> tuple[object, ...]:
        """Return the JSON form."""
        coding = self.coding
        return (
            (coding.bits, coding.members, coding.bound, coding.most),
            self.weight,
            self.by_label,
            self.classes,
            self.masks.hex(),
        )

    @classmethod
    def of(cls, row: Sequence[object]) -> "Masking":
        """Return the masking of a JSON form; ValueError or TypeError if it is damaged."""
        coding, weight, by_label, classes, masks = row
        return cls(Coding(*coding), weight, tuple(by_label), classes, bytes.fromhex(masks))  # type: ignore[misc, arg-type]


def values_of(shapes: Iterable[tuple[int, ...]], classes: int) -> int:
    """Return how many values a masked vector has: those of all tensors, the weight, and a weight per label.

    >>> values_of([(2, 3), (2,)], 0), values_of([(2, 3), (2,)], 2)
    (9, 11)
    """
    return sum(torch.Size(shape).numel() for shape in shapes) + 1 + classes
