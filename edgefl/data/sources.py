"""What a data set is: two splits of samples, and what a device must know to prepare its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.errors import DataError


@dataclass(frozen=True)
class Split:
    """Samples ``x`` (n, channels, height, width) float32, ready for a network, and labels ``y`` (n,) int64."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Dataset:
    """A data set for classification; its arrays are made read-only.

    Attributes:
        name, title: as registered, and as reports print it.
        train, test: the clients' samples and the held-out ones.
        class_names: one per label.
        preprocessing: how raw pixels become inputs, (pixel · scale − mean) / std: what a device has to do itself.
        default_model, default_local_epochs: what a run takes when it names none.

    Raises:
        DataError: shapes, types, labels or values are wrong.
    """

    name: str
    title: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    default_model: str
    default_local_epochs: int = 1

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            where = f"dataset {self.name}, {part}"
            if split.x.dtype != np.float32 or split.y.dtype != np.int64:
                raise DataError(f"{where}: expected float32 samples and int64 labels, got {split.x.dtype}, {split.y.dtype}")
            if len(split.x) != len(split.y) or not len(split.y):
                raise DataError(f"{where}: {len(split.x)} samples but {len(split.y)} labels")
            if split.y.min() < 0 or split.y.max() >= self.classes:
                raise DataError(f"{where}: labels {split.y.min()} to {split.y.max()}, expected 0 to {self.classes - 1}")
            if not np.isfinite(split.x).all():
                raise DataError(f"{where}: a sample holds NaN or infinity")
            split.x.setflags(write=False)
            split.y.setflags(write=False)

    @property
    def classes(self) -> int:
        """Number of labels."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """One sample's shape."""
        return self.train.x.shape[1:]
