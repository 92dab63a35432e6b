"""Your own data set, by its path: a file of arrays, a table, a folder of images, or a data set of the Hugging Face hub."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from edgefl.data.given import HELD_OUT_SHARE, Given, Reading, dataset_of
from edgefl.data.npz import arrays_in
from edgefl.data.objects import from_samples
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError, DataError
from edgefl.util.datasets import HUB, data_title, share_in
from edgefl.util.files import ending_of, exists
from edgefl.util.modules import OBJECT
from edgefl.util.networks import object_of

READERS = {
    ".npz": "npz", ".npy": "npz", ".csv": "columns", ".parquet": "columns", ".arrow": "columns", ".feather": "columns",
}  # fmt: skip
"""The ending of a file → the module of this package that reads it."""


def load_own(spec: str, reading: Reading) -> Dataset:
    """Return the data set that ``spec`` names: a path, ``hf:ID``, or an object that this process has been given.

    Raises:
        DataError: it cannot be read, or its samples or labels are wrong.
        ConfigError: ``reading`` is about files, and the data set is an object; a share of held-out samples is for indexable objects too.
    """
    if spec.startswith(OBJECT):
        given: Any = object_of(spec)
        if given is None:
            raise DataError(
                f"dataset: {data_title(spec)} was given as an object from Python, which only that process has; give it again"
            )
        share = None if isinstance(given, Dataset) else share_in(reading.held_out)
        if ignored := [key for key, value in vars(reading).items() if value and not (key == "held_out" and share)]:
            remedy = "they are for data in files; Dataset.from_arrays and Dataset.from_samples take owners and held-out samples"
            raise ConfigError(f"{', '.join(ignored)}: {data_title(spec)} was given as an object from Python; {remedy}")
        if isinstance(given, Dataset):
            return given
        return from_samples(given, name=data_title(spec), held_out=share or HELD_OUT_SHARE)
    given, files = _read(spec, reading)
    share = share_in(reading.held_out)
    if reading.held_out is not None and share is None:
        held_out, more = _read(reading.held_out, reading)
        given, files = replace(given, test=held_out), [*files, *more]
    elif share is not None:
        given = replace(given, test=None)
    data = dataset_of(given, data_title(spec), share or HELD_OUT_SHARE)
    return replace(data, sha256=hash_of(files))


def given_in(path: Path, reading: Reading) -> Given:
    """Return the samples in a file, or in the files of a folder; DataError if there are none."""
    if not exists(path):
        raise DataError(
            f"{path}: no such file or folder; a data set of the Hugging Face hub is {HUB}ID, such as {HUB}uoft-cs/cifar10"
        )
    if path.is_dir():
        kinds = {READERS.get(ending_of(file)) for file in path.rglob("*") if file.is_file() and ending_of(file) != ".npz"}
        kind = next((kind for kind in ("columns", "npz") if kind in kinds), "images")
    elif (ending := ending_of(path)) not in READERS:
        raise DataError(
            f"{path}: unknown ending, expected {', '.join(READERS)}, or a folder with a subfolder of images per class"
        )
    else:
        kind = READERS[ending]
    read: Callable[[Path, Reading], Given] = import_module(f"edgefl.data.{kind}").read
    return read(path, reading)


def files_in(path: Path) -> list[Path]:
    """Return the files of a data set, sorted: ``path`` itself, or all files in the folder."""
    if ending_of(path) == ".npy":
        return sorted(arrays_in(path.parent))
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def hash_of(files: list[Path]) -> str:
    """Return one SHA-256 of the names and contents of ``files``."""
    found = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                found.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    return found.hexdigest()


def _read(spec: str, reading: Reading) -> tuple[Given, list[Path]]:
    if spec.startswith(HUB):
        from edgefl.data.hub import read

        return read(spec.removeprefix(HUB), reading)
    path = Path(spec)
    return given_in(path, reading), files_in(path)
