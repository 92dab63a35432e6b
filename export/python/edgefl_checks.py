"""Checks of what a manifest says, before anything relies on it: kinds of values, sizes that add up, numbers that are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

Kinds = Mapping[str, "type | tuple[type, ...]"]
NUMBER = (int, float)
MANIFEST: Kinds = {
    "manifest_sha256": str, "round": int, "input_shape": list, "input_dtype": str, "classes": int, "class_names": list,
    "preprocessing": dict, "tiers": list, "files": dict,
}  # fmt: skip
MANIFEST_DEFAULTS: Mapping[str, Any] = {"round": 0, "input_dtype": "float32"}
INPUT_DEFAULTS: Mapping[str, Any] = {"dtype": "float32", "preprocessing": {}}
TIER_DEFAULTS: Mapping[str, Any] = {"variants": []}
TRAIN: Kinds = {
    "graphs": list, "predict": str, "parameters": str, "optimizer": str, "lr": NUMBER, "momentum": NUMBER, "batch_size": int,
    "epochs": int, "trained": dict, "statistics": dict, "frozen": dict, "personal": list, "upload": dict, "objective": dict,
    "present": bool, "no_update": str,
}  # fmt: skip
OBJECTIVE_DEFAULTS: Mapping[str, Any] = {"name": "none", "strength": 0.0}
TRAIN_DEFAULTS: Mapping[str, Any] = {"personal": [], "objective": OBJECTIVE_DEFAULTS, "present": False, "no_update": ""}
_LARGEST = 1 << 31
"""More elements than any tensor of a sample has, and more classes than any network."""
_MOST = 1 << 62
"""No number of a manifest is larger: every whole number up to it fits a register."""


class CheckError(ValueError):
    """A value is not what a manifest may hold; the message names key, value and expectation."""


def check_manifest(manifest: object) -> dict[str, Any]:
    """Return ``manifest`` with the defaults of missing keys; CheckError unless it has what the client relies on, except ``train``."""
    table = require_keys(manifest, MANIFEST, defaults=MANIFEST_DEFAULTS)
    _check_plain(table)
    _check_shape(table["input_shape"], "input_shape")
    _check_preprocessing(table["preprocessing"], "preprocessing: ")
    kinds: Kinds = {"shape": list, "dtype": str, "preprocessing": dict}
    inputs = require_keys({} if table.get("inputs") is None else table["inputs"], {}, "inputs: ")
    inputs = {name: require_keys(entry, kinds, f"inputs.{name}: ", INPUT_DEFAULTS) for name, entry in inputs.items()}
    for name, entry in inputs.items():
        _check_shape(entry["shape"], f"inputs.{name}: shape")
        _check_preprocessing(entry["preprocessing"], f"inputs.{name}: preprocessing: ")
    names = table["class_names"]
    _check(all(isinstance(name, str) for name in names), "class_names", names, "a list of texts")
    _check(0 < table["classes"] < _LARGEST, "classes", table["classes"], "at least 1")
    if table.get("target_shape") is None:
        table.pop("target_shape", None)
    if "target_shape" in table:
        _check_shape(table["target_shape"], "target_shape")
    else:
        _check(
            len(names) == table["classes"], "class_names", f"{len(names)} names", f"one for each of {table['classes']} classes"
        )
    for path, entry in table["files"].items():
        require_keys(entry, {"bytes": int, "sha256": str}, f"files.{path}: ")
    kinds = {"label": str, "forward": str, "batch_size": int, "variants": list}
    tiers = [require_keys(entry, kinds, f"tiers.{number}: ", TIER_DEFAULTS) for number, entry in enumerate(table["tiers"])]
    for number, tier in enumerate(tiers):
        _check(0 < tier["batch_size"] < _LARGEST, f"tiers.{number}: batch_size", tier["batch_size"], "at least 1")
        for variant in tier["variants"]:
            require_keys(variant, {"kind": str, "graph": str}, f"tiers.{number}: variants: ")
    return {**table, "inputs": inputs or None, "tiers": tiers}


def check_training(table: object) -> dict[str, Any]:
    """Return a tier's ``train`` with the defaults of missing keys; CheckError unless it says how the tier is trained."""
    train = require_keys(table, TRAIN, defaults=TRAIN_DEFAULTS)
    for key in ("graphs", "personal"):
        _check(all(isinstance(text, str) for text in train[key]), key, train[key], "a list of texts")
    _check(bool(train["graphs"]), "graphs", [], "at least one training graph")
    for key in ("batch_size", "epochs"):
        _check(0 < train[key] < _LARGEST, key, train[key], "at least 1")
    known: dict[str, Any] = {}
    for key in ("trained", "statistics", "frozen"):
        for name, shape in train[key].items():
            _check_shape(shape, f"{key}.{name}")
        known |= train[key]
    for name in train["personal"]:
        _check(name in known, "personal", name, "one of the tier's tensors")
    for name in train["upload"]:
        _check(name in known and name not in train["personal"], "upload", name, "one of the tier's tensors, not a personal one")
    objective = require_keys(train["objective"], {"name": str, "strength": NUMBER}, "objective: ", OBJECTIVE_DEFAULTS)
    return {**train, "objective": objective}


def check_budget(budget: object) -> None:
    """Raise :class:`CheckError` unless the limits in a tier's ``budget`` are numbers or missing."""
    table = require_keys(budget, {})
    for key in ("round_s", "memory_bytes"):
        value = table.get(key)
        _check(value is None or (_is_number(value) and value >= 0), f"budget: {key}", value, "a number from 0, or none")


def require_keys(
    table: object, keys: Kinds, where: str = "", defaults: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return ``table`` with the ``defaults`` of missing keys; it must have all ``keys`` with values of the given types."""
    if not isinstance(table, dict):
        raise CheckError(f"{where}got {type(table).__name__}, expected a table")
    table = {**defaults, **table}
    for key, kind in keys.items():
        name = kind.__name__ if isinstance(kind, type) else "number"
        right = isinstance(table.get(key), kind) and not (isinstance(table[key], bool) and kind is not bool)
        _check(right, f"{where}{key}", table.get(key), f"a value of type {name}")
    return table


def printable(text: str) -> str:
    """Return ``text`` without characters that would change a terminal, such as escape codes in the name of a class."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def _check_plain(table: object) -> None:
    """Refuse numbers that are not finite or need more than 63 bits, and text that UTF-8 cannot express."""
    waiting: list[tuple[str, object]] = [("manifest", table)]
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, dict):
            for key in value:
                _check_text(key, "a name")
            waiting += [(key, inner) for key, inner in value.items()]
        elif isinstance(value, list):
            waiting += [(where, inner) for inner in value]
        elif isinstance(value, str):
            _check_text(value, where)
        elif isinstance(value, NUMBER):
            _check(-_MOST <= value <= _MOST, where, value, "a finite number of at most 63 bits")


def _check_text(text: str, where: str) -> None:
    _check(not any("\ud800" <= character <= "\udfff" for character in text), where, "half a character", "text")


def _check_preprocessing(how: Mapping[str, Any], where: str) -> None:
    """Refuse values that samples cannot be prepared with; all keys may be missing."""
    for key in sorted({"scale", "mean", "std"} & how.keys()):
        values = how[key] if isinstance(how[key], list) and key != "scale" else [how[key]]
        right = bool(values) and all(_is_number(value) and (value != 0 or key != "std") for value in values)
        _check(right, f"{where}{key}", how[key], "numbers, and none of std is 0")
    for key in sorted({"raw", "alphabet"} & how.keys()):
        _check(isinstance(how[key], str), f"{where}{key}", how[key], "text")
    words = [] if how.get("words") is None else how["words"]
    _check(isinstance(words, list) and all(isinstance(word, str) for word in words), f"{where}words", words, "a list of texts")


def _is_number(value: object) -> bool:
    return isinstance(value, NUMBER) and not isinstance(value, bool)


def _check_shape(shape: object, where: str) -> None:
    sizes = isinstance(shape, list) and all(type(size) is int and size >= 0 for size in shape)
    _check(sizes and math.prod(shape) < _LARGEST, where, shape, "a list of sizes")  # type: ignore[arg-type]


def _check(right: bool, where: str, value: object, expected: str) -> None:
    if not right:
        raise CheckError(f"{where}: got {repr(value)[:100]}, expected {expected}")
