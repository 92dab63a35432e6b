"""Arrays in files: ``.npz`` with ``x``, ``y`` and perhaps ``owner``, or ``.npy`` files of these names beside each other.

Instead of ``x``, a file may have an array for each input of a network, called as the argument of its ``forward``.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.given import Given, Reading
from edgefl.data.growing import MAPPED_BYTES
from edgefl.errors import DataError, first_line
from edgefl.records import DataRecord
from edgefl.util.files import ending_of

_HEADER_BYTES, _NAME_AT = 30, 26
_DAMAGED = (ValueError, EOFError, LookupError, MemoryError, TypeError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error)
"""The errors of damaged archives and arrays; RuntimeError if a flipped bit says that a member is encrypted."""


def read(path: Path, reading: Reading) -> Given:
    """Return the arrays of an .npz file, of a folder of .npy files, or of an ``x.npy`` and the files beside it.

    Files may have held-out samples, ``x_test`` and ``y_test``, and ``class_names``. Nothing is unpickled. DataError names what is wrong.
    """
    if ending_of(path) == ".npz":
        files, arrays = [path], _of_npz(path)
    else:
        files = arrays_in(path if path.is_dir() else path.parent)
        arrays = _Arrays({file.stem: (file, "") for file in files})
    y, owner = reading.label or "y", reading.owner or "owner"
    for needed in (y, *([owner] if reading.owner else [])):
        if needed not in arrays:
            raise DataError(f"{path}: no array {needed!r}, expected x and y; there are {', '.join(sorted(arrays)) or 'none'}")
    names = tuple(map(str, arrays["class_names"].tolist())) if "class_names" in arrays else ()
    if not arrays[y].size:
        raise DataError(f"{path}: {y} is empty, expected a label for each sample")
    inputs = _inputs(arrays, path, {y, owner, "class_names"}, reading.features)
    test = None
    if held_out := [name for name in inputs if f"{name}_test" in arrays]:
        missing = [f"{name}_test" for name in (*inputs, y) if f"{name}_test" not in arrays]
        if missing:
            raise DataError(f"{path}: {held_out[0]}_test has no {missing[0]} beside it")
        test = Given(_samples(arrays, inputs, "_test"), arrays[f"{y}_test"], str(path), arrays.get(f"{owner}_test"))
    return Given(
        _samples(arrays, inputs), arrays[y], str(path), arrays.get(owner), names, test, reading.layout,
        tuple(files), _record(arrays, inputs, y, owner),
    )  # fmt: skip


def _record(arrays: Mapping[str, np.ndarray], inputs: list[str], y: str, owner: str) -> DataRecord:
    """Return which arrays are samples, labels and owners, and which are left out."""
    used = {name for own in (*inputs, y, owner) for name in (own, f"{own}_test")} | {"class_names"}
    left = tuple(f"array {name!r}: no sample, label or owner" for name in arrays if name not in used)
    return DataRecord(features=tuple(inputs), label=y, owner=owner if owner in arrays else "", left_out=left)


def _inputs(arrays: Mapping[str, np.ndarray], path: Path, others: set[str], chosen: tuple[str, ...]) -> list[str]:
    """Return the names of the arrays of samples: the ``chosen`` ones, ``x``, or all except ``others`` and held-out ones."""
    held_out = {f"{name}_test" for name in arrays}
    inputs = list(chosen) or ["x"] * ("x" in arrays) or [name for name in arrays if name not in held_out | others]
    if not inputs or (unknown := [name for name in inputs if name not in arrays]):
        missing = repr(unknown[0]) if inputs else "'x'"
        raise DataError(f"{path}: no array {missing}, expected x and y; there are {', '.join(sorted(arrays)) or 'none'}")
    return inputs


def _samples(arrays: Mapping[str, np.ndarray], inputs: list[str], suffix: str = "") -> Any:
    return arrays[f"x{suffix}"] if inputs == ["x"] else {name: arrays[f"{name}{suffix}"] for name in inputs}


def arrays_in(folder: Path) -> list[Path]:
    """Return the ``.npy`` files of a folder."""
    return [path for path in folder.iterdir() if ending_of(path) == ".npy" and path.is_file()]


def array_in(path: Path, member: str = "") -> np.ndarray:
    """Return the array of a .npy file, or of the ``member`` of an .npz file, mapped if it is large; DataError if it cannot be read."""
    try:
        if not member:
            array: np.ndarray = np.load(path, "r" if path.stat().st_size > MAPPED_BYTES else None, allow_pickle=False)
            return array
        with zipfile.ZipFile(path) as file:
            info = file.getinfo(f"{member}.npy")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"compressed in way {info.compress_type}, not as NumPy does")
            if info.compress_type == zipfile.ZIP_STORED and info.file_size > MAPPED_BYTES:
                return _mapped(path, info.header_offset)
            with file.open(info) as stored:
                return np.lib.format.read_array(stored, allow_pickle=False)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except _DAMAGED as error:
        what = f"{member} in {path}" if member else str(path)
        raise DataError(f"{what}: not a plain array ({first_line(error)}); arrays of Python objects are not read") from None


def _of_npz(path: Path) -> "_Arrays":
    try:
        with zipfile.ZipFile(path) as file:
            members = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except _DAMAGED as error:
        raise DataError(f"{path}: not an .npz file, or an incomplete one ({first_line(error)})") from None
    return _Arrays({name: (path, name) for name in members})


class _Arrays(Mapping[str, np.ndarray]):
    """Name → array, read when it is asked for."""

    def __init__(self, places: Mapping[str, tuple[Path, str]]) -> None:
        self._places = places

    def __getitem__(self, name: str) -> np.ndarray:
        return array_in(*self._places[name])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _mapped(path: Path, header: int) -> np.ndarray:
    """Return the array of a stored member of a zip file, whose local header begins at byte ``header``, without reading it."""
    with path.open("rb") as file:
        file.seek(header + _NAME_AT)
        name, extra = (int.from_bytes(file.read(2), "little") for _ in range(2))
        file.seek(header + _HEADER_BYTES + name + extra)
        version = np.lib.format.read_magic(file)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(file)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
