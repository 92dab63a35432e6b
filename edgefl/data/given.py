"""Samples and labels as files and users have them, and the data set that they become."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.prepared import Prepared, Usual, prepared_each
from edgefl.data.split import part_of_each
from edgefl.errors import DataError
from edgefl.records import DataRecord
from edgefl.records.data import UNREAD
from edgefl.rng import generator
from edgefl.util.fields import Fields, named

HELD_OUT_SHARE = 0.2
_MOST_NAMED = 5
_SMALL_PX = 16
_MOST_LOST = 1e-3
"""The largest error of a target in float32, in standard deviations."""


@dataclass(frozen=True)
class Reading:
    """A user's directions for the files of a data set.

    Attributes:
        label, owner: names of the columns, or of the arrays, with each sample's label and owner; None: they are guessed.
        features: names of the columns of a sample; empty: they are guessed.
        held_out: a share of the samples, such as "0.2", or a file with held-out samples; None: the data set's own, or a fifth.
        channels: of images, 1 or 3; 0: 1 if all are grey, else 3.
        layout: "first" or "last", where arrays of images have their channels; "": as their shape suggests.
        alpha: what becomes of transparent pixels, see :class:`edgefl.data.pictures.Form`; "": they are refused.
        preprocessing: how samples are prepared, as :func:`edgefl.data.prescribed.prescribed` returns it; "": by their own figures.
        form: "images" or "table", what a folder with both is read as; "": as its content suggests.
    """

    label: str | None = None
    owner: str | None = None
    features: tuple[str, ...] = ()
    held_out: str | None = None
    channels: int = 0
    layout: str = ""
    alpha: str = ""
    form: str = ""
    preprocessing: str = ""


PLAIN_READING = Reading()


@dataclass(frozen=True)
class Given:
    """Samples as they were given.

    Attributes:
        x: (n, …) uint8 pixels, floats, token ids, or texts as objects; or several inputs, name → (n, …).
        y: (n,) labels, integers or texts; or targets: floats (n,) that are no integers, or numbers (n, …), such as a class for each pixel.
        where: begins messages, such as a file.
        owner: (n,) integers or texts; None without owners.
        class_names: names of integer labels; empty: the labels are their names.
        test: the held-out samples; None: a share of these.
        layout: as :class:`Reading` has it; of several inputs, by name.
        files: those that were read.
        record: what was done to read them.
    """

    x: Any
    y: np.ndarray
    where: str
    owner: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    test: "Given | None" = None
    layout: Fields[str] = ""
    files: tuple[Path, ...] = ()
    record: DataRecord = UNREAD


@dataclass(frozen=True)
class Divided:
    """Samples for training and held-out ones, with the labels and the owners of both; ``names`` are those of the labels."""

    prepared: Prepared
    y: tuple[np.ndarray, np.ndarray]
    owner: tuple[np.ndarray | None, np.ndarray | None]
    names: tuple[str, ...]
    record: DataRecord

    @property
    def model(self) -> str:
        """The reference network for such samples; none takes several inputs."""
        vocabulary = self.prepared.vocabulary
        if isinstance(vocabulary, Mapping):
            return ""
        if vocabulary:
            return "lstm-shakespeare" if vocabulary <= 80 else "lstm-imdb"
        shape = self.prepared.train.shape[1:]
        if len(shape) != 3 or min(shape[1:]) < 4:
            return "mlp"
        return "cnn-fashion" if min(shape[1:]) >= _SMALL_PX else "cnn-digits"


def divided(given: Given, share: float, usual: Usual) -> Divided:
    """Return the samples of ``given`` as networks take them, divided into training and held-out ones.

    Samples are normalised by the mean and deviation of the training part, channel by channel.
    Without held-out samples of its own, a ``share`` of each owner's samples, or of each class, is held out: the same ones in every run.
    Texts become the ids of the most frequent words of the training part.

    Raises:
        DataError: labels are missing or not integers, a class has no samples, or samples cannot be used.
    """
    both = [replace(part, y=plain_values(part.y)) for part in (given, given.test) if part is not None]
    given, test = both[0], both[1] if len(both) > 1 else None
    regression = all(map(_has_targets, both))
    for part in both:
        for title, x in named(part.x, "input").items():
            if (part.y.ndim != 1 and not regression) or not x.ndim or len(x) != len(part.y):
                of = "" if title == "input" else f" of {title.replace('.', ' ', 1)}"
                count = len(x) if x.ndim else 0
                raise DataError(f"{part.where}: {count} samples{of} and labels of shape {part.y.shape}, expected one label each")
        if part.owner is not None:
            if part.owner.shape != part.y.shape[:1]:
                raise DataError(
                    f"{part.where}: {len(part.y)} samples and owners of shape {part.owner.shape}, expected one owner each"
                )
            _check_none_missing(part.owner, "owners", part.where)
    if regression:
        y, names = [_targets(part.y, part.where) for part in both], tuple[str, ...]()
        if y[0].ndim == 2 and bool((np.sort(y[0])[:, :-1] == 0).all() and (y[0].max(1) == 1).all()):
            told = f"labels {y[0].shape}, one 1 in each row: targets of a regression; for classes, give the position of the 1"
            given = replace(given, record=given.record.beside(DataRecord(guessed=(told,))))
    else:
        renumbered = [] if test is None else [_renumbered(test, given.class_names)]
        y, names = labelled([given.y, *renumbered], given.where, given.class_names)
    owner = _owners(both)
    if test is None:
        rows, held_out = _places(np.zeros(len(y[0]), np.int64) if regression else y[0], owner[0], share, given)
        places, xs, whole = [rows, held_out], [given.x, given.x], owner[0]
        y, owner = [y[0][rows], y[0][held_out]], [None if whole is None else whole[part] for part in (rows, held_out)]
    else:
        places, xs = [np.arange(len(part.y)) for part in both], [given.x, test.x]
    if names and len(empty := np.flatnonzero(np.bincount(y[0], minlength=len(names)) == 0)):
        listed = ", ".join(repr(names[k]) for k in empty[:_MOST_NAMED]) + (" …" if len(empty) > _MOST_NAMED else "")
        raise DataError(
            f"{given.where}: no training sample of class {listed}; number the classes from 0 without gaps, or leave it out"
        )
    prepared = prepared_each(xs, places, [part.where for part in both], usual, given.layout)
    record = reduce(DataRecord.beside, [given.record, *(part.record for part in both[1:]), prepared.record])
    return Divided(prepared, (y[0], y[1]), (owner[0], owner[1]), names, record)


def labelled(parts: list[np.ndarray], where: str, names: tuple[str, ...] = ()) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return the labels of each part as integers (n,) int64 from 0, and the names of the classes; texts are numbered in their order.

    >>> labelled([np.array(["dog", "cat"], object)], "pets.csv")
    ([array([1, 0])], ('cat', 'dog'))

    Raises:
        DataError: a label is missing, is no integer, or lies outside ``names``.
    """
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{where}: {names.count(twice[0])} classes are called {twice[0]!r}, expected different names")
    y = np.concatenate(parts)
    if y.dtype.kind in "US":
        y = y.astype(object)
    _check_none_missing(y, "labels", where)
    if y.dtype.kind == "b" and not names:
        names = ("false", "true")
    y = plain_values(y)
    if y.dtype.kind == "O":
        texts = np.array([_text(label, where) for label in y.tolist()])
        names = names or tuple(np.unique(texts).tolist())
        number = {name: position for position, name in enumerate(names)}
        if len(unknown := set(texts.tolist()) - set(names)):
            raise DataError(f"{where}: label {min(unknown)!r} is not one of the classes {', '.join(names)}")
        y = np.array([number[text] for text in texts.tolist()])
    elif len(odd := y[y % 1 != 0]) if y.dtype.kind == "f" else y.dtype.kind not in "iub":
        what = f"label {odd[0]:g}" if y.dtype.kind == "f" else f"labels of type {y.dtype}"
        raise DataError(f"{where}: {what}, expected integers from 0, or texts")
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, -1)
    most = len(names) or high + 1
    if low < 0 or high >= most:
        raise DataError(f"{where}: labels {low} to {high}, expected integers from 0" + (f" to {most - 1}" if names else ""))
    if most > len(y):
        raise DataError(f"{where}: {len(y)} samples have labels up to {most - 1}: is this column the label?")
    split = np.split(y.astype(np.int64), np.cumsum([len(part) for part in parts])[:-1])
    return split, names or tuple(map(str, range(most)))


def plain_values(values: np.ndarray) -> np.ndarray:
    """Return an array of Python or numpy objects that are all numbers as an array of numbers; any other as it is.

    >>> plain_values(np.array([np.int64(10), 9], object)).dtype.name
    'int64'
    """
    if values.dtype.kind != "O" or values.ndim != 1 or not len(values):
        return values
    plain = [value.item() if isinstance(value, np.generic) else value for value in values]
    if all(isinstance(value, bool) for value in plain) or not any(isinstance(value, bool) for value in plain):
        if all(isinstance(value, (int, float)) for value in plain):
            return np.array(plain)
        if all(isinstance(value, (int, float, Decimal)) for value in plain):
            return np.array(list(map(float, plain)))
    return values


def _targets(y: np.ndarray, where: str) -> np.ndarray:
    """Return targets as float32; DataError if that makes different ones alike, as of times in seconds since 1970."""
    with np.errstate(over="ignore"):
        floats = y.astype(np.float32)
    exact = y.astype(np.float64)
    if np.isfinite(exact).all() and np.abs(floats - exact).max() > _MOST_LOST * exact.std() > 0:
        low, high = f"{exact.min():.17g}", f"{exact.max():.17g}"
        raise DataError(
            f"{where}: targets {low} to {high} differ by less than float32 tells apart; subtract an offset, or scale them"
        )
    return floats


def _check_none_missing(values: np.ndarray, what: str, where: str) -> None:
    """Raise :class:`DataError` if one of the ``values``, a label or an owner of each sample, is NaN, None or an empty text."""
    if values.dtype.kind in "OUS":
        missing = np.array([value is None or value != value or value in ("", b"") for value in values.tolist()], bool)
    else:
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    if missing.any():
        first = np.flatnonzero(missing)[0]
        count = f"{missing.sum()} of {len(values)} {what} are missing, the first that of sample {first}"
        raise DataError(f"{where}: {count}; fill them in, or leave these samples out")


def _has_targets(part: Given) -> bool:
    kind, each = part.y.dtype.kind, math.prod(part.y.shape[1:])
    if part.y.ndim > 1:
        return kind == "f" or (kind in "iub" and each > 1)  # such as a class for each pixel
    return kind == "f" and part.y.ndim == 1 and bool((np.isfinite(part.y) & (part.y % 1 != 0)).any())


def _text(value: Any, where: str) -> str:
    """Return a label or an owner as text; DataError if it is bytes that are no UTF-8."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        raise DataError(f"{where}: label or owner {value!r}, expected UTF-8; save the texts in that encoding") from None


def _owners(both: list[Given]) -> list[np.ndarray | None]:
    """Return each part's owners as numbers from 0; None for a part without owners, or whose owners are not those of the first."""
    parts = [part.owner for part in both if part.owner is not None]
    if both[0].owner is None:
        return [None] * len(both)
    if len(parts) == 1 or set(map(str, parts[0].tolist())) != set(map(str, parts[1].tolist())):
        parts = parts[:1]
    values = np.concatenate(parts)
    if values.dtype.kind in "OS":
        values = np.array([_text(value, both[0].where) for value in values.tolist()])
    numbers = np.unique(values, return_inverse=True)[1].astype(np.int64)
    own, others = np.split(numbers, [len(parts[0])])
    return [own, others if len(parts) > 1 else None][: len(both)]


def _renumbered(test: Given, names: tuple[str, ...]) -> np.ndarray:
    """Return the labels of held-out samples as numbers of the training classes ``names``, whatever their own numbers are."""
    if not names or test.class_names in ((), names):
        return test.y
    if unknown := set(test.class_names) - set(names):
        raise DataError(f"{test.where}: class {min(unknown)!r} is not one of the training classes {', '.join(names)}")
    return np.array([names.index(name) for name in test.class_names])[test.y]


def _places(y: np.ndarray, owner: np.ndarray | None, share: float, given: Given) -> tuple[np.ndarray, np.ndarray]:
    held_out = part_of_each(y if owner is None else owner, share, generator(0, "held out"))
    if not len(held_out) or (owner is not None and len(np.unique(owner[held_out])) < owner.max() + 1):
        column = given.record.owner
        of = "every class" if owner is None else f"an owner of column {column!r}" if column else "an owner"
        raise DataError(f"{given.where}: {of} has a single sample, of which none can be held out; give a file with --held-out")
    return np.setdiff1d(np.arange(len(y)), held_out), held_out
