"""Data sets of Python's own objects: arrays, and indexable samples such as those of a torch ``Dataset``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from edgefl.data.given import HELD_OUT_SHARE, Given
from edgefl.errors import DataError, first_line
from edgefl.util.fields import each


def of_arrays(
    x: Any,
    y: Any,
    owner: Any = None,
    *,
    test: tuple[Any, ...] | None = None,
    class_names: Iterable[str] = (),
    name: str = "arrays",
    held_out: float = HELD_OUT_SHARE,
    channels: str = "",
) -> tuple[Given, str, float]:
    """Return arrays as they were given, their name, and the share to hold out; see :meth:`edgefl.Dataset.from_arrays`."""
    if not 0 < held_out < 1:
        raise DataError(f"held_out: got {held_out}, expected a share of more than 0 and less than 1")
    if channels not in ("", "first", "last"):
        raise DataError(f'channels: got {channels!r}, expected "first" or "last"')
    given = replace(_given(x, y, owner, tuple(class_names)), layout=channels)
    return given if test is None else replace(given, test=_given(*test)), name, held_out


def of_samples(
    samples: Any, test: Any = None, name: str = "samples", held_out: float = HELD_OUT_SHARE
) -> tuple[Given, str, float]:
    """Return :func:`of_arrays` of indexable ``samples``, such as a torch ``Dataset``; DataError if they are no pairs."""
    parts = []
    for of in (samples, test) if test is not None else (samples,):
        try:
            pairs = [of[number] for number in range(len(of))]
            xs, ys = zip(*((x, y) for x, y in pairs), strict=True)
        except (TypeError, ValueError):
            raise DataError(f"{name}: expected a data set whose samples are pairs (sample, label)") from None
        parts.append((_stacked([_by_name(x) for x in xs], name), np.asarray(ys)))
    return of_arrays(*parts[0], test=parts[1] if test is not None else None, name=name, held_out=held_out)


def _by_name(x: Any) -> Any:
    """Return ``x`` as it is, or as name → input: the arrays of a tuple are called 0, 1 and so on."""
    if isinstance(x, Mapping):
        return {str(name): value for name, value in x.items()}
    if isinstance(x, tuple) and len(x) > 1 and all(getattr(part, "ndim", 0) for part in x):
        return dict(zip(map(str, range(len(x))), x, strict=True))
    return x


def _given(x: Any, y: Any, owner: Any = None, class_names: tuple[str, ...] = ()) -> Given:
    # A tuple of as many arrays as there are labels is one array, a row for each.
    x = x if isinstance(x, tuple) and len(x) == len(y) else _by_name(x)
    if isinstance(x, Mapping) and not x:
        raise DataError("from_arrays: got an empty dictionary as x, expected name → array of samples")
    owner = None if owner is None else _array(owner, "owner")
    return Given(each(partial(_array, what="x"), x), _array(y, "y"), "from_arrays", owner, class_names)


def _array(values: Any, what: str) -> np.ndarray:
    """Return ``values`` as an array, a map of a file as it is; DataError if rows differ in size, or values are masked."""
    if hasattr(values, "detach"):  # a tensor of torch; numpy has no 16-bit floats with an exponent of 8 bits
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values
    if np.ma.is_masked(values):
        raise DataError(
            f"from_arrays: {what} has {np.ma.getmaskarray(values).sum()} masked values; fill them, or leave their samples out"
        )
    try:
        # Workers map a file again, without what a copy-on-write map has changed. A matrix has two dimensions in every slice.
        return values if isinstance(values, np.memmap) and values.mode != "c" else np.asarray(values)
    except ValueError as error:
        raise DataError(f"from_arrays: {what} is no array ({first_line(error)}); bring all samples to one size") from None


def _stacked(samples: list[Any], where: str) -> Any:
    """Return samples of one shape as an array (n, …), or name → array; DataError names the first one of another shape or other inputs."""
    if not any(isinstance(sample, Mapping) for sample in samples):
        return _rows(samples, where)
    names = list(samples[0]) if isinstance(samples[0], Mapping) else []
    for number, sample in enumerate(samples):
        inputs = list(sample) if isinstance(sample, Mapping) else []
        if set(inputs) != set(names):
            has, expected = (", ".join(of) or "one without a name" for of in (inputs, names))
            raise DataError(f"{where}: sample {number} has the inputs {has}, but sample 0 has {expected}")
    return {name: _rows([sample[name] for sample in samples], f"{where}, input {name}") for name in names}


def _rows(samples: Iterable[Any], where: str) -> np.ndarray:
    arrays = [np.asarray(sample) for sample in samples]
    for number, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            first = f"sample 0 has shape {arrays[0].shape}"
            raise DataError(f"{where}: {first}, but sample {number} has {array.shape}; bring all samples to one size")
    return np.stack(arrays) if arrays else np.zeros((0, 1), np.float32)
