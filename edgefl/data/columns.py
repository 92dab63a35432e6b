"""Tables: CSV, Parquet and Arrow files, also those in which the Hugging Face hub stores data sets. Rows are read block by block."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.data.given import Given, Reading
from edgefl.data.growing import Growing
from edgefl.data.images import HELD_OUT, grown
from edgefl.data.roles import Roles, arrow, is_image, is_number, is_text, kind_of, roles_of
from edgefl.errors import DataError, first_line
from edgefl.util.fields import Fields, each
from edgefl.util.fields import first as first_of
from edgefl.util.files import ending_of

ENDINGS = (".parquet", ".arrow", ".feather", ".csv")
_LEFT_OUT = ("unsupervised", "cache", "extra")


@dataclass(frozen=True)
class Table:
    """Rows of one part of a data set.

    Attributes:
        schema: the columns, a ``pyarrow.Schema``.
        batches: the rows, ``pyarrow.RecordBatch`` each; they are read once.
        where: begins messages.
        folder: paths of images are relative to it.
    """

    schema: Any
    batches: Iterable[Any]
    where: str
    folder: Path = Path()


def read(path: Path, reading: Reading) -> Given:
    """Return the rows of a file, or of the files of a folder; files with "test" or "validation" in their path are held out."""
    arrow(str(path))
    if not path.is_dir():
        return given_of(_table([path], str(path), reading), None, reading)
    train, test = parts_of({str(file.relative_to(path)): file for file in sorted(path.rglob("*")) if ending_of(file) in ENDINGS})
    if not train:
        raise DataError(f"{path}: no training rows in {', '.join(ENDINGS)} files")
    table = _table(train, str(path), reading)
    like = _like(roles_of(table.schema, table.where, reading))
    held_out = _table(test, str(path), like) if test and reading.held_out is None else None
    return given_of(table, held_out, reading)


def parts_of(named: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the values of training and of held-out parts, by the words in their names.

    >>> parts_of({"data/train-0.parquet": 0, "data/test-0.parquet": 1, "data/validation-0.parquet": 2})
    ([0], [1])
    """
    words = {name: set(re.split("[^a-z]+", name.lower())) for name in named}
    kept = [name for name in named if not words[name] & set(_LEFT_OUT)]
    held_out = next((word for word in HELD_OUT if any(word in words[name] for name in kept)), "")
    train = [named[name] for name in kept if not words[name] & set(HELD_OUT)]
    return train, [named[name] for name in kept if held_out in words[name]]


def given_of(train: Table, test: Table | None, reading: Reading) -> Given:
    """Return the samples of tables; DataError if a column is missing or cannot be guessed."""
    roles = roles_of(train.schema, train.where, reading)
    x, y, owner = _arrays(train, roles, reading.channels)
    held_out = None
    if test is not None:
        own = roles_of(test.schema, test.where, _like(roles))
        channels = each(lambda samples: samples.shape[1] if samples.ndim == 4 else 0, x)
        of_test = _arrays(test, own, channels)
        held_out = Given(of_test[0], of_test[1], test.where, of_test[2], own.class_names)
    return Given(x, y, train.where, owner, roles.class_names, held_out)


def _like(roles: Roles) -> Reading:
    """Return what gives the columns of another table the same roles."""
    return Reading(roles.label, roles.owner or None, roles.features)


def _arrays(table: Table, roles: Roles, channels: Fields[int] = 0) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Return samples, labels and owners of all rows. Features that are not all numbers are inputs: name of the column → samples."""
    if len(roles.features) > 1 and not all(is_number(table.schema, name) for name in roles.features):
        held = replace(table, batches=list(table.batches))
        each_channels = dict.fromkeys(roles.features, channels) if isinstance(channels, int) else channels
        found = {name: _arrays(held, replace(roles, features=(name,)), each_channels[name]) for name in roles.features}
        _, labels, owners = found[roles.features[0]]
        return {name: of[0] for name, of in found.items()}, labels, owners
    y: list[np.ndarray] = []
    owner: list[np.ndarray] = []
    first = roles.features[0]

    def batches() -> Iterator[Any]:
        for batch in table.batches:
            y.append(_values(batch, roles.label, table.where))
            if roles.owner:
                owner.append(_values(batch, roles.owner, table.where))
            yield batch

    if is_image(table.schema, first):
        x = grown(_contents(batches(), first, table), table.where, first_of(channels))
    else:
        texts, rows = is_text(table.schema, first), Growing(table.where)
        parts: list[np.ndarray] = []
        for batch in batches():
            if texts:
                parts.append(np.array([text or "" for text in batch.column(first).to_pylist()], object))
            elif is_number(table.schema, first):
                columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in roles.features]
                rows.add(np.stack(columns, 1).astype(np.float32))
            else:
                rows.add(_nested(batch.column(first), table.where, first))
        x = np.concatenate(parts) if texts and parts else rows.whole()
    if not y:
        raise DataError(f"{table.where}: no rows")
    return x, np.concatenate(y), np.concatenate(owner) if owner else None


def _contents(batches: Iterator[Any], name: str, table: Table) -> Iterator[tuple[str, bytes | Path]]:
    row = 0
    for batch in batches:
        for cell in batch.column(name).to_pylist():
            where = f"{table.where}: {name} of row {row}"
            content = cell.get("bytes") or cell.get("path") if isinstance(cell, dict) else cell
            if not content:
                raise DataError(f"{where} is missing, expected an image")
            yield where, content if isinstance(content, bytes) else table.folder / content
            row += 1


def _nested(column: Any, where: str, name: str) -> np.ndarray:
    """Return a column of lists, perhaps of lists, as an array (n, …)."""
    pa = arrow(where)
    array, shape = getattr(column, "storage", column), [len(column)]
    while pa.types.is_nested(array.type):
        sizes = {-1 if value is None else len(value) for value in array}
        if len(sizes) != 1 or -1 in sizes:
            found = " and ".join("missing" if n < 0 else str(n) for n in sorted(sizes)[:2])
            raise DataError(f"{where}: samples of mixed size: {name} has lists of {found}; bring all to one size")
        shape.append(sizes.pop())
        array = array.flatten()
    values: np.ndarray = array.to_numpy(zero_copy_only=False).reshape(shape)
    return values


def _values(batch: Any, name: str, where: str) -> np.ndarray:
    """Return the values of a column; DataError if its texts are not UTF-8, which are bytes in a CSV file of another encoding."""
    column = batch.column(name)
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    values: np.ndarray = column.to_numpy(zero_copy_only=False)
    for value in values.tolist() if values.dtype == object else ():
        try:
            _ = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError:
            raise DataError(f"{where}: column {name!r} has {value!r}, expected UTF-8; save the file in that encoding") from None
    return values


def _table(files: list[Path], where: str, reading: Reading) -> Table:
    schema = _opened(files[0])[0]
    return Table(schema, _rows(files, schema, roles_of(schema, where, reading), bool(reading.features)), where, files[0].parent)


def _rows(files: list[Path], schema: Any, roles: Roles, chosen: bool) -> Iterator[Any]:
    """Return the rows of ``files``, the first of which has ``schema``; if features were ``chosen``, other columns may differ."""
    types = _types(schema, roles)
    for file in files:
        own, batches = _opened(file, types)
        has = set(own.names)
        if odd := {roles.label, roles.owner or roles.label, *roles.features} - has if chosen else has ^ set(schema.names):
            one, other = (file, files[0]) if min(odd) in has else (files[0], file)
            raise DataError(f"{other}: no column {min(odd)!r}, which {one.name} has; give all files the same columns")
        for name in roles.features:
            if kind_of(own, name) != kind_of(schema, name):
                found = f"{own.field(name).type}, but {schema.field(name).type} in {files[0].name}"
                raise DataError(f"{file}: column {name!r} is {found}; give it the same type in all files")
        try:
            yield from batches
        except (OSError, ValueError) as error:  # pyarrow's errors are kinds of them
            raise DataError(f"{file}: cannot be read ({first_line(error)})") from None


def _types(schema: Any, roles: Roles) -> dict[str, Any]:
    """Return the types of features in CSV files: the first block of a file may show integers only, where others have floats or texts."""
    types = {name: schema.field(name).type for name in roles.features if kind_of(schema, name) in ("numbers", "texts")}
    pa = arrow(roles.label)
    return {name: of if pa.types.is_boolean(of) or is_text(schema, name) else pa.float64() for name, of in types.items()}


def _opened(path: Path, types: dict[str, Any] | None = None) -> tuple[Any, Iterable[Any]]:
    """Return schema and rows of a file; of a CSV file, some columns have given ``types``."""
    pa = arrow(str(path))
    try:
        schema, batches = _content(pa, path, types or {})
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no {path.suffix} file that can be read ({first_line(error)})") from None
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise DataError(f"{path}: {schema.names.count(twice[0])} columns are called {twice[0]!r}, expected different names")
    return schema, batches


def _content(pa: Any, path: Path, types: dict[str, Any]) -> tuple[Any, Iterable[Any]]:
    from pyarrow import csv, ipc, parquet

    if (ending := ending_of(path)) == ".csv":
        reader = csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=True))
        return reader.schema, reader
    if ending == ".parquet":
        file = parquet.ParquetFile(path)
        return file.schema_arrow, file.iter_batches(batch_size=1024)
    try:
        stored = ipc.open_file(pa.memory_map(str(path)))
        return stored.schema, map(stored.get_batch, range(stored.num_record_batches))
    except pa.ArrowInvalid:
        stream = ipc.open_stream(pa.memory_map(str(path)))
        return stream.schema, stream
