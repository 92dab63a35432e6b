"""Several data sets as one: ``fashion-mnist+digits`` is a data set of two domains."""

from pathlib import Path

import numpy as np

from edgefl.data import drawn
from edgefl.data.given import PLAIN_READING, Reading
from edgefl.data.own import load_own
from edgefl.data.scenario import publishing, validating
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError, DataError, EdgeflError
from edgefl.records import Preparation
from edgefl.registry import datasets
from edgefl.util.datasets import DRAWN, is_own
from edgefl.util.fields import each
from edgefl.util.modules import said

_RESIZING = "bilinear, half-pixel centres, border pixels repeated"


def check(name: str) -> None:
    """Check that ``name`` is a data set (UnknownNameError), or several different ones joined by ``+`` (ConfigError)."""
    parts = name.split("+")
    for part in parts:
        datasets.check(part)
    if twice := sorted({part for part in parts if parts.count(part) > 1}):
        raise ConfigError(f"dataset: {name!r} has {twice[0]} {parts.count(twice[0])} times, expected different data sets")


def load(
    name: str,
    data_dir: str | None = None,
    validation_share: float = 0.0,
    reading: Reading = PLAIN_READING,
    public_share: float = 0.0,
) -> Dataset:
    """Return the data set ``name``, or several joined by ``+`` as one. A part is read from ``data_dir``, or its subfolder ``<part>``.

    A path, ``hf:ID`` or an object is a data set of your own, read as ``reading`` says (:func:`edgefl.data.own.load_own`).

    With a ``validation_share``, that share of the training samples takes the place of the test samples (:func:`validating`). With a
    ``public_share``, that share of the others belongs to the server (:func:`publishing`).

    In a mix every part is a domain. Images are enlarged to the largest height and width by bilinear interpolation, and a single channel is
    repeated. Each part has its own normalisation. The labels of the parts follow each other in the order of the name. Errors:
    UnknownNameError, ConfigError (a part appears twice, or has no images), or DataError (files, numbers of channels).

    >>> load("digits").title[:18]
    'Handwritten digits'
    """
    return publishing(validating(_whole(name, data_dir, reading), validation_share), public_share)


def _whole(name: str, data_dir: str | None, reading: Reading) -> Dataset:
    if name.startswith(DRAWN):
        return drawn.load(name, reading.preprocessing)
    if is_own(name):
        return load_own(name, reading)
    check(name)
    if reading != PLAIN_READING:
        raise ConfigError(
            f"label, owner, features, held_out, preprocessing: {name} has its own; they are for your own data, such as --data own.npz"
        )
    if "+" not in name:
        return _loaded(name, data_dir)
    parts = [_loaded(part, _folder(data_dir, part)) for part in name.split("+")]
    for part in parts:
        kind = each(lambda x: str(x.dtype), part.train.x)
        if kind != "float32" or part.train.x.ndim != 4 or not part.classes:
            shape = f"{kind} samples of shape {part.input_shape}"
            raise ConfigError(f"dataset: {name!r}: only images can be mixed, {part.name} has {shape}")
    return mixed(name, parts)


def mixed(name: str, parts: list[Dataset]) -> Dataset:
    """Return the data set of all ``parts``, one domain each, as :func:`load` describes; DataError if channels do not match."""
    shape = tuple(max(sizes) for sizes in zip(*(part.input_shape for part in parts), strict=True))
    for part in parts:
        if part.input_shape[0] not in (1, shape[0]):
            raise DataError(f"{name}: {part.name} has {part.input_shape[0]} channels, expected 1 or {shape[0]}")
    offsets = np.cumsum([0, *(part.classes for part in parts)])[:-1].tolist()
    largest = max(parts, key=lambda part: part.input_shape[1] * part.input_shape[2])
    return Dataset(
        name=name,
        title=" + ".join(part.title for part in parts),
        train=_joined([part.train for part in parts], shape, offsets),
        test=_joined([part.test for part in parts], shape, offsets),
        class_names=tuple(f"{part.name}: {label}" for part in parts for label in part.class_names),
        preprocessing={"domains": {part.name: _note(part, shape, offset) for part, offset in zip(parts, offsets, strict=True)}},
        default_model=largest.default_model,
        default_local_epochs=min(part.default_local_epochs for part in parts),
        train_domain=np.repeat(np.arange(len(parts)), [len(part.train) for part in parts]),
        test_domain=np.repeat(np.arange(len(parts)), [len(part.test) for part in parts]),
        domain_names=tuple(part.name for part in parts),
    )


def resized(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return images (n, channels, h, w) float32 enlarged to (n, channels, height, width) float32, by bilinear interpolation.

    Pixel i lies at (i + ½)·h/height − ½ of the source, and border pixels extend beyond the border, as in torch's bilinear interpolation
    with ``align_corners=False``. Each direction is the sum of two products in float32. A size that does not change leaves all bits.

    >>> resized(np.array([[[[0.0, 4.0]]]], np.float32), 1, 4).ravel().tolist()
    [0.0, 1.0, 3.0, 4.0]
    """
    for axis, size in ((2, height), (3, width)):
        have = x.shape[axis]
        if have == size:
            continue
        place = np.clip((np.arange(size) + 0.5) * have / size - 0.5, 0, have - 1)
        low = np.floor(place).astype(np.int64)
        high = np.minimum(low + 1, have - 1)
        weight = (place - low).astype(np.float32).reshape((-1, 1) if axis == 2 else (-1,))
        x = x.take(low, axis) * (np.float32(1) - weight) + x.take(high, axis) * weight
    return x


def _loaded(name: str, data_dir: str | None) -> Dataset:
    try:
        data = datasets.load(name)(data_dir)
    except (EdgeflError, OSError):
        raise
    except Exception as error:  # a user's function may raise anything
        raise DataError(f"dataset {name}: its function raised {said(error)}") from error
    if not isinstance(data, Dataset):
        raise DataError(f"dataset {name}: its function returned {type(data).__name__}, expected a Dataset")
    return data


def _folder(data_dir: str | None, part: str) -> str | None:
    if data_dir is not None and (own := Path(data_dir) / part).is_dir():
        return str(own)
    return data_dir


def _joined(splits: list[Split], shape: tuple[int, ...], offsets: list[int]) -> Split:
    """Return all samples in one array, filled part by part, so that no part is in memory twice."""
    x = np.empty((sum(map(len, splits)), *shape), np.float32)
    start = 0
    for split in splits:
        x[start : start + len(split)] = resized(np.asarray(split.x), *shape[1:])  # one channel spreads over all
        start += len(split)
    return Split(x, np.concatenate([split.y + offset for split, offset in zip(splits, offsets, strict=True)]))


def _note(part: Dataset, shape: tuple[int, ...], offset: int) -> Preparation:
    note = {**part.preprocessing, "first_label": offset, "labels": part.classes}
    if part.input_shape[1:] != shape[1:]:
        note["resize"] = {"from": list(part.input_shape[1:]), "to": list(shape[1:]), "rule": _RESIZING}
    if part.input_shape[0] != shape[0]:
        note["repeat_channels"] = shape[0]
    return note
