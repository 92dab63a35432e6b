"""The rows of a recorded trace, read from CSV or Parquet and checked one by one."""

from __future__ import annotations

import csv
import importlib
import math
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgefl.errors import DataError, nearest
from edgefl.util.files import require_plain
from edgefl.util.units import human_seconds

CONDITIONS = ("idle", "charging", "unmetered")
COLUMNS = ("client", "from", "to", "state")
_LARGEST_CLIENT = 10**18 - 1
_STATE = f"conditions out of {', '.join(CONDITIONS)}, joined by '+', or 'eligible' for all of them, or 'none'"
_CLIENT = "a whole number from 0 to 10^18 - 1"
_SECONDS = "seconds, a finite number from 0"
_EXPECTED = dict(zip(COLUMNS, (_CLIENT, _SECONDS, _SECONDS, _STATE), strict=True))


@dataclass(frozen=True, eq=False)
class Intervals:
    """Rows of a trace: columns of one length.

    Attributes:
        unit: what ``line`` counts: a CSV file's lines, or a Parquet file's rows.
        line, client: int64; lines from 1.
        from_s, to_s: float64.
        state: uint8, a bit for each of ``CONDITIONS`` that holds.
    """

    unit: Literal["line", "row"]
    line: np.ndarray
    client: np.ndarray
    from_s: np.ndarray
    to_s: np.ndarray
    state: np.ndarray

    def at(self, order: np.ndarray) -> Intervals:
        """Return the rows numbered ``order``, in that order."""
        return Intervals(self.unit, *(column[order] for name, column in vars(self).items() if name != "unit"))


def read_intervals(path: Path) -> Intervals:
    """Return the rows of a trace.

    Raises:
        DataError: names the file, the line or row, the column, what was found and what was expected.
    """
    try:
        require_plain(path, DataError)
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1" or path.suffix.lower() in (".parquet", ".pq")
        rows = _from_parquet(path) if parquet else _from_csv(path)
    except OSError as error:
        folder = "availability: cannot be read, because it is a folder; expected a trace file (CSV or Parquet)"
        reasons = {FileNotFoundError: "no such file", IsADirectoryError: folder}
        raise DataError(f"{path}: {reasons.get(type(error), f'cannot be read ({error})')}") from None
    if not len(rows.line):
        raise DataError(f"{path}: expected rows of {', '.join(COLUMNS)}, got none")
    return _checked(path, rows)


_YEAR_S = 365.25 * 86_400
LATEST_S = 7 * 86_400.0
"""A server waits a week for clients, so a trace that begins later has none."""


def _checked(path: Path, rows: Intervals) -> Intervals:
    """Return ``rows`` with client numbers as int64 if their numbers lie where they must."""
    problems = [
        ("client", _CLIENT, rows.client, (rows.client < 0) | (rows.client > _LARGEST_CLIENT)),
        ("from", _SECONDS, rows.from_s, ~np.isfinite(rows.from_s) | (rows.from_s < 0)),
        ("to", _SECONDS, rows.to_s, ~np.isfinite(rows.to_s) | (rows.to_s < 0)),
        ("to", "a time after from", rows.to_s, ~(rows.to_s > rows.from_s)),
    ]
    for key, expected, column, wrong in problems:
        if wrong.any():
            i = np.flatnonzero(wrong)[0]
            after = f" ({rows.from_s[i]:.15g})" if expected.endswith("from") else ""
            value = str(column[i]) if key == "client" else f"{column[i]:.15g}"
            raise _wrong(path, rows.unit, rows.line[i], key, expected + after, value)
    first = int(rows.from_s.argmin())
    if (late_s := float(rows.from_s[first])) > LATEST_S:
        after = f"{late_s / _YEAR_S:.3g} years" if late_s > _YEAR_S else human_seconds(late_s)
        remedy = (
            f"seconds count from there, not from 1970: subtract {late_s:.15g} from all of from and to, or use edgefl trace import"
        )
        raise DataError(
            f"{path}, {rows.unit} {rows.line[first]}: from: the trace begins {after} after the start of a run; {remedy}"
        )
    return replace(rows, client=rows.client.astype(np.int64))


def _wrong(path: Path, unit: str, line: int | np.integer, key: str, expected: str, value: str) -> DataError:
    return DataError(f"{path}, {unit} {line}: {key}: expected {expected}, got {value}")


@cache
def states_bits(text: str) -> int | None:
    """Return the bits of a state, or None if it is none.

    >>> states_bits("idle+unmetered"), states_bits("eligible"), states_bits("none"), states_bits("asleep")
    (5, 7, 0, None)
    """
    names = CONDITIONS if text == "eligible" else () if text == "none" else tuple(text.split("+"))
    return sum(1 << CONDITIONS.index(name) for name in set(names)) if set(names) <= set(CONDITIONS) else None


def _places(path: Path, where: str, header: list[str]) -> dict[str, int]:
    """Return where the columns stand in ``header``."""
    for name in COLUMNS:
        if header.count(name) != 1:
            others = [other for other in header if other not in COLUMNS]
            state = "twice or more" if name in header else f"{', '.join(map(repr, header)) or 'nothing'}"
            hint = next((f"; is {other!r} meant?" for other in others if nearest(other, [name])), "")
            raise DataError(f"{path}{where}: {name}: expected columns {', '.join(COLUMNS)}, each once, got {state}{hint}")
    return {name: header.index(name) for name in COLUMNS}


def _from_csv(path: Path) -> Intervals:
    parsers: dict[str, Callable[[str], float | None]]
    parsers = {"client": _whole, "from": _seconds, "to": _seconds, "state": states_bits}
    columns: list[array[Any]] = [array(kind) for kind in "qqddB"]
    lines, *of_rows = columns
    for line, row in _csv_rows(path):
        lines.append(line)
        for column, (key, parse), text in zip(of_rows, parsers.items(), row, strict=True):
            if (value := parse(text)) is None:
                raise _wrong(path, "line", line, key, _EXPECTED[key], repr(text))
            column.append(value)
    return Intervals("line", *(np.frombuffer(column, column.typecode) if column else np.zeros(0) for column in columns))


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _seconds(text: str) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf and "_" not in text else None


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's line and its fields in the order of ``COLUMNS``; empty lines are passed over."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            places = list(_places(path, ", line 1", header).values())
            for row in reader:
                if len(row) == len(header):
                    yield reader.line_num, [row[place].strip() for place in places]
                elif row:
                    need = f"expected {len(header)} fields, as in line 1, got {len(row)}"
                    raise DataError(f"{path}, line {reader.line_num}: {need}")
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: not valid CSV: {error}") from None
        except UnicodeDecodeError:
            line, content = _first_not_utf8(path)
            raise DataError(f"{path}, line {line}: expected UTF-8, got the bytes {content!r}") from None


def _first_not_utf8(path: Path) -> tuple[int, bytes]:
    # What was decoded in advance hides the line: no character of UTF-8 but a line's end holds the byte of one.
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return number, line[error.start : error.start + 8]
    raise AssertionError("the file was changed while it was read")


def _from_parquet(path: Path) -> Intervals:
    try:
        arrow, parquet, compute = (importlib.import_module(f"pyarrow{part}") for part in ("", ".parquet", ".compute"))
    except ModuleNotFoundError:
        remedy = "pip install 'edgefl-sim[trace]'"
        raise DataError(f"{path}: Parquet is read with pyarrow, which is not installed: {remedy}") from None
    try:
        with parquet.ParquetFile(path) as file:
            _places(path, "", list(file.schema_arrow.names))
            table = file.read(columns=list(COLUMNS))
        columns = {name: table.column(name).combine_chunks() for name in COLUMNS}
        _check_types(path, table.schema, arrow.types)
        states = compute.dictionary_encode(columns["state"].cast(arrow.string()))
        texts = states.dictionary.to_pylist()
    except (arrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise DataError(f"{path}: not a whole Parquet file: {(str(error).splitlines() or [type(error).__name__])[0]}") from None
    for name, expected in _EXPECTED.items():
        if columns[name].null_count:
            row = np.flatnonzero(columns[name].is_null().to_numpy(zero_copy_only=False))[0] + 1
            raise _wrong(path, "row", row, name, expected, "null")
    arrays = (*(columns[name] for name in COLUMNS[:3]), states.indices)
    client, begin, end, place = (column.to_numpy(zero_copy_only=False) for column in arrays)
    begin, end = begin.astype(np.float64), end.astype(np.float64)
    return Intervals("row", np.arange(1, len(client) + 1), client, begin, end, _bits_of(path, texts, place))


def _check_types(path: Path, schema: Any, types: Any) -> None:
    def is_text(kind: Any) -> bool:
        return types.is_string(kind) or types.is_large_string(kind) or (types.is_dictionary(kind) and is_text(kind.value_type))

    numbers = (lambda kind: types.is_integer(kind) or types.is_floating(kind)), "numbers"
    wanted = (types.is_integer, "whole numbers"), numbers, numbers, (is_text, "text")
    for name, (fits, expected) in zip(COLUMNS, wanted, strict=True):
        if not fits(kind := schema.field(name).type):
            raise DataError(f"{path}: {name}: expected a column of {expected}, got one of {kind}")


def _bits_of(path: Path, texts: list[str], place: np.ndarray) -> np.ndarray:
    bits = [states_bits(text.strip()) for text in texts]
    if None in bits:
        number = bits.index(None)
        raise _wrong(path, "row", np.flatnonzero(place == number)[0] + 1, "state", _STATE, repr(texts[number]))
    return np.array(bits, np.uint8)[place]
