"""A data set: training and held-out samples, perhaps as they were given, and how a device prepares its samples."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from edgefl.data.given import HELD_OUT_SHARE, Given, divided
from edgefl.data.objects import of_arrays, of_samples
from edgefl.data.prepared import Usual
from edgefl.data.scaled import Scaled
from edgefl.data.split import Split
from edgefl.errors import DataError
from edgefl.records import DataRecord, Preparation
from edgefl.util.fields import Fields, each, named, unnamed

_SPLITS, _GROUPS = ("train", "test"), ("train_owner", "test_owner", "train_domain", "test_domain")


@dataclass(frozen=True)
class Dataset:
    """A data set for classification or regression. Its arrays become read-only. DataError if shapes, types, labels or values are wrong.

    Attributes:
        name, title: the registered name, and the name in reports.
        train, test: the clients' samples, and the held-out ones.
        class_names: one per label; none: ``y`` are float32 targets.
        preprocessing: how a device prepares its samples: (pixel · scale − mean) / std, or characters as ids; of several inputs, name → how.
        default_model, default_local_epochs: for runs that name none.
        vocabulary: the number of different token ids; 0 if samples are not token ids; of several inputs, name → number.
        train_owner, test_owner: (n,) int64, the number of each sample's owner, for the partition ``natural``; None without owners.
            Held-out samples may have none.
        train_domain, test_domain: (n,) int64, the position of each sample's domain in ``domain_names``; None with a single domain.
        domain_names: one per domain; a client belongs to one domain.
        public: samples that no client has, for a server that trains on them without their labels; None: there are none.
        sha256: hash of the user's files that it was read from, or "".
        record: how it was read; None of a known data set.
        drawn: whether the samples are random ones in the place of data: nothing is evaluated on them.
    """

    name: str
    title: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    preprocessing: Preparation
    default_model: str
    default_local_epochs: int = 1
    vocabulary: Fields[int] = 0
    train_owner: np.ndarray | None = None
    test_owner: np.ndarray | None = None
    train_domain: np.ndarray | None = None
    test_domain: np.ndarray | None = None
    domain_names: tuple[str, ...] = ()
    sha256: str = ""
    record: DataRecord | None = None
    drawn: bool = False
    public: Split | None = None

    def __post_init__(self) -> None:
        for part, split in (("train", self.train), ("test", self.test)):
            where = f"dataset {self.name}, {part}"
            expected = np.int64 if self.classes else np.float32
            if split.y.dtype != expected or not len(split.y):
                kind = "int64 labels" if self.classes else "float32 targets"
                raise DataError(f"{where}: expected {kind}, at least one, got {split.y.dtype} {split.y.shape}")
            if not self.classes and not np.isfinite(split.y).all():
                raise DataError(f"{where}: a target is NaN or infinity")
            if self.classes and (split.y.min() < 0 or split.y.max() >= self.classes):
                raise DataError(f"{where}: labels {split.y.min()} to {split.y.max()}, expected 0 to {self.classes - 1}")
            vocabulary = named(self.vocabulary, where)
            for place, x in named(split.x, where).items():
                _check_samples(place, x, len(split.y), vocabulary.get(place, 0))
            split.y.setflags(write=False)
        if self.train.y.shape[1:] != self.test.y.shape[1:]:
            raise DataError(
                f"dataset {self.name}: training targets are {self.train.y.shape[1:]}, held-out ones {self.test.y.shape[1:]}"
            )
        shapes = [each(lambda x: f"{x.dtype} {x.shape[1:]}", split.x) for split in (self.train, self.test)]
        if shapes[0] != shapes[1]:
            raise DataError(f"dataset {self.name}: training samples are {shapes[0]}, held-out ones {shapes[1]}")
        self._check_groups("owner", self.train_owner, self.test_owner)
        self._check_groups("domain", self.train_domain, self.test_domain)
        if (self.train_domain is not None) != bool(self.domain_names):
            raise DataError(f"dataset {self.name}: domains and domain_names are given together or not at all")
        if self.train_domain is not None and not np.array_equal(np.unique(self.train_domain), np.arange(len(self.domain_names))):
            numbers = f"domains {np.unique(self.train_domain).tolist()}"
            raise DataError(f"dataset {self.name}: {numbers} for {len(self.domain_names)} names: {', '.join(self.domain_names)}")

    def _check_groups(self, kind: str, train: np.ndarray | None, test: np.ndarray | None) -> None:
        """Check that ``train`` and ``test`` number each sample's owner or domain, the same ones in both, and make them read-only."""
        if train is None and test is None:
            return
        alone = kind == "owner" and test is None  # held-out samples may be of nobody
        if train is None or (test is None and not alone):
            missing = "train" if train is None else "test"
            raise DataError(f"dataset {self.name}: {missing}_{kind} is missing: give both or neither")
        for part, groups, split in (("train", train, self.train), ("test", test, self.test)):
            if groups is None:
                continue
            if groups.dtype != np.int64 or groups.shape != split.y.shape[:1]:
                form = f"{groups.dtype} {groups.shape}"
                raise DataError(f"dataset {self.name}: {part}_{kind} is {form}, expected int64 {split.y.shape[:1]}")
            groups.setflags(write=False)
        if test is not None and len(odd := np.setxor1d(train, test)):
            raise DataError(f"dataset {self.name}: {kind} {odd[0]} has samples only in one of train and test")

    @classmethod
    def of(cls, given: Given, name: str, share: float = HELD_OUT_SHARE, usual: Usual | None = None) -> "Dataset":
        """Return the data set of samples as they were ``given``, see :func:`edgefl.data.given.divided`."""
        usual = usual or Usual()
        parts = divided(given, share, usual)
        return Dataset(
            name=name,
            title=usual.title or name,
            train=Split(parts.prepared.train, parts.y[0]),
            test=Split(parts.prepared.test, parts.y[1]),
            class_names=parts.names,
            preprocessing=parts.prepared.note,
            default_model=usual.model or parts.model,
            default_local_epochs=usual.local_epochs,
            vocabulary=parts.prepared.vocabulary,
            train_owner=parts.owner[0],
            test_owner=parts.owner[1],
            record=parts.record,
        )

    @classmethod
    def from_arrays(cls, x: Any, y: Any, owner: Any = None, **more: Any) -> "Dataset":
        """Return a data set of your arrays, normalised by mean and deviation of the training part, channel by channel.

        Args:
            x: samples (n, …): uint8 pixels, with or without a dimension of channels, first or last; floats; or token ids, (n, length)
                integers. A ``numpy.memmap`` stays on the disk. For a network with several inputs: name of the argument of its ``forward``
                → such an array, or a tuple of arrays in the order of the arguments; integers and booleans are then ids of any shape.
            y: labels (n,): integers from 0, or texts. Floats that are no integers, or (n, k), are the targets of a regression.
            owner: each sample's owner (n,), for the partition ``natural``.
            more: ``test``, the held-out (x, y) or (x, y, owner); without it ``held_out``, a share of the samples, 0.2 unless given;
                ``class_names``; ``name``; ``channels``, "first" or "last", for images whose shape does not tell.

        Raises:
            DataError: lengths differ, a label is missing or no integer, a class has no samples, or a value is not finite.

        >>> data = Dataset.from_arrays(np.arange(40, dtype=np.float32).reshape(20, 2), ["no", "yes"] * 10)
        >>> len(data.train), len(data.test), data.class_names
        (16, 4, ('no', 'yes'))
        >>> ids, mask = np.zeros((20, 5), np.int64), np.ones((20, 5), bool)
        >>> Dataset.from_arrays({"input_ids": ids, "attention_mask": mask}, ["no", "yes"] * 10).vocabulary
        {'input_ids': 1, 'attention_mask': 2}
        """
        return Dataset.of(*of_arrays(x, y, owner, **more))

    @classmethod
    def from_samples(cls, train: Any, test: Any = None, **more: Any) -> "Dataset":
        """Return a data set of an object with a length and an index that returns (sample, label), such as a torch ``Dataset``.

        A sample may be a dictionary, or a tuple, of arrays: see :meth:`from_arrays`.

        ``more``: ``held_out`` and ``name`` as :meth:`from_arrays` has them. DataError if samples are no such pairs, or of mixed shapes.
        """
        return Dataset.of(*of_samples(train, test, **more))

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
    def input_shape(self) -> Any:
        """The shape of one sample; of several inputs, name → shape."""
        return each(lambda x: x.shape[1:], self.train.x)

    def apart(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return name → plain field, and name → array, except what only the server needs: public samples, and the record of the reading.

        :class:`Scaled` become ``raw`` and ``rows``, with (mean, std) as a field.
        """
        facts = {name: value for name, value in vars(self).items() if name not in (*_SPLITS, *_GROUPS, "record", "public")}
        arrays: dict[str, np.ndarray] = {}
        for part in _SPLITS:
            split: Split = getattr(self, part)
            places = named(split.x, f"{part}.rows")
            for (key, x), rows in zip(named(split.x, f"{part}.x").items(), places, strict=True):
                arrays[key] = x.raw if isinstance(x, Scaled) else x
                if isinstance(x, Scaled):
                    facts[key] = x.mean, x.std
                    if x.rows is not None:
                        arrays[rows] = x.rows
            arrays[f"{part}.y"] = split.y
        groups = {name: getattr(self, name) for name in _GROUPS}
        return facts, arrays | {name: array for name, array in groups.items() if array is not None}

    @classmethod
    def together(cls, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Self:
        """Return the data set from the results of :meth:`apart`, without checking it again."""
        data = object.__new__(cls)
        fields, splits = dict(facts), dict[str, Split]()
        for part in _SPLITS:
            own = {key: array for key, array in arrays.items() if key == f"{part}.x" or key.startswith(f"{part}.x.")}
            for key, array in own.items():
                if (scale := fields.pop(key, None)) is not None:
                    mean, std = (tuple(of) if isinstance(of, list) else of for of in scale)
                    own[key] = Scaled(array, mean, std, arrays.get(key.replace(".x", ".rows", 1)))  # type: ignore[assignment]
            splits[part] = Split(unnamed(own, f"{part}.x"), arrays[f"{part}.y"])
        groups = {name: arrays.get(name) for name in _GROUPS}
        vars(data).update({**fields, **splits, **groups})
        return data


def _check_samples(where: str, x: np.ndarray | Scaled, labels: int, vocabulary: int) -> None:
    """Check the type, number and values of the samples ``x`` of one input, and make them read-only."""
    if x.dtype not in (np.float32, np.int64):
        raise DataError(f"{where}: expected float32 samples or int64 token ids, got {x.dtype}")
    if len(x) != labels:
        raise DataError(f"{where}: {len(x)} samples but {labels} labels")
    if isinstance(x, np.ndarray):
        if x.dtype == np.int64 and x.size and not 0 <= x.min() <= x.max() < vocabulary:
            raise DataError(
                f"{where}: token ids {x.min()} to {x.max()}, expected 0 to {vocabulary - 1} (vocabulary {vocabulary})"
            )
        if x.dtype == np.float32 and not np.isfinite(x).all():
            raise DataError(f"{where}: a sample holds NaN or infinity")
    (x.raw if isinstance(x, Scaled) else x).setflags(write=False)
