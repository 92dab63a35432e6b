"""Your own data set, by its path: a file of arrays, a table, a folder of images, or a data set of the Hugging Face hub."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from edgefl.data.given import HELD_OUT_SHARE, Given, Reading
from edgefl.data.npz import arrays_in
from edgefl.data.prepared import Usual
from edgefl.data.sources import Dataset
from edgefl.errors import ConfigError, DataError
from edgefl.records import DataRecord
from edgefl.records.data import some
from edgefl.util.datasets import HUB, data_title, options_in, share_in
from edgefl.util.files import ending_of, exists, files_below, require_plain
from edgefl.util.modules import OBJECT
from edgefl.util.networks import object_of

READERS = {
    ".npz": "npz", ".npy": "npz", ".csv": "columns", ".parquet": "columns", ".arrow": "columns", ".feather": "columns",
}  # fmt: skip
"""The ending of a file → the module of this package that reads it."""
_MOST_FILES = 10


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
        return Dataset.from_samples(given, name=data_title(spec), held_out=share or HELD_OUT_SHARE)
    given, files = _read(spec, reading)
    share, own_test = share_in(reading.held_out), given.test
    if reading.held_out is not None and share is None:
        held_out, more = _read(reading.held_out, reading)
        given, files = replace(given, test=held_out), [*files, *more]
    elif share is not None:
        given = replace(given, test=None)
    if own_test is not None and reading.held_out is not None:
        left = DataRecord(left_out=(f"held-out samples of the data: --held-out {reading.held_out} takes their place",))
        given = replace(given, record=given.record.beside(left))
    data = Dataset.of(given, data_title(spec), share or HELD_OUT_SHARE, usual_of(reading.preprocessing))
    return replace(data, sha256=hash_of(files))


def usual_of(preprocessing: str) -> Usual:
    """Return what a JSON text prescribes; nothing if it is empty."""
    if not preprocessing:
        return Usual()
    how = json.loads(preprocessing)
    mean, std = (tuple(of) if isinstance(of, list) else (of,) for of in (how["mean"], how["std"]))
    return Usual(mean=mean, std=std, scale=how["scale"])


def given_in(path: Path, reading: Reading) -> Given:
    """Return the samples in a file, or in the files of a folder; DataError if there are none."""
    if not exists(path):
        raise DataError(
            f"{path}: no such file or folder; a data set of the Hugging Face hub is {HUB}ID, such as {HUB}uoft-cs/cifar10"
        )
    require_plain(path, DataError)
    if path.is_dir():
        kind = _kind_of_folder(path, reading)
    elif (ending := ending_of(path)) not in READERS:
        raise DataError(
            f"{path}: unknown ending, expected {', '.join(READERS)}, or a folder with a subfolder of images per class"
        )
    else:
        kind = READERS[ending]
    read: Callable[[Path, Reading], Given] = import_module(f"edgefl.data.{kind}").read
    given = read(path, reading)
    return replace(given, record=given.record.beside(_used(path, given)))


def _kind_of_folder(path: Path, reading: Reading) -> str:
    """Return the module that reads a folder; DataError if images and a table both say what the classes are."""
    from edgefl.data.images import has_classes

    if reading.form:
        return {"images": "images", "table": "columns"}[reading.form]
    kinds = {READERS.get(ending_of(file)) for file in files_below(path) if ending_of(file) != ".npz"}
    kind = next((kind for kind in ("columns", "npz") if kind in kinds), "images")
    if kind == "images" or not has_classes(path):
        return kind
    if kind == "npz":
        return kind if exists(path / f"{reading.label or 'y'}.npy") else "images"
    from edgefl.data.columns import names_images

    if not names_images(path):
        return "images"
    readings = "as=images takes the names of the subfolders as classes, as=table takes a column"
    raise DataError(
        f"{path}: images are in subfolders of classes, and a table names them too: {readings}; give --data {path}:as=…"
    )


def _used(path: Path, given: Given) -> DataRecord:
    """Return which files of a data set were read, and which were left out."""
    used = {*given.files, *(given.test.files if given.test else ())}
    if not path.is_dir():
        return DataRecord(files=tuple(sorted(file.name for file in used)))
    by_folder = Counter(str(file.parent.relative_to(path)) for file in used)
    names = [f"{folder}: {count:,} files" for folder, count in sorted(by_folder.items())]
    if len(used) <= _MOST_FILES:
        names = sorted(str(file.relative_to(path)) for file in used)
    others: dict[str, list[str]] = {}
    for file in files_below(path):
        if file not in used:
            others.setdefault(file.suffix.lower(), []).append(str(file.relative_to(path)))
    left = (
        f"{len(of):,} file{'s' * (len(of) > 1)} {ending or 'without ending'}: {some(of, 3)}"
        for ending, of in sorted(others.items())
    )
    return DataRecord(files=tuple(names), left_out=tuple(left))


def files_in(path: Path) -> list[Path]:
    """Return the files of a data set, sorted: ``path`` itself, or all files in the folder."""
    if ending_of(path) == ".npy":
        return sorted(arrays_in(path.parent))
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def hash_of(files: list[Path]) -> str:
    """Return one SHA-256 of the names and contents of ``files``."""
    digest = hashlib.sha256()
    for file in files:
        try:
            with file.open("rb") as content:
                digest.update(file.name.encode() + b"\0" + hashlib.file_digest(content, "sha256").digest())
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _read(spec: str, reading: Reading) -> tuple[Given, list[Path]]:
    spec, options = options_in(spec)
    if options:
        chosen = {"channels": "layout", "alpha": "alpha", "as": "form"}
        reading = replace(reading, **{chosen[name]: value for name, value in options.items()})  # type: ignore[arg-type]
    if spec.startswith(HUB):
        from edgefl.data.hub import read

        return read(spec.removeprefix(HUB), reading)
    path = Path(spec)
    return given_in(path, reading), files_in(path)
