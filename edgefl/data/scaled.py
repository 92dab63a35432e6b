"""Samples as they were given, perhaps in a file larger than the memory: an index returns them prepared for a network."""

import mmap
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgefl.errors import DataError

_AT_ONCE = 128  # samples per block, whose intermediate results fit a processor's cache
_MEASURED_AT_ONCE = 256
_VALUES = 256
Scale = float | tuple[float, ...]
"""One number for all channels, or one for each."""


@dataclass(frozen=True, eq=False)
class Scaled:
    """Samples ``raw`` (n, channels, …) of uint8 or floats. An index returns (raw · scale − mean) / std as a new float32 array.

    The scale is 1/255 for uint8, which needs a quarter of the memory of float32, and 1 for floats. Floats are computed in float64, so that
    a large mean leaves the differences, and rounded once. Pixels of 8 bits lose nothing in float32. A sample has the same bits in every
    index.

    Attributes:
        raw: the samples; a ``numpy.memmap`` stays on the disk, and what an index has read leaves the memory again.
        mean, std: one for all, or one for each entry of the second dimension.
        rows: which of ``raw`` the samples are, (n,) int64; None: all of them.

    >>> images = Scaled(np.array([[[[0, 255]]], [[[51, 0]]]], np.uint8), mean=0.5, std=0.25)
    >>> images.shape, images.dtype.name, images[1:].tolist(), len(np.asarray(images))
    ((2, 1, 1, 2), 'float32', [[[[-1.2000000476837158, -2.0]]]], 2)
    """

    raw: np.ndarray
    mean: Scale
    std: Scale
    rows: np.ndarray | None = None

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all samples, (n, channels, …)."""
        return (len(self), *self.raw.shape[1:])

    @property
    def ndim(self) -> int:
        """The number of dimensions, with that of the samples."""
        return self.raw.ndim

    @property
    def mapped(self) -> bool:
        """Whether the samples are in a file and are read when they are needed."""
        return isinstance(self.raw, np.memmap)

    def __len__(self) -> int:
        return len(self.raw) if self.rows is None else len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        if isinstance(index, (int, np.integer)):
            return self[index : index + 1 or None][0]
        places = index if self.rows is None else self.rows[index]
        if self.mapped:
            places = np.arange(len(self.raw))[places]
            raw, count = self.raw, len(places)
        else:
            raw = self.raw[places]
            count = len(raw)
        mean, std = (_spread(value, self.ndim) for value in (self.mean, self.std))
        taken = np.empty((count, *raw.shape[1:]), np.float32)
        for start in range(0, count, _AT_ONCE):
            block = slice(start, start + _AT_ONCE)
            part: np.ndarray = taken[block]
            values = raw[places[block]] if self.mapped else raw[block]
            if raw.dtype == np.uint8:
                np.divide(values, np.float32(255.0), out=part, dtype=np.float32)
                np.subtract(part, mean, out=part, dtype=np.float32, casting="same_kind")
                np.divide(part, std, out=part, dtype=np.float32, casting="same_kind")
            else:
                exact = values.astype(np.float64)
                np.subtract(exact, mean, out=exact)
                np.divide(exact, std, out=part, casting="same_kind")
            release(self.raw)  # the system reads more of the file than was asked for
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)

    def at(self, chosen: np.ndarray) -> "Scaled":
        """Return the samples with the numbers ``chosen`` (k,) int64: a copy that needs no more bytes each, or places in the same file."""
        if self.mapped:
            return replace(self, rows=chosen if self.rows is None else self.rows[chosen])
        return replace(self, raw=self.raw[chosen if self.rows is None else self.rows[chosen]], rows=None)


def measured(raw: np.ndarray, rows: np.ndarray, where: str) -> tuple[Scale, Scale]:
    """Return mean and standard deviation of the samples ``rows`` of ``raw`` (n, channels, …), scaled, for each entry of dimension 2.

    A channel whose values are all equal has the deviation 1. Pixels are counted, so that their figures are exact to float64.

    Raises:
        DataError: a float is NaN or infinite; the message names ``where`` and the sample.

    >>> measured(np.array([[[0, 255]], [[255, 0]]], np.uint8), np.arange(2), "x")
    (0.5, 0.5)
    """
    blocks = [rows[start : start + _MEASURED_AT_ONCE] for start in range(0, len(rows), _MEASURED_AT_ONCE)]
    values = len(rows) * int(np.prod(raw.shape[2:]))
    channels = raw.shape[1]
    if raw.dtype == np.uint8:
        counts = np.zeros((channels, _VALUES), np.int64)
        for block in blocks:
            taken = _of_channels(raw, block)
            counts += np.stack([np.bincount(channel, minlength=_VALUES) for channel in taken])
        pixel = np.arange(_VALUES) / 255
        mean = counts @ pixel / values
        variance = (counts * (pixel - mean[:, None]) ** 2).sum(1) / values
    else:
        mean, variance = np.zeros(channels), np.zeros(channels)
        for block in blocks:
            taken = _of_channels(raw, block).astype(np.float64)
            if len(bad := np.flatnonzero(~np.isfinite(taken.reshape(channels, len(block), -1)).all((0, 2)))):
                raise DataError(f"{where}: sample {block[bad[0]]} has NaN or infinity, expected finite numbers")
            with np.errstate(over="ignore"):
                mean += taken.sum(1)
        mean /= values
        for block in blocks:
            with np.errstate(over="ignore"):
                variance += ((_of_channels(raw, block).astype(np.float64) - mean[:, None]) ** 2).sum(1)
        variance /= values
        if not np.isfinite(variance).all():
            raise DataError(f"{where}: values are too large to be normalised, expected at most 1e150; scale them")
    std = np.sqrt(variance)
    std[std == 0] = 1.0
    return (float(mean[0]), float(std[0])) if channels == 1 else (tuple(mean.tolist()), tuple(std.tolist()))


def release(raw: np.ndarray) -> None:
    """Let the pages of a mapped file that were read leave this process.

    Other memory stays: the system would find every page of shared memory anew, and forget the changes of a copy-on-write map.
    """
    base: Any = raw
    file: np.memmap[Any, Any] | None = None
    while base is not None and not isinstance(base, mmap.mmap):
        file = base if isinstance(base, np.memmap) else file
        base = getattr(base, "base", None)  # of arrays, and of what as_strided makes
    if base is not None and file is not None and file.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)


def _of_channels(raw: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Return the values of some samples by channel, (channels, values)."""
    taken = np.moveaxis(raw[block], 1, 0).reshape(raw.shape[1], -1)
    release(raw)
    return taken


def _spread(value: Scale, dimensions: int) -> np.ndarray | np.float64:
    if isinstance(value, tuple):
        return np.asarray(value, np.float64).reshape(-1, *[1] * (dimensions - 2))
    return np.float64(value)
