"""label-flip: trains on wrong labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from edgefl.client.adversary import Adversary
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.registry import adversary


@adversary("label-flip", needs=("uploads", "labels"))
@dataclass(frozen=True)
class LabelFlip(Adversary):
    """Labels C − 1 − y of C classes instead of y (Fang et al. 2020), or those of a map (Tolpegin et al. 2020).

    Its goal: held-out samples are classified by the wrong labels.

    Attributes:
        labels: label → the label that takes its place, such as {7: 1}; the others stay. Empty: C − 1 − y.
    """

    labels: Mapping[int, int] = field(default_factory=dict)

    def check(self, data: Dataset) -> None:
        """Raise :class:`ConfigError` for labels that ``data`` does not have."""
        if wrong := sorted({label for label in (*self.labels, *self.labels.values()) if not 0 <= label < data.classes}):
            raise ConfigError(f"labels: {data.name} has labels 0 to {data.classes - 1}, got {wrong[0]}")

    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Split:
        """Return the samples with wrong labels."""
        return Split(own.x, self._flipped(own.y, classes))

    def goal(self, held_out: Split, classes: int) -> Split | None:
        """Return the samples whose labels it changes, with the wrong ones."""
        wanted = self._flipped(held_out.y, classes)
        changed = np.flatnonzero(wanted != held_out.y)
        return Split(held_out.taken(changed).x, wanted[changed])

    def _flipped(self, labels: np.ndarray, classes: int) -> np.ndarray:
        table = np.arange(classes) if self.labels else np.arange(classes)[::-1].copy()
        for label, other in self.labels.items():
            table[label] = other
        return table[labels]
