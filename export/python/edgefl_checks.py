"""Checks of what a manifest says, before anything relies on it: kinds of values, sizes that add up, numbers that are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Kinds = Mapping[str, "type | tuple[type, ...]"]
NUMBER = (int, float)
MANIFEST: Kinds = {
    "manifest_sha256": str, "round": int, "input_shape": list, "input_dtype": str, "classes": int, "class_names": list,
    "preprocessing": dict, "tiers": list, "files": dict,
}  # fmt: skip
TRAIN: Kinds = {
    "graphs": list, "predict": str, "parameters": str, "optimizer": str, "lr": NUMBER, "momentum": NUMBER, "batch_size": int,
    "epochs": int, "trained": dict, "statistics": dict, "frozen": dict, "personal": list, "upload": dict, "objective": dict,
    "present": bool, "no_update": str,
}  # fmt: skip
_LARGEST = 1 << 31
"""More elements than any tensor of a sample has, and more classes than any network."""


class CheckError(ValueError):
    """A value is not what a manifest may hold; the message names key, value and expectation."""


def check_manifest(manifest: object) -> None:
    """Raise :class:`CheckError` unless ``manifest`` has the keys that the client relies on, apart from those of tiers."""
    table = require_keys(manifest, MANIFEST)
    _check_shape(table["input_shape"], "input_shape")
    inputs = require_keys(table.get("inputs", {}), {}, "inputs: ")
    for name, entry in inputs.items():
        require_keys(entry, {"shape": list, "dtype": str, "preprocessing": dict}, f"inputs.{name}: ")
        _check_shape(entry["shape"], f"inputs.{name}: shape")
    names = table["class_names"]
    _check(all(isinstance(name, str) for name in names), "class_names", names, "a list of texts")
    _check(0 < table["classes"] < _LARGEST, "classes", table["classes"], "at least 1")
    if "target_shape" in table:
        _check_shape(table["target_shape"], "target_shape")
    else:
        _check(
            len(names) == table["classes"], "class_names", f"{len(names)} names", f"one for each of {table['classes']} classes"
        )
    for path, entry in table["files"].items():
        require_keys(entry, {"bytes": int, "sha256": str}, f"files.{path}: ")
    for number, entry in enumerate(table["tiers"]):
        require_keys(entry, {"label": str, "forward": str}, f"tiers.{number}: ")


def check_training(table: object) -> None:
    """Raise :class:`CheckError` unless a tier's ``train`` says how it is trained."""
    train = require_keys(table, TRAIN)
    for key in ("graphs", "personal"):
        _check(all(isinstance(text, str) for text in train[key]), key, train[key], "a list of texts")
    _check(bool(train["graphs"]), "graphs", [], "at least one training graph")
    for key in ("lr", "momentum"):
        _check(math.isfinite(train[key]), key, train[key], "a finite number")
    for key in ("batch_size", "epochs"):
        _check(0 < train[key] < _LARGEST, key, train[key], "at least 1")
    for key in ("trained", "statistics", "frozen"):
        for name, shape in train[key].items():
            _check_shape(shape, f"{key}.{name}")
    objective = require_keys(train["objective"], {"name": str, "strength": NUMBER}, "objective: ")
    _check(math.isfinite(objective["strength"]), "objective: strength", objective["strength"], "a finite number")


def check_budget(budget: object) -> None:
    """Raise :class:`CheckError` unless the limits in a tier's ``budget`` are numbers or missing."""
    table = require_keys(budget, {})
    for key in ("round_s", "memory_bytes"):
        value = table.get(key)
        number = value is None or (isinstance(value, NUMBER) and not isinstance(value, bool) and 0 <= value < math.inf)
        _check(number, f"budget: {key}", value, "a number from 0, or none")


def require_keys(table: object, keys: Kinds, where: str = "") -> dict[str, Any]:
    """Return ``table``, which must have all ``keys`` with values of the given types."""
    if not isinstance(table, dict):
        raise CheckError(f"{where}got {type(table).__name__}, expected a table")
    for key, kind in keys.items():
        name = kind.__name__ if isinstance(kind, type) else "number"
        right = isinstance(table.get(key), kind) and not (isinstance(table[key], bool) and kind is not bool)
        _check(right, f"{where}{key}", table.get(key), f"a value of type {name}")
    return table


def printable(text: str) -> str:
    """Return ``text`` without characters that would change a terminal, such as escape codes in the name of a class."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _check_shape(shape: object, where: str) -> None:
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    _check(sizes and math.prod(shape) < _LARGEST, where, shape, "a list of sizes")  # type: ignore[arg-type]


def _check(right: bool, where: str, value: object, expected: str) -> None:
    if not right:
        raise CheckError(f"{where}: got {repr(value)[:100]}, expected {expected}")
