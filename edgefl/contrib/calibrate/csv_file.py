"""The lines of a CSV file that a measurement wrote, and the numbers in them."""

import csv
import math
from pathlib import Path

from edgefl.errors import InputError


def csv_lines(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns of a file, and each line with its number; InputError if it cannot be read. A value that is missing is empty."""
    try:
        table = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
        columns, lines = list(table.fieldnames or ()), [(table.line_num, line) for line in table]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a table: {error}") from error
    return columns, [(number, {key: value or "" for key, value in line.items() if key}) for number, line in lines]


def number_of(where: str, key: str, text: str, least: float | None = None) -> float:
    """Return a finite number of at least ``least``, or above 0; InputError, which begins with ``where``, if the text is none."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < (least or 0) or (least is None and value == 0):
        raise InputError(f"{where}: {key}: expected a number {'of at least 0' if least == 0 else 'above 0'}, got {text!r}")
    return value
