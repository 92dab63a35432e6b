"""Samples and labels as files and users have them, and the data set that they become."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.data.scaled import Scaled, measured
from edgefl.data.scenario import part_of_each
from edgefl.data.sources import Dataset, Split
from edgefl.data.words import ids_of, vocabulary_of
from edgefl.errors import DataError
from edgefl.rng import generator
from edgefl.util.fields import Fields, named

HELD_OUT_SHARE = 0.2
_MOST_NAMED = 5
_SMALL_PX = 16


@dataclass(frozen=True)
class Reading:
    """What a user says about the files of a data set.

    Attributes:
        label, owner: names of the columns, or of the arrays, with each sample's label and owner; None: they are guessed.
        features: names of the columns of a sample; empty: they are guessed.
        held_out: a share of the samples, such as "0.2", or a file with held-out samples; None: the data set's own, or a fifth.
        channels: of images in a table, 1 or 3; 0: those of the first image.
    """

    label: str | None = None
    owner: str | None = None
    features: tuple[str, ...] = ()
    held_out: str | None = None
    channels: int = 0


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
    """

    x: Any
    y: np.ndarray
    where: str
    owner: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    test: "Given | None" = None


@dataclass(frozen=True)
class Usual:
    """What a known data set prescribes, instead of what its samples suggest.

    Attributes:
        title: name in reports.
        mean, std: of the papers, instead of those of the training part.
        model, local_epochs: for runs that name none.
        words, window: the number of most frequent words that texts become ids of, and how many words a sample has.
    """

    title: str = ""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    model: str = ""
    local_epochs: int = 1
    words: int = 1000
    window: int = 500


def dataset_of(given: Given, name: str, share: float = HELD_OUT_SHARE, usual: Usual | None = None) -> Dataset:
    """Return the data set of ``given``. Samples are normalised by the mean and deviation of the training part, channel by channel.

    Without held-out samples of its own, a ``share`` of each owner's samples, or of each class, is held out: the same ones in every run.
    Texts become the ids of the most frequent words of the training part.

    Raises:
        DataError: labels are missing or not integers, a class has no samples, or samples cannot be used.
    """
    usual = usual or Usual()
    test = given.test
    both = [given] if test is None else [given, test]
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
        y, names = [part.y.astype(np.float32) for part in both], tuple[str, ...]()
    else:
        renumbered = [] if test is None else [_renumbered(test, given.class_names)]
        y, names = labelled([given.y, *renumbered], given.where, given.class_names)
    owner = _owners(both)
    if test is None:
        rows, held_out = _divided(np.zeros(len(y[0]), np.int64) if regression else y[0], owner[0], share, given.where)
        places, xs, whole = [rows, held_out], [given.x, given.x], owner[0]
        y, owner = [y[0][rows], y[0][held_out]], [None if whole is None else whole[part] for part in (rows, held_out)]
    else:
        places, xs = [np.arange(len(part.y)) for part in both], [given.x, test.x]
    if names and len(empty := np.flatnonzero(np.bincount(y[0], minlength=len(names)) == 0)):
        listed = ", ".join(repr(names[k]) for k in empty[:_MOST_NAMED]) + (" …" if len(empty) > _MOST_NAMED else "")
        raise DataError(
            f"{given.where}: no training sample of class {listed}; number the classes from 0 without gaps, or leave it out"
        )
    splits, preprocessing, vocabulary = _prepared_each(xs, places, both, usual)
    return Dataset(
        name=name,
        title=usual.title or name,
        train=Split(splits[0], y[0]),
        test=Split(splits[1], y[1]),
        class_names=names,
        preprocessing=preprocessing,
        default_model=usual.model or _model_for(splits[0], vocabulary),
        default_local_epochs=usual.local_epochs,
        vocabulary=vocabulary,
        train_owner=owner[0],
        test_owner=owner[1],
    )


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
    if y.dtype.kind == "O" and all(isinstance(label, (int, float)) for label in y.tolist()):
        y = np.array(y.tolist())
    if y.dtype.kind == "O":
        texts = np.array([label.decode() if isinstance(label, bytes) else str(label) for label in y.tolist()])
        names = names or tuple(np.unique(texts).tolist())
        number = {name: position for position, name in enumerate(names)}
        if len(unknown := set(texts.tolist()) - set(names)):
            raise DataError(f"{where}: label {min(unknown)!r} is not one of the classes {', '.join(names)}")
        y = np.array([number[text] for text in texts.tolist()])
    elif len(odd := y[y % 1 != 0]) if y.dtype.kind == "f" else y.dtype.kind not in "iub":
        found = f"label {odd[0]:g}" if y.dtype.kind == "f" else f"labels of type {y.dtype}"
        raise DataError(f"{where}: {found}, expected integers from 0, or texts")
    low, high = (int(y.min()), int(y.max())) if len(y) else (0, -1)
    most = len(names) or high + 1
    if low < 0 or high >= most:
        raise DataError(f"{where}: labels {low} to {high}, expected integers from 0" + (f" to {most - 1}" if names else ""))
    if most > len(y):
        raise DataError(f"{where}: {len(y)} samples have labels up to {most - 1}: is this column the label?")
    split = np.split(y.astype(np.int64), np.cumsum([len(part) for part in parts])[:-1])
    return split, names or tuple(map(str, range(most)))


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


def _owners(both: list[Given]) -> list[np.ndarray | None]:
    """Return each part's owners as numbers from 0; None for a part without owners, or whose owners are not those of the first."""
    parts = [part.owner for part in both if part.owner is not None]
    if both[0].owner is None:
        return [None] * len(both)
    if len(parts) == 1 or set(parts[0].astype(str).tolist()) != set(parts[1].astype(str).tolist()):
        parts = parts[:1]
    values = np.concatenate(parts)
    if values.dtype.kind == "O":
        values = values.astype(str)
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


def _divided(y: np.ndarray, owner: np.ndarray | None, share: float, where: str) -> tuple[np.ndarray, np.ndarray]:
    held_out = part_of_each(y if owner is None else owner, share, generator(0, "held out"))
    if not len(held_out) or (owner is not None and len(np.unique(owner[held_out])) < owner.max() + 1):
        of = "every class" if owner is None else "an owner"
        raise DataError(f"{where}: {of} has a single sample, of which none can be held out; give a file with --held-out")
    return np.setdiff1d(np.arange(len(y)), held_out), held_out


def _prepared_each(
    xs: list[Any], places: list[np.ndarray], both: list[Given], usual: Usual
) -> tuple[list[Any], dict[str, Any], Fields[int]]:
    """Return what :func:`_prepared` does, of several inputs name → each; DataError if the two parts have not the same inputs."""
    where = both[0].where
    names, others = (set(x) if isinstance(x, Mapping) else None for x in xs)
    if names != others:
        listed = [", ".join(sorted(of)) if of else "one without a name" for of in (names, others)]
        raise DataError(f"{both[-1].where}: held-out samples have the inputs {listed[1]}, training samples have {listed[0]}")
    if names is None:
        return _prepared(xs, places, where, usual)
    found = {name: _prepared([x[name] for x in xs], places, f"{where}, input {name}", usual, several=True) for name in xs[0]}
    splits = [{name: of[0][part] for name, of in found.items()} for part in (0, 1)]
    return splits, {name: of[1] for name, of in found.items()}, {name: of[2] for name, of in found.items()}


def _prepared(
    xs: list[np.ndarray], places: list[np.ndarray], where: str, usual: Usual, several: bool = False
) -> tuple[list[Any], dict[str, Any], int]:
    """Return the training and held-out samples of ``xs`` at ``places``, how a device prepares samples, and the vocabulary."""
    if any(x.dtype.kind in "OU" for x in xs):
        if odd := [x for x in xs if x.ndim != 1 or not all(isinstance(text, str) for text in x)]:
            raise DataError(f"{where}: samples of type {odd[0].dtype} and shape {odd[0].shape}, expected a text each")
        known = vocabulary_of(xs[0][places[0]], usual.words)
        ids: list[np.ndarray | Scaled] = [ids_of(x[rows], known, usual.window) for x, rows in zip(xs, places, strict=True)]
        return ids, {"words": list(known), "window": usual.window}, len(known) + 1
    xs = [laid_out(x, where, several) for x in xs]
    if (xs[0].dtype == np.uint8) != (xs[1].dtype == np.uint8):
        types = f"training samples are {xs[0].dtype}, held-out ones {xs[1].dtype}"
        raise DataError(f"{where}: {types}; give both the same type, as only uint8 pixels are divided by 255")
    if xs[0].dtype == np.int64:
        low, high = min(int(x.min()) for x in xs), max(int(x.max()) for x in xs)
        if low < 0:
            raise DataError(f"{where}: token id {low}, expected ids from 0")
        return [x[rows] for x, rows in zip(xs, places, strict=True)], {}, high + 1
    mean, std = measured(xs[0], places[0], where)
    if xs[0].dtype != np.uint8:
        measured(xs[1], places[1], where)  # finds NaN, also in held-out rows of the same array
    if usual.mean:
        mean, std = (values[0] if len(values) == 1 else values for values in (usual.mean, usual.std))
    splits: list[np.ndarray | Scaled] = [Scaled(x, mean, std).at(rows) for x, rows in zip(xs, places, strict=True)]
    note = {"mean": list(mean) if isinstance(mean, tuple) else mean, "std": list(std) if isinstance(std, tuple) else std}
    if xs[0].dtype == np.uint8:
        return splits, {"scale": 1 / 255, **note}, 0
    return splits, {"scale": 1.0, "raw": "float32", **note}, 0


def laid_out(x: np.ndarray, where: str, several: bool = False) -> np.ndarray:
    """Return samples as uint8, floats or int64 ids: images with channels first, features (n, 1) if they are single numbers.

    Integers (n, length) are ids. As one of ``several`` inputs, integers of any shape are, and so are booleans, such as masks.

    >>> laid_out(np.zeros((5, 8, 8, 3), np.uint8), "x").shape, laid_out(np.zeros((5, 8, 8), np.uint8), "x").shape
    ((5, 3, 8, 8), (5, 1, 8, 8))
    """
    kind = x.dtype.kind
    if kind not in "fiub" or not len(x) or not x.size:
        raise DataError(
            f"{where}: samples of type {x.dtype} and shape {x.shape}, expected numbers or texts, and at least one sample"
        )
    if several and kind in "iub" and x.dtype != np.uint8:
        return (x[:, None] if x.ndim == 1 else x).astype(np.int64)
    if kind in "iu" and x.dtype != np.uint8:
        if x.ndim == 2:
            return x.astype(np.int64)
        if x.min() < 0 or x.max() > 255:
            raise DataError(f"{where}: integers {x.min()} to {x.max()} as images, expected pixels from 0 to 255")
        x = x.astype(np.uint8)
    elif kind == "b" or (kind == "f" and x.dtype != np.float32 and not isinstance(x, np.memmap)):
        x = x.astype(np.float32)
    if x.ndim == 3 and x.dtype == np.uint8:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return x.transpose(0, 3, 1, 2)
    return x[:, None] if x.ndim == 1 else x


def _model_for(x: Any, vocabulary: Fields[int]) -> str:
    """Return the reference network for samples ``x``; none takes several inputs."""
    if isinstance(vocabulary, Mapping):
        return ""
    shape = x.shape[1:]
    if vocabulary:
        return "lstm-shakespeare" if vocabulary <= 80 else "lstm-imdb"
    if len(shape) != 3 or min(shape[1:]) < 4:
        return "mlp"
    return "cnn-fashion" if min(shape[1:]) >= _SMALL_PX else "cnn-digits"
