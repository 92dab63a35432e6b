"""From samples as they were given to what networks take: their layout, their units, and their normalisation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.data.growing import Growing
from edgefl.data.scaled import Scale, Scaled, measured
from edgefl.data.words import ids_of, vocabulary_of
from edgefl.errors import DataError
from edgefl.records import DataRecord, Preparation
from edgefl.util.fields import Fields

_FEW_CHANNELS = 4
_WHITE, _WHITE_16 = 255, 65535
_AT_ONCE = 256
_MOST_LOST = 1e-5
"""Floats stay float64 if float32 would change a value by more than this share of its channel's deviation."""


@dataclass(frozen=True)
class Usual:
    """The prescriptions of a known data set, in the place of what its samples suggest.

    Attributes:
        title: name in reports.
        mean, std: of the papers, instead of those of the training part.
        scale: with which values are multiplied before; 0: pixels are divided by 255.
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
    scale: float = 0.0


@dataclass(frozen=True)
class Prepared:
    """Samples for training and held-out ones; the ``note`` tells a device how it prepares its own. Of several inputs, all by name."""

    train: Any
    test: Any
    note: Preparation
    vocabulary: Fields[int]
    record: DataRecord


def prepared_each(xs: list[Any], places: list[np.ndarray], where: list[str], usual: Usual, layout: Fields[str]) -> Prepared:
    """Return the training and held-out samples of ``xs`` at ``places``; ``where`` begins messages about each part.

    Raises:
        DataError: the two parts have not the same inputs, a value cannot be used, or a shape has several readings.
    """
    names, others = (set(x) if isinstance(x, Mapping) else None for x in xs)
    if names != others:
        listed = [", ".join(sorted(of)) if of else "one without a name" for of in (names, others)]
        raise DataError(f"{where[-1]}: held-out samples have the inputs {listed[1]}, training samples have {listed[0]}")
    if names is None:
        return _prepared(xs, places, where[0], usual, layout if isinstance(layout, str) else "")
    inputs = {
        name: _prepared(
            [x[name] for x in xs], places, f"{where[0]}, input {name}", usual,
            layout if isinstance(layout, str) else layout.get(name, ""), several=True,
        )
        for name in xs[0]
    }  # fmt: skip
    record = DataRecord()
    for name, of in inputs.items():
        told = (tuple(f"{name}: {text}" for text in texts) for texts in (of.record.guessed, of.record.scaling))
        record = record.beside(DataRecord(guessed=next(told), scaling=next(told)))
    train, test, note, vocabulary = (
        {name: getattr(of, key) for name, of in inputs.items()} for key in ("train", "test", "note", "vocabulary")
    )
    return Prepared(train, test, note, vocabulary, record)


def _prepared(
    xs: list[np.ndarray], places: list[np.ndarray], where: str, usual: Usual, layout: str, several: bool = False
) -> Prepared:
    if any(x.dtype.kind in "OU" for x in xs):
        return _of_texts(xs, places, where, usual)
    for x in xs:
        if x.dtype.kind not in "fiub" or not len(x) or not x.size:
            form = f"samples of type {x.dtype} and shape {x.shape}"
            raise DataError(f"{where}: {form}, expected numbers or texts, and at least one sample")
    if all(_are_ids(x, several) for x in xs):
        return _of_ids(xs, places, where)
    xs, told = in_units(xs, where)
    if (xs[0].dtype == np.uint8) != (xs[1].dtype == np.uint8):
        types = f"training samples are {xs[0].dtype}, held-out ones {xs[1].dtype}"
        raise DataError(f"{where}: {types}; give both the same type, as only uint8 pixels are divided by 255")
    layout, guessed = layout_of(xs[0].shape, xs[0].dtype == np.uint8, layout, where)
    xs = [laid_out(x, layout) for x in xs]
    mean, std = measured(xs[0], places[0], where)
    if any(x.dtype == np.float64 for x in xs) and not any(_loses(x, std) for x in xs):
        xs = [x if isinstance(x, np.memmap) else x.astype(np.float32) for x in xs]
        mean, std = measured(xs[0], places[0], where)
    if xs[0].dtype != np.uint8:
        measured(xs[1], places[1], where)  # finds NaN, also in held-out rows of the same array
    if usual.mean:
        mean, std = (_of_channels(key, getattr(usual, key), xs[0].shape[1], where) for key in ("mean", "std"))
    pixels, values = xs[0].dtype == np.uint8, f"from {xs[0].dtype} values"
    scale = base = 1 / _WHITE if pixels else 1.0  # a Scaled multiplies with the second one
    means, stds = mean, std
    figures = "of the papers" if usual.mean else "of the training part, channel by channel"
    scaling = f"pixels / 255, then (x − mean) / std {figures}" if pixels else f"{told}(x − mean) / std {figures}, {values}"
    if usual.scale:  # of the network that given weights belong to
        scale = usual.scale
        means, stds = (tuple(v * base / scale for v in of) if isinstance(of, tuple) else of * base / scale for of in (mean, std))
        scaling = f"{told}(x · {scale:g} − mean) / std as it was prescribed, {values}"
    train, test = (Scaled(x, means, stds).at(rows) for x, rows in zip(xs, places, strict=True))
    raw = {} if pixels else {"raw": xs[0].dtype.name}
    note = {"mean": list(mean) if isinstance(mean, tuple) else mean, "std": list(std) if isinstance(std, tuple) else std}
    return Prepared(train, test, {"scale": scale, **raw, **note}, 0, DataRecord(guessed=guessed, scaling=(scaling,)))


def _of_channels(key: str, values: tuple[float, ...], channels: int, where: str) -> Scale:
    if len(values) not in (1, channels):
        raise DataError(f"{where}: {len(values)} values of {key}, expected one, or one for each of {channels} channels")
    return values[0] if len(values) == 1 else values


def _of_texts(xs: list[np.ndarray], places: list[np.ndarray], where: str, usual: Usual) -> Prepared:
    if odd := [x for x in xs if x.ndim != 1 or not all(isinstance(text, str) for text in x)]:
        raise DataError(f"{where}: samples of type {odd[0].dtype} and shape {odd[0].shape}, expected a text each")
    known = vocabulary_of(xs[0][places[0]], usual.words)
    train, test = (ids_of(x[rows], known, usual.window) for x, rows in zip(xs, places, strict=True))
    record = DataRecord(scaling=(f"texts: the last {usual.window} of the {len(known):,} most frequent words, as ids",))
    return Prepared(train, test, {"words": list(known), "window": usual.window}, len(known) + 1, record)


def _of_ids(xs: list[np.ndarray], places: list[np.ndarray], where: str) -> Prepared:
    """Return integers (n, length), or of one of several inputs of any shape, as ids."""
    guessed = f"{xs[0].dtype} values of shape {xs[0].shape}: ids, such as of tokens, and no quantities; floats are quantities"
    xs = [(x[:, None] if x.ndim == 1 else x).astype(np.int64) for x in xs]
    low, high = min(int(x.min()) for x in xs), max(int(x.max()) for x in xs)
    if low < 0:
        raise DataError(f"{where}: token id {low}, expected ids from 0")
    train, test = (x[rows] for x, rows in zip(xs, places, strict=True))
    return Prepared(train, test, {}, high + 1, DataRecord(guessed=(guessed,), scaling=("ids: as they are",)))


def _are_ids(x: np.ndarray, several: bool) -> bool:
    if x.dtype == np.uint8:
        return False
    return x.dtype.kind in ("iub" if several else "iu") and (several or x.ndim == 2)


def in_units(xs: list[np.ndarray], where: str) -> tuple[list[np.ndarray], str]:
    """Return two parts of samples as uint8 pixels or floats, and what was done; pixels of 16 bits become floats in units of 8.

    >>> in_units([np.array([[[0, 65535]]], np.uint16)] * 2, "x")[0][0].tolist()
    [[[0.0, 255.0]]]
    """
    whole = [x for x in xs if x.dtype.kind in "iu" and x.dtype != np.uint8]
    low, high = (min(int(x.min()) for x in whole), max(int(x.max()) for x in whole)) if whole else (0, 0)
    if whole and all((x.dtype.kind == "u" and x.dtype.itemsize == 2) or x.dtype == np.uint8 for x in xs) and high > _WHITE:
        return [_deep(x, where) for x in xs], "pixels of 16 bits / 257, then "
    if low < 0 or high > _WHITE:
        types = f"integers {low} to {high} of type {whole[0].dtype}"
        forms = "uint8 pixels from 0 to 255, uint16 pixels from 0 to 65535, or floats of any unit"
        raise DataError(f"{where}: {types} as images, expected pixels from 0 to 255: give {forms}, such as x.astype('float32')")
    return [_plain(x) for x in xs], ""


def _plain(x: np.ndarray) -> np.ndarray:
    """Return samples as uint8, float32 or float64 in this computer's order of bytes; mapped floats as they are."""
    if x.dtype.kind in "iu":
        return x.astype(np.uint8, copy=False)
    if isinstance(x, np.memmap) and x.dtype.kind == "f":
        return x
    return x.astype(np.float64 if x.dtype.kind == "f" and x.dtype.itemsize > 4 else np.float32, copy=False)


def _deep(x: np.ndarray, where: str) -> np.ndarray:
    """Return pixels of 16 bits as float32 in units of 8; beyond the size of memory in a file."""
    rows, unit = Growing(where), 1.0 if x.dtype == np.uint8 else _WHITE / _WHITE_16
    for start in range(0, len(x), _AT_ONCE):
        rows.add((x[start : start + _AT_ONCE] * np.float64(unit)).astype(np.float32))
    return rows.whole()


def _loses(x: np.ndarray, std: float | tuple[float, ...]) -> bool:
    """Whether float32 would change a value of ``x`` (n, channels, …) by much of the deviation of its channel."""
    least = np.reshape(std, (-1, *[1] * (x.ndim - 2)))
    for start in range(0, len(x), _AT_ONCE):
        block = x[start : start + _AT_ONCE]
        with np.errstate(over="ignore", invalid="ignore"):
            if not (np.abs(block.astype(np.float32) - block) <= _MOST_LOST * least).all():
                return True
    return False


def layout_of(shape: tuple[int, ...], pixels: bool, layout: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return whether samples of ``shape`` (n, …) have their channels "first", "last", or "none", and what was guessed.

    Raises:
        DataError: both are possible; the message has both readings.

    >>> layout_of((5, 8, 8, 3), True, "", "x")[0], layout_of((5, 3, 8, 8), True, "", "x")[0], layout_of((5, 8, 8), True, "", "x")[0]
    ('last', 'first', 'none')
    """
    if len(shape) != 4:
        return ("none" if len(shape) == 3 and pixels else "first"), ()
    if layout:
        return layout, ()
    _, a, b, c = shape
    first, last = f"{a} channels of {b}×{c}", f"{c} channels of {a}×{b}"
    few = a <= _FEW_CHANNELS, c <= _FEW_CHANNELS
    readings = few if few[0] != few[1] else (b == c != a, a == b != c)
    if readings[0] != readings[1]:
        chosen = "first" if readings[0] else "last"
        return chosen, (f"shape {shape}: channels {chosen}, {first if readings[0] else last}",)
    if all(few):
        choice = "say which after the path, --data PATH:channels=first or PATH:channels=last, or as channels= of from_arrays"
        raise DataError(f"{where}: samples of shape {shape} are {first}, or {last}: {choice}")
    return "first", (f"shape {shape}: channels first, {first}",)


def laid_out(x: np.ndarray, layout: str) -> np.ndarray:
    """Return samples with a dimension of channels, the second one; single numbers are features (n, 1).

    >>> laid_out(np.zeros((5, 8, 8, 3)), "last").shape, laid_out(np.zeros((5, 8, 8)), "none").shape, laid_out(np.zeros(5), "first").shape
    ((5, 3, 8, 8), (5, 1, 8, 8), (5, 1))
    """
    if layout == "last":
        return x.transpose(0, 3, 1, 2)
    return x[:, None] if layout == "none" or x.ndim == 1 else x
