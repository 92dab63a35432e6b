"""Results as records: their JSON form, their form as a frame of pandas or polars, and how they are read back and checked."""

import csv
import importlib
import io
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from edgefl.errors import InputError


class Result:
    """Base of frozen dataclasses that public functions return and that JSON files hold."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a key per field, in the order of the fields."""
        found: dict[str, Any] = to_jsonable_python(self)
        return found


_MOST_ROWS, _LONGEST = 10, 110
R = TypeVar("R", bound=Result)


class Results(tuple[R, ...]):
    """A tuple of results, one per row of a table."""

    __slots__ = ()

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the JSON form of every row."""
        return [row.to_dict() for row in self]

    def __repr__(self) -> str:
        """Return how many rows there are, and the beginning of each of the first few, in lines that fit a screen."""
        lines = [f"  {text if len(text := repr(row)) <= _LONGEST else text[:_LONGEST] + '…'}" for row in self[:_MOST_ROWS]]
        return "\n".join([f"{len(self)} rows; to_pandas(), to_polars(), to_csv() and to_dict() have all columns", *lines])

    def to_csv(self) -> str:
        """Return comma-separated values with the columns of :meth:`to_pandas`; lists are JSON."""
        rows = [flat(row) for row in self.to_dict()]
        text = io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({key: json.dumps(value) if isinstance(value, list) else value for key, value in row.items()})
        return text.getvalue()

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per result and a column per key; a key of a nested mapping is ``outer.inner``.

        Raises:
            InputError: pandas is not installed.
        """
        return _package("pandas").DataFrame([flat(row) for row in self.to_dict()])

    def to_polars(self) -> Any:
        """Return the same table as a ``polars.DataFrame``.

        Raises:
            InputError: polars is not installed.
        """
        return _package("polars").DataFrame([flat(row) for row in self.to_dict()], infer_schema_length=None)


def flat(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return ``row`` with the keys of nested mappings joined to theirs.

    >>> flat({"round": 1, "accuracy": {"global": 0.9, "0.5": 0.8}})
    {'round': 1, 'accuracy.global': 0.9, 'accuracy.0.5': 0.8}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"to_{name} needs {name}, which is not installed; run pip install {name}, or use to_dict") from None


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what validates values of a type."""
    return TypeAdapter(kind)
