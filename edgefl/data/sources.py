"""A data set: training and held-out samples, images perhaps with one byte per pixel, and how a device prepares its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from edgefl.errors import DataError

_AT_ONCE = 128  # images per block, whose intermediate results fit a processor's cache


@dataclass(frozen=True, eq=False)
class Pixels:
    """Images ``raw`` (n, channels, height, width) uint8. An index returns (raw / 255 − mean) / std as a new float32 array.

    This needs a quarter of the memory of float32. An image has the same bits in an index of any number of images.

    >>> images = Pixels(np.array([[[[0, 255]]], [[[51, 0]]]], np.uint8), mean=0.5, std=0.25)
    >>> images.shape, images.dtype.name, images[1:].tolist(), len(np.asarray(images))
    ((2, 1, 1, 2), 'float32', [[[[-1.2000000476837158, -2.0]]]], 2)
    """

    raw: np.ndarray
    mean: float
    std: float

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all images, (n, channels, height, width)."""
        return self.raw.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions, 4."""
        return self.raw.ndim

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: Any) -> np.ndarray:
        raw = self.raw[index]
        taken = np.empty(raw.shape, np.float32)
        for start in range(0, len(raw), _AT_ONCE):
            block = slice(start, start + _AT_ONCE)
            part: np.ndarray = taken[block]
            np.divide(raw[block], np.float32(255.0), out=part, dtype=np.float32)
            np.subtract(part, np.float32(self.mean), out=part)
            np.divide(part, np.float32(self.std), out=part)
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


_SPLITS, _GROUPS = ("train", "test"), ("train_owner", "test_owner", "train_domain", "test_domain")


@dataclass(frozen=True)
class Split:
    """Samples ``x``, (n, channels, height, width) float32 or token ids (n, length) int64, and labels ``y``, (n,) int64.

    Instead of labels, ``y`` may be the targets of a regression, (n, …) float32.
    """

    x: np.ndarray | Pixels
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def at(self, chosen: np.ndarray) -> "Split":
        """Return a copy of the samples with the numbers ``chosen`` (k,) int64; pixels keep one byte each."""
        x = self.x
        return Split(Pixels(x.raw[chosen], x.mean, x.std) if isinstance(x, Pixels) else x[chosen], self.y[chosen])


@dataclass(frozen=True)
class Dataset:
    """A data set for classification or regression. Its arrays become read-only. DataError if shapes, types, labels or values are wrong.

    Attributes:
        name, title: the registered name, and the name in reports.
        train, test: the clients' samples, and the held-out ones.
        class_names: one per label; none: ``y`` are float32 targets.
        preprocessing: how a device prepares its samples: (pixel · scale − mean) / std, or characters as ids.
        default_model, default_local_epochs: for runs that name none.
        vocabulary: the number of different token ids; 0 if samples are not token ids.
        train_owner, test_owner: (n,) int64, the number of each sample's owner, for the partition ``natural``; None without owners.
        train_domain, test_domain: (n,) int64, the position of each sample's domain in ``domain_names``; None with a single domain.
        domain_names: one per domain; a client belongs to one domain.
    """

    name: str
    title: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    preprocessing: dict[str, Any]
    default_model: str
    default_local_epochs: int = 1
    vocabulary: int = 0
    train_owner: np.ndarray | None = None
    test_owner: np.ndarray | None = None
    train_domain: np.ndarray | None = None
    test_domain: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            where = f"dataset {self.name}, {part}"
            if split.x.dtype not in (np.float32, np.int64) or split.y.dtype != (np.int64 if self.classes else np.float32):
                kinds = f"{'int64 labels' if self.classes else 'float32 targets'}, got {split.x.dtype}, {split.y.dtype}"
                raise DataError(f"{where}: expected float32 samples or int64 token ids, and {kinds}")
            if len(split.x) != len(split.y) or not len(split.y):
                raise DataError(f"{where}: {len(split.x)} samples but {len(split.y)} labels")
            if not self.classes and not np.isfinite(split.y).all():
                raise DataError(f"{where}: a target is NaN or infinity")
            if self.classes and (split.y.min() < 0 or split.y.max() >= self.classes):
                raise DataError(f"{where}: labels {split.y.min()} to {split.y.max()}, expected 0 to {self.classes - 1}")
            if isinstance(split.x, np.ndarray):
                self._check_values(where, split.x)
            (split.x.raw if isinstance(split.x, Pixels) else split.x).setflags(write=False)
            split.y.setflags(write=False)
        if self.train.y.shape[1:] != self.test.y.shape[1:]:
            raise DataError(
                f"dataset {self.name}: training targets are {self.train.y.shape[1:]}, held-out ones {self.test.y.shape[1:]}"
            )
        if (self.train.x.shape[1:], self.train.x.dtype) != (self.test.x.shape[1:], self.test.x.dtype):
            shapes = [f"{split.x.dtype} {split.x.shape[1:]}" for split in (self.train, self.test)]
            raise DataError(f"dataset {self.name}: training samples are {shapes[0]}, held-out ones {shapes[1]}")
        self._check_groups("owner", self.train_owner, self.test_owner)
        self._check_groups("domain", self.train_domain, self.test_domain)
        if (self.train_domain is not None) != bool(self.domain_names):
            raise DataError(f"dataset {self.name}: domains and domain_names are given together or not at all")
        if self.train_domain is not None and not np.array_equal(np.unique(self.train_domain), np.arange(len(self.domain_names))):
            numbers = f"domains {np.unique(self.train_domain).tolist()}"
            raise DataError(f"dataset {self.name}: {numbers} for {len(self.domain_names)} names: {', '.join(self.domain_names)}")

    def _check_values(self, where: str, x: np.ndarray) -> None:
        if x.dtype == np.int64 and x.size and not 0 <= x.min() <= x.max() < self.vocabulary:
            found = f"token ids {x.min()} to {x.max()}"
            raise DataError(f"{where}: {found}, expected 0 to {self.vocabulary - 1} (vocabulary {self.vocabulary})")
        if x.dtype == np.float32 and not np.isfinite(x).all():
            raise DataError(f"{where}: a sample holds NaN or infinity")

    def _check_groups(self, kind: str, train: np.ndarray | None, test: np.ndarray | None) -> None:
        """Check that ``train`` and ``test`` number each sample's owner or domain, the same ones in both, and make them read-only."""
        if train is None and test is None:
            return
        if train is None or test is None:
            missing = "train" if train is None else "test"
            raise DataError(f"dataset {self.name}: {missing}_{kind} is missing: give both or neither")
        for part, groups, split in (("train", train, self.train), ("test", test, self.test)):
            if groups.dtype != np.int64 or groups.shape != split.y.shape[:1]:
                found = f"{groups.dtype} {groups.shape}"
                raise DataError(f"dataset {self.name}: {part}_{kind} is {found}, expected int64 {split.y.shape[:1]}")
            groups.setflags(write=False)
        if len(odd := np.setxor1d(train, test)):
            raise DataError(f"dataset {self.name}: {kind} {odd[0]} has samples only in one of train and test")

    @property
    def classes(self) -> int:
        """Number of labels; 0 for float32 targets."""
        return len(self.class_names)

    @property
    def groups(self) -> np.ndarray:
        """The label of each training sample, (n,) int64, as partitions need it; without labels all are alike."""
        return self.train.y if self.classes else np.zeros(len(self.train), np.int64)

    @property
    def target_shape(self) -> tuple[int, ...] | None:
        """The shape of one sample's float32 target; None for labels."""
        return None if self.classes else self.train.y.shape[1:]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return self.train.x.shape[1:]

    def apart(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return name → plain field, and name → array. :class:`Pixels` become ``raw``, with (mean, std) as a field."""
        facts = {name: value for name, value in vars(self).items() if name not in (*_SPLITS, *_GROUPS)}
        arrays: dict[str, np.ndarray] = {}
        for part in _SPLITS:
            split: Split = getattr(self, part)
            if isinstance(split.x, Pixels):
                facts[f"{part}.x"] = split.x.mean, split.x.std
            arrays[f"{part}.x"] = split.x.raw if isinstance(split.x, Pixels) else split.x
            arrays[f"{part}.y"] = split.y
        groups = {name: getattr(self, name) for name in _GROUPS}
        return facts, arrays | {name: array for name, array in groups.items() if array is not None}

    @classmethod
    def together(cls, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the data set from the results of :meth:`apart`, without checking it again."""
        data = object.__new__(cls)
        fields, splits = dict(facts), dict[str, Split]()
        for part in _SPLITS:
            x, scale = arrays[f"{part}.x"], fields.pop(f"{part}.x", None)
            splits[part] = Split(x if scale is None else Pixels(x, *scale), arrays[f"{part}.y"])
        groups = {name: arrays.get(name) for name in _GROUPS}
        vars(data).update({**fields, **splits, **groups})
        return data
