"""Results as records: their JSON form, their form as a pandas frame, and how they are read back and checked."""

import importlib
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
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise InputError("to_pandas needs pandas, which is not installed; run pip install pandas, or use to_dict") from None
        return pandas.DataFrame(self.to_dict())


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what validates values of a type."""
    return TypeAdapter(kind)
