"""What the columns of a table are: its label, its owner and its features, as given or as their types suggest."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgefl.data.given import Reading
from edgefl.errors import DataError, nearest

LABELS = ("label", "labels", "target", "class", "y", "fine_label")
OWNERS = ("owner", "owner_id", "client_id", "user_id", "writer_id", "character_id", "speaker_id")


@dataclass(frozen=True)
class Roles:
    """Which columns are label, owner ("": none) and features, and the names of the classes (empty: the labels are their names)."""

    label: str
    owner: str
    features: tuple[str, ...]
    class_names: tuple[str, ...]


def roles_of(schema: Any, where: str, reading: Reading) -> Roles:
    """Return the roles of a table's columns: those that ``reading`` gives, and guesses for the others; DataError lists the columns."""
    names, listed = schema.names, f"its columns are {', '.join(schema.names)}"
    for name in filter(None, (reading.label, reading.owner, *reading.features)):
        if name not in names:
            raise DataError(f"{where}: no column {name!r};{nearest(name, names)} {listed}")
    classes = _class_names(schema)
    labels = [name for name in classes if name not in (reading.owner, *reading.features)]
    label = reading.label or (labels[0] if len(labels) == 1 else next((name for name in LABELS if name in names), ""))
    if not label:
        raise DataError(f"{where}: which column is the label? Give it with --label; {listed}")
    owner = reading.owner or next((name for name in OWNERS if name in names and name != label), "")
    rest = [name for name in names if name not in (label, owner)]
    features = reading.features or _guessed(schema, rest, where)
    if odd := [name for name in features if not kind_of(schema, name)]:
        raise DataError(f"{where}: column {odd[0]} is {schema.field(odd[0]).type}, expected images, lists, texts or numbers")
    return Roles(label, owner, features, classes.get(label, ()))


def _guessed(schema: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    kinds = {kind: [name for name in names if kind_of(schema, name) == kind] for kind in _KINDS}
    for kind in ("images", "lists"):
        if len(kinds[kind]) == 1:
            return tuple(kinds[kind])
    if not kinds["images"] and not kinds["lists"]:
        if kinds["numbers"] and not kinds["texts"]:
            return tuple(kinds["numbers"])
        if len(kinds["texts"]) == 1 and not kinds["numbers"]:
            return tuple(kinds["texts"])
    found = "; ".join(f"{kind}: {', '.join(of)}" for kind, of in kinds.items() if of) or "none that is usable"
    raise DataError(f"{where}: which columns are a sample? Give them with --features; there are {found}")


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return column → names of its classes, as ``datasets`` stores them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: tuple(of["names"]) for name, of in features.items() if of.get("_type") == "ClassLabel"}
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def is_image(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are files of images."""
    types, kind = arrow(name).types, schema.field(name).type
    return types.is_binary(kind) or types.is_large_binary(kind) or (types.is_struct(kind) and kind.get_field_index("bytes") >= 0)


def is_list(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are lists, perhaps of lists."""
    types, kind = arrow(name).types, getattr(schema.field(name).type, "storage_type", schema.field(name).type)
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def is_text(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are texts."""
    types, kind = arrow(name).types, schema.field(name).type
    return types.is_string(kind) or types.is_large_string(kind)


def is_number(schema: Any, name: str) -> bool:
    """Return whether the cells of a column are numbers or truth values."""
    types, kind = arrow(name).types, schema.field(name).type
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def kind_of(schema: Any, name: str) -> str:
    """Return what the cells of a column are: images, lists, texts or numbers; empty: no samples can be made of them."""
    return next((kind for kind, fits in _KINDS.items() if fits(schema, name)), "")


_KINDS = {"images": is_image, "lists": is_list, "texts": is_text, "numbers": is_number}


def arrow(where: str) -> Any:
    """Return pyarrow; DataError, which begins with ``where``, if it is not installed."""
    try:
        import pyarrow
    except ImportError:
        raise DataError(f"{where}: reading tables needs pyarrow: pip install 'edgefl-sim[data]'") from None
    return pyarrow
