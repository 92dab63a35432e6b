"""The records of a run from what a test says of them: what it leaves out is nothing, zero or empty."""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from edgefl.report.dry_page import render_dry
from edgefl.report.html import render
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import DrySummary, RunSummary


def summary_in(values: Mapping[str, Any]) -> RunSummary:
    found: RunSummary = filled(RunSummary, {"tier_assignment": "auto", **values})
    return found


def dry_in(values: Mapping[str, Any]) -> DrySummary:
    found: DrySummary = filled(DrySummary, {"dry_run": True, **values})
    return found


def rounds_in(lines: Iterable[Mapping[str, Any]]) -> list[RoundLine]:
    return [filled(RoundLine, line) for line in lines]


def run_page(summary: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> str:
    return render(summary_in(summary), rounds_in(rounds))


def dry_run_page(summary: Mapping[str, Any], rounds: Iterable[Mapping[str, Any]]) -> str:
    return render_dry(dry_in(summary), rounds_in(rounds))


def filled(kind: Any, values: Mapping[str, Any]) -> Any:
    """A record of the JSON form of some of its fields; further keys are ignored, as they are in files."""
    hints = get_type_hints(kind)
    required = {key.name for key in fields(kind) if key.default is MISSING and key.default_factory is MISSING}
    return kind(
        **{
            key.name: _valued(hints[key.name], values[key.name]) if key.name in values else _nothing(hints[key.name])
            for key in fields(kind)
            if key.name in values or key.name in required
        }
    )


def _valued(hint: Any, value: Any) -> Any:
    origin, kinds = get_origin(hint), get_args(hint)
    if value is None:
        return None
    if origin in (Union, UnionType):
        return _valued(kinds[0], value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_valued(kinds[0], of) for of in value)
    return filled(hint, value) if is_dataclass(hint) and isinstance(value, Mapping) else value


def _nothing(hint: Any) -> Any:
    origin, kinds = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None
    if origin is Literal:
        return kinds[0]
    if origin is not None:
        return () if origin is tuple else {}
    return filled(hint, {}) if is_dataclass(hint) else hint()
