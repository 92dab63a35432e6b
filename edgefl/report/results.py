"""Results as records: their JSON form, their form as a pandas frame, and how they are read back and checked."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_jsonable_python

from edgefl.errors import InputError
from edgefl.util.validation import explain


class Result:
    """Base of frozen dataclasses that public functions return and that JSON files hold."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: a key per field, in the order of the fields."""
        found: dict[str, Any] = to_jsonable_python(self)
        return found


R = TypeVar("R", bound=Result)


class Results(tuple[R, ...]):
    """A tuple of results, one per row of a table."""

    __slots__ = ()

    def to_dict(self) -> list[dict[str, Any]]:
        """Return the JSON form of every row."""
        return [row.to_dict() for row in self]

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame`` with a row per result and a column per key of the JSON form.

        Raises:
            InputError: pandas is not installed.
        """
        return frame(self.to_dict())


def frame(rows: Iterable[dict[str, Any]]) -> Any:
    """Return rows as a ``pandas.DataFrame``.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        pandas = importlib.import_module("pandas")
    except ImportError:
        raise InputError("to_pandas needs pandas, which is not installed; run pip install pandas, or use to_dict") from None
    return pandas.DataFrame(list(rows))


def validated(kind: type[R], values: Any) -> R:
    """Return ``values``, a record's JSON form that this process has checked, as a record."""
    of_kind: Any = kind  # mypy holds a class to be unhashable
    found: R = _adapter(of_kind).validate_python(values)
    return found


def check_json(kind: Any, text: str, where: str) -> dict[str, Any]:
    """Return the content of a JSON text that has the fields of ``kind``; further keys are ignored.

    Raises:
        InputError: the text is not JSON, or a value is missing or wrong; the message names ``where``, key, expectation and value.
    """
    try:
        values: dict[str, Any] = from_json(text, allow_inf_nan=False)
        _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        problem = explain(error.errors()[0])
        raise InputError(f"{where}: {problem}; restore the file or run the simulation again") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error}); restore the file or run the simulation again") from None
    return values


def read_text(path: Path) -> str:
    """Return the text of a file of a run.

    Raises:
        InputError: the file is missing or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the folder of a finished run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error}); give the folder of a finished run") from None


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
