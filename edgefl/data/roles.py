"""The roles of a table's columns: its label, its owner and its features, as given or as their types suggest."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.data.cells import KINDS, arrow, kind_of
from edgefl.data.given import Reading
from edgefl.errors import DataError, nearest
from edgefl.records import DataRecord
from edgefl.records.data import UNREAD

LABELS = ("label", "labels", "target", "class", "y", "fine_label")
OWNERS = ("owner", "owner_id", "client_id", "user_id", "writer_id", "character_id", "speaker_id")
_INDEX = re.compile(r"|unnamed: \d+|id|index|__index_level_\d+__", re.IGNORECASE)
_OF_LABEL = re.compile(r"(coarse_|fine_)?(labels?|target|class)(_(names?|texts?|ids?|str))?", re.IGNORECASE)


@dataclass(frozen=True)
class Roles:
    """The roles of a table's columns.

    Attributes:
        label, owner: names of columns; "" without owners.
        features: the columns of a sample.
        class_names: names of the classes; empty: the labels are their names.
        record: columns that are left out, and what was guessed.
    """

    label: str
    owner: str
    features: tuple[str, ...]
    class_names: tuple[str, ...]
    record: DataRecord = UNREAD


def roles_of(schema: Any, where: str, reading: Reading) -> Roles:
    """Return the roles of a table's columns: those that ``reading`` gives, and guesses for the others; DataError lists the columns."""
    names, listed = schema.names, f"its columns are {', '.join(schema.names)}"
    for name in filter(None, (reading.label, reading.owner, *reading.features)):
        if name not in names:
            raise DataError(f"{where}: no column {name!r};{nearest(name, names)} {listed}")
    classes = _class_names(schema)
    label = reading.label or _label(
        schema, where, [name for name in classes if name not in (reading.owner, *reading.features)], reading
    )
    owner = reading.owner or next((name for name in OWNERS if name in names and name != label), "")
    rest = [name for name in names if name not in (label, owner or label)]
    others = {name: f"column {name!r}: {why}" for name in rest if (why := _no_feature(schema, name, rest, classes))}
    features = reading.features or _guessed(schema, [name for name in rest if name not in others], where)
    if odd := [name for name in features if not kind_of(schema, name)]:
        raise DataError(f"{where}: column {odd[0]} is {schema.field(odd[0]).type}, expected images, lists, texts or numbers")
    for name, what, kinds in (
        (label, "label", ("numbers", "texts", "lists", "bytes")),
        (owner, "owner", ("numbers", "texts", "bytes")),
    ):
        if name and (_bytes(schema, name) or kind_of(schema, name)) not in kinds and not _is_empty(schema, name):
            raise DataError(f"{where}: the {what} {name!r} is {schema.field(name).type}, expected numbers or texts")
    unused = [name for name in rest if name not in features]
    left = [others.get(name, f"column {name!r}: the samples are {kind_of(schema, features[0])}") for name in unused]
    if reading.features and unused:
        left = [f"columns {', '.join(map(repr, unused))}: not among --features"]
    guessed = [f"label: column {label!r}"] * (not reading.label) + [f"owner: column {owner!r}"] * (
        bool(owner) and not reading.owner
    )
    record = DataRecord(features=features, label=label, owner=owner, left_out=tuple(left), guessed=tuple(guessed))
    return Roles(label, owner, features, classes.get(label, ()), record)


def _label(schema: Any, where: str, classes: list[str], reading: Reading) -> str:
    """Return the column of labels; DataError if there is none, or more than one."""
    if len(classes) == 1:
        return classes[0]
    candidates = [name for name in LABELS if name in schema.names and name not in (reading.owner, *reading.features)]
    if "x" in schema.names and len(candidates) > 1:
        candidates = [name for name in candidates if name != "y"]  # x and y are coordinates
    listed = f"its columns are {', '.join(schema.names)}"
    if not candidates:
        raise DataError(f"{where}: which column is the label? Give it with --label; {listed}")
    if len(candidates) > 1 and "fine_label" not in candidates:
        raise DataError(f"{where}: which column is the label, {' or '.join(candidates)}? Give it with --label; {listed}")
    return candidates[0]


def _no_feature(schema: Any, name: str, names: Sequence[str], classes: dict[str, tuple[str, ...]]) -> str:
    """Return why a column is no part of a sample unless it is chosen; "" if it may be."""
    if _INDEX.fullmatch(name):
        return "it numbers the rows"
    if name in classes or _OF_LABEL.fullmatch(name) or (name == "y" and "x" not in names):
        return "it looks like another label"
    return "it is empty" if _is_empty(schema, name) else ""


def _guessed(schema: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    kinds = {kind: [name for name in names if kind_of(schema, name) == kind] for kind in KINDS}
    others = [f"{name} ({schema.field(name).type})" for name in names if not kind_of(schema, name)]
    for kind in ("images", "lists"):
        if len(kinds[kind]) == 1:
            return tuple(kinds[kind])
    if not kinds["images"] and not kinds["lists"] and not others:
        if kinds["numbers"] and not kinds["texts"]:
            return tuple(kinds["numbers"])
        if len(kinds["texts"]) == 1 and not kinds["numbers"]:
            return tuple(kinds["texts"])
    listing = (
        "; ".join(f"{kind}: {', '.join(of)}" for kind, of in (kinds | {"others": others}).items() if of) or "none that is usable"
    )
    raise DataError(f"{where}: which columns are a sample? Give them with --features; there are {listing}")


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return column → names of its classes, as ``datasets`` stores them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: tuple(of["names"]) for name, of in features.items() if of.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def _is_empty(schema: Any, name: str) -> bool:
    return bool(arrow("empty").types.is_null(schema.field(name).type))  # of a CSV file: or all are words such as NA


def _bytes(schema: Any, name: str) -> str:
    types, kind = arrow(name).types, schema.field(name).type
    return "bytes" if types.is_binary(kind) or types.is_large_binary(kind) else ""
