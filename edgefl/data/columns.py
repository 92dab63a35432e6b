"""Tables: CSV, Parquet and Arrow files, also those in which the Hugging Face hub stores data sets. Rows are read block by block."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgefl.data.cells import (
    arrow,
    is_image,
    is_list,
    is_number,
    is_text,
    kind_of,
    numbers_in,
    plain,
    rectangular,
    typed,
    values_of,
)
from edgefl.data.given import Given, Reading
from edgefl.data.growing import Growing
from edgefl.data.images import HELD_OUT, Pictures, grown
from edgefl.data.roles import Roles, roles_of
from edgefl.errors import DataError, first_line
from edgefl.records import DataRecord
from edgefl.util.fields import Fields, each
from edgefl.util.files import ending_of, files_below

Part = TypeVar("Part")
ENDINGS = (".parquet", ".arrow", ".feather", ".csv")
_WRITTEN = re.compile(r"\s*[€$£]?\s*[+-]?\d+([' \u00a0\u202f]\d{3})*([.,]\d+)*\s*[%€$£]?\s*")
"""A number as people write it, such as 1.234,5 or 12 %."""
_LEFT_OUT = ("unsupervised", "cache", "extra")


@dataclass(frozen=True)
class Table:
    """Rows of one part of a data set.

    Attributes:
        schema: the columns, a ``pyarrow.Schema``.
        batches: returns the rows with the columns that it is given, ``pyarrow.RecordBatch`` each.
        where: begins messages.
        folder: paths of images are relative to it.
        files: those that the rows are from.
        typed: whether labels and owners are texts that may stand for numbers, as in CSV files.
    """

    schema: Any
    batches: Callable[[list[str]], Iterable[Any]]
    where: str
    folder: Path = Path()
    files: tuple[Path, ...] = ()
    typed: bool = False


def read(path: Path, reading: Reading) -> Given:
    """Return the rows of a file, or of the files of a folder; files with "test" or "validation" in their path are held out."""
    with reading_errors(path):
        return _read(path, reading)


def _read(path: Path, reading: Reading) -> Given:
    if not path.is_dir():
        return given_of(_table([path], str(path), reading), None, reading)
    train, test = _tables_in(path)
    if not train:
        raise DataError(f"{path}: no training rows in {', '.join(ENDINGS)} files")
    table = _table(train, str(path), reading)
    like = _like(roles_of(table.schema, table.where, reading))
    held_out = _table(test, str(path), like) if test and reading.held_out is None else None
    return given_of(table, held_out, reading)


def _tables_in(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the tables in a folder and its subfolders: those for training, and those that are held out."""
    return parts_of({str(file.relative_to(path)): file for file in files_below(path) if ending_of(file) in ENDINGS})


def names_images(path: Path) -> bool:
    """Return whether the first table of a folder has a column with names of images that are in the folder."""
    with reading_errors(path):
        train, _ = _tables_in(path)
        return bool(train and Pictures(train[0]).columns(*_opened(train[0])))


@contextmanager
def reading_errors(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises about a damaged file or value into a :class:`DataError` that names ``path``."""
    pa = arrow(str(path))
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({first_line(error)})") from None


def parts_of(named: Mapping[str, Part]) -> tuple[list[Part], list[Part]]:
    """Return the values of training and of held-out parts, by the words in their names.

    >>> parts_of({"data/train-0.parquet": 0, "data/test-0.parquet": 1, "data/validation-0.parquet": 2})
    ([0], [1])
    """
    words = {name: set(re.split("[^a-z]+", name.lower())) for name in named}
    usable = [name for name in named if not words[name] & set(_LEFT_OUT)]
    held_out = next((word for word in HELD_OUT if any(word in words[name] for name in usable)), "")
    train = [named[name] for name in usable if not words[name] & set(HELD_OUT)]
    return train, [named[name] for name in usable if held_out in words[name]]


def given_of(train: Table, test: Table | None, reading: Reading) -> Given:
    """Return the samples of tables; DataError if a column is missing or cannot be guessed."""
    roles = roles_of(train.schema, train.where, reading)
    given = _given(train, roles, reading.channels, reading)
    if test is None:
        return given
    own = roles_of(test.schema, test.where, _like(roles))
    channels = each(lambda samples: samples.shape[1] if samples.ndim == 4 else 0, given.x)
    return replace(given, test=replace(_given(test, replace(own, record=DataRecord()), channels, reading)))


def _like(roles: Roles) -> Reading:
    """Return what gives the columns of another table the same roles."""
    return Reading(roles.label, roles.owner or None, roles.features)


def _given(table: Table, roles: Roles, channels: Fields[int], reading: Reading) -> Given:
    """Return samples, labels and owners of all rows. Features that are not all numbers are inputs: name of the column → samples."""
    y, owner = (_column(table, name) if name else None for name in (roles.label, roles.owner))
    if y is None or not len(y):
        raise DataError(f"{table.where}: no rows")
    record, x = roles.record, dict[str, np.ndarray]()
    groups = (
        [roles.features]
        if all(is_number(table.schema, name) for name in roles.features)
        else [(name,) for name in roles.features]
    )
    for names in groups:
        of = channels if isinstance(channels, int) else channels[names[0]]
        x[names[0]], more = _samples(table, names, of, reading.alpha)
        if x[names[0]].dtype == object and not reading.features and all(map(_WRITTEN.fullmatch, filter(None, x[names[0]]))):
            shown = f"column {names[0]!r} has numbers as people write them, such as {x[names[0]][0]!r}"
            raise DataError(f"{table.where}: {shown}; write them as 1234.5, or give --features {names[0]} to read them as texts")
        record = record.beside(more)
    layout = {name: "first" if is_image(table.schema, name) else reading.layout for name in x}
    one = len(groups) == 1
    samples, of_one = next(zip(x.values(), layout.values(), strict=True)) if one else (x, layout)
    return Given(samples, y, table.where, owner, roles.class_names, None, of_one, table.files, record)


def _samples(table: Table, names: tuple[str, ...], channels: int, alpha: str) -> tuple[np.ndarray, DataRecord]:
    """Return the samples that are in a column, or in several of numbers, and what was read of images."""
    first, none = names[0], DataRecord()
    if is_image(table.schema, first):
        return grown(lambda: _contents(table, first), table.where, channels, alpha)
    if is_text(table.schema, first):
        parts = [
            np.array([text or "" for text in plain(batch.column(first)).to_pylist()], object) for batch in table.batches([first])
        ]
        return np.concatenate(parts), none
    rows, count = Growing(table.where), 0
    for batch in table.batches(list(names)):
        if is_number(table.schema, first):
            rows.add(np.stack([numbers_in(batch.column(name), table.where, name) for name in names], 1))
        else:
            rows.add(rectangular(batch.column(first), table.where, first, count))
        count += len(batch)
    return rows.whole(), none


def _column(table: Table, name: str) -> np.ndarray:
    """Return the values of a column with labels or owners."""
    parts, count = list[np.ndarray](), 0
    for batch in table.batches([name]):
        column = batch.column(name)
        of_lists = is_list(table.schema, name)
        parts.append(rectangular(column, table.where, name, count) if of_lists else values_of(column, table.where, name))
        count += len(batch)
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(f"{table.where}: {name} has lists of several sizes; bring all to one size")
    values = np.concatenate(parts) if parts else np.zeros(0)
    return typed(values, name, table.where) if table.typed else values


def _contents(table: Table, name: str) -> Iterator[tuple[str, bytes | Path]]:
    row = 0
    for batch in table.batches([name]):
        for cell in plain(batch.column(name)).to_pylist():
            where = f"{table.where}: {name} of row {row}"
            content = cell.get("bytes") or cell.get("path") if isinstance(cell, dict) else cell
            if not content:
                raise DataError(f"{where} is missing, expected an image")
            yield where, content if isinstance(content, bytes) else table.folder / content
            row += 1


def _table(files: list[Path], where: str, reading: Reading) -> Table:
    schema, batches = _opened(files[0])
    pictures = Pictures(files[0])
    schema = pictures.schema(schema, pictures.columns(schema, batches))
    roles = roles_of(schema, where, reading)
    types = _types(schema, roles, files[0])
    return Table(
        schema, lambda columns: _rows(files, schema, roles, types, columns, bool(reading.features)), where, files[0].parent, tuple(files),
        any(ending_of(file) == ".csv" for file in files),
    )  # fmt: skip


def _rows(files: list[Path], schema: Any, roles: Roles, types: Any, columns: list[str], chosen: bool) -> Iterator[Any]:
    """Return ``columns`` of ``files``, the first of which has ``schema``; if features were ``chosen``, other columns may differ."""
    for file in files:
        own, batches = _opened(file, types, columns)
        pictures = Pictures(file)
        own = pictures.schema(
            own, named := [name for name in schema.names if name in own.names and pictures.named(schema, own, name)]
        )
        has = set(own.names)
        if odd := {roles.label, roles.owner or roles.label, *roles.features} - has if chosen else has ^ set(schema.names):
            one, other = (file, files[0]) if min(odd) in has else (files[0], file)
            raise DataError(f"{other}: no column {min(odd)!r}, which {one.name} has; give all files the same columns")
        for name in roles.features:
            if kind_of(own, name) != kind_of(schema, name):
                kinds = f"{own.field(name).type}, but {schema.field(name).type} in {files[0].name}"
                raise DataError(f"{file}: column {name!r} is {kinds}; give it the same type in all files")
        try:
            yield from pictures.batches(batches, [name for name in columns if name in named])
        except (OSError, ValueError) as error:  # pyarrow's errors are kinds of them
            raise DataError(f"{file}: cannot be read ({first_line(error)})") from None


def _types(schema: Any, roles: Roles, file: Path) -> Any:
    """Return the types of columns in CSV files: the first block of a file may show integers only, where others have floats or texts.

    Labels and owners are read as texts, whatever they look like: "true" and "NA" are names there.
    """
    pa = arrow(roles.label)
    types = {name: schema.field(name).type for name in roles.features if kind_of(schema, name) in ("numbers", "texts")}
    wanted = {name: of if pa.types.is_boolean(of) or is_text(schema, name) else pa.float64() for name, of in types.items()}
    if ending_of(file) == ".csv":
        wanted |= {name: pa.string() for name in (roles.label, roles.owner) if name and not is_image(schema, name)}
    return pa.schema(wanted)


def _opened(path: Path, types: Any = None, columns: list[str] | None = None) -> tuple[Any, Iterable[Any]]:
    """Return schema and rows of a file: of CSV with the ``types`` of some columns, of Parquet only ``columns``."""
    pa = arrow(str(path))
    try:
        if ending_of(path) == ".csv":
            _check_form(path)
        schema, batches = _content(pa, path, types, columns)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no {path.suffix} file that can be read ({first_line(error)})") from None
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise DataError(f"{path}: {schema.names.count(twice[0])} columns are called {twice[0]!r}, expected different names")
    return schema, batches


def _check_form(path: Path) -> None:
    """Raise :class:`DataError` if a CSV file has another form, as spreadsheets save it: UTF-16, or no comma between fields."""
    with path.open("rb") as file:
        head = file.readline(1 << 16)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(f"{path}: text in UTF-16, expected UTF-8; save it as CSV UTF-8")
    if b"," not in head and (other := next((sign for sign in ";\t|" if sign.encode() in head), "")):
        raise DataError(f"{path}: fields are separated by {other!r}, expected commas; save it with commas, and numbers as 1234.5")


def _content(pa: Any, path: Path, types: Any, columns: list[str] | None) -> tuple[Any, Iterable[Any]]:
    from pyarrow import csv, ipc, parquet

    if (ending := ending_of(path)) == ".csv":
        # "NA" and "null" are missing numbers, but texts among texts.
        reader = csv.open_csv(path, convert_options=csv.ConvertOptions(column_types=types, strings_can_be_null=False))
        return reader.schema, reader
    if ending == ".parquet":
        file = parquet.ParquetFile(path)
        return file.schema_arrow, file.iter_batches(
            batch_size=1024, columns=columns and [name for name in columns if name in file.schema_arrow.names]
        )
    try:
        stored = ipc.open_file(pa.memory_map(str(path)))
        return stored.schema, map(_validated, map(stored.get_batch, range(stored.num_record_batches)))
    except pa.ArrowInvalid:
        stream = ipc.open_stream(pa.memory_map(str(path)))
        return stream.schema, map(_validated, stream)


def _validated(batch: Any) -> Any:
    """Return a batch whose offsets lie inside it: pyarrow reads memory beyond a damaged one."""
    batch.validate(full=True)
    return batch
