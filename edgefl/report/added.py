"""Fields that features of contrib add to the records of a run's files and pages.

They are the fields of a frozen dataclass decorated ``@added_fields("name", of="RunSummary")`` in a file of contrib; ``of`` names the
record. Each field has a default, which says that the feature was not asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from types import new_class
from typing import Any, TypeVar, cast

from edgefl.registry import added_fields

R = TypeVar("R")
SELDOM = {"seldom": True}
"""The metadata of a field that the JSON form leaves out while it has its default."""


@cache
def additions(record: str) -> tuple[type[Any], ...]:
    """Return the classes that add fields to the record of this name, in the order of their names."""
    named = (name for name in added_fields.names() if added_fields.facts(name)["of"] == record)
    return tuple(added_fields.load(name) for name in named)


def with_added(kind: type[R]) -> type[R]:
    """Return a record class that has the fields of :func:`additions` too; they are the last ones."""
    bases = (*additions(kind.__name__), kind)

    def body(names: dict[str, Any]) -> None:
        names.update(__doc__=kind.__doc__, __module__=kind.__module__, __qualname__=kind.__qualname__)

    made = new_class(kind.__name__, bases, exec_body=body)
    return cast("type[R]", dataclass(frozen=True, kw_only=True)(made))


def added(record: object, kind: type[R]) -> R:
    """Return a record as one that has the fields of ``kind``: every record of its class has them."""
    assert isinstance(record, kind)
    return record


def without_defaults(record: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a record without its :data:`SELDOM` fields that have their defaults."""
    absent = {f.name for f in fields(record) if f.metadata.get("seldom") and getattr(record, f.name) == f.default}
    return {key: value for key, value in written.items() if key not in absent}
