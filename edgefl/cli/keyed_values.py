"""Flags that give several values for keys of a configuration: ``KEY=V1,V2`` and ``KEY=log:LEAST:LARGEST:COUNT``."""

import math
import re
import tomllib
from collections.abc import Sequence
from typing import Any

import click

_APART = re.compile(r",(?![^(\[]*[)\]])")
"""Commas that separate values, and not those of a value's own options or list."""


def values_by_key(texts: Sequence[str], flag: str, example: str) -> dict[str, list[Any]]:
    """Return key → its values, of the texts that a ``flag`` was given, once for each key; UsageError if they have another form.

    >>> values_by_key(["lr=0.01,0.03", "sampler=oort,reserved(slots='a:2,b:1')"], "--vary", "lr=0.01,0.1")
    {'lr': [0.01, 0.03], 'sampler': ['oort', "reserved(slots='a:2,b:1')"]}
    >>> values_by_key(["lr=log:0.01:1:3"], "--grid", "lr=0.01,0.1")
    {'lr': [0.01, 0.1, 1.0]}
    """
    values: dict[str, list[Any]] = {}
    for text in texts:
        key, _, listed = (part.strip() for part in text.partition("="))
        if not key or not listed:
            raise click.UsageError(f"{flag}: {text!r} is not of the form KEY=V1,V2, such as {example}")
        if key in values:
            raise click.UsageError(f"{flag}: {key} is there twice; give all its values at once, such as {example}")
        kind, _, of_range = listed.partition(":")
        values[key] = _log_range(of_range, flag) if kind == "log" else [_value(part.strip()) for part in _APART.split(listed)]
    return values


def _value(text: str) -> Any:
    """Return a number, truth value or list as TOML has it; other text as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _log_range(text: str, flag: str) -> list[float]:
    try:
        low, high, count = (float(part) for part in text.split(":"))
        if not (0 < low < high < math.inf and count == int(count) >= 2):
            raise ValueError
    except ValueError:
        raise click.UsageError(f"{flag}: log:{text}: expected log:LEAST:LARGEST:COUNT, such as log:0.001:0.1:5") from None
    ratio = (high / low) ** (1 / (count - 1))
    return [float(f"{low * ratio**place:.6g}") for place in range(int(count))]
