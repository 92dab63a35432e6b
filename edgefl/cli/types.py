"""Values of flags that click has no type for. Which values are allowed is checked where they are used."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from typing import Any

import click

from edgefl.errors import InputError
from edgefl.util.units import parse_amount

_WORD = re.compile(r"[A-Za-z][\w./-]*")
_KINDS: dict[Any, str] = {float: "numbers", int: "whole numbers", str: "words"}


class Listed(click.ParamType[Any]):
    """Comma-separated values of type ``of`` (float, int or str), or ``word``; ``such_as`` is an example for help and messages."""

    name = "list"

    def __init__(self, of: Callable[[str], Any], such_as: str, word: str | None = None) -> None:
        self.of, self.such_as, self.word = of, such_as, word

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a tuple of the values, or the word."""
        if isinstance(value, tuple) or value == self.word:
            return value
        try:
            return tuple(self.of(part.strip()) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of {_KINDS[self.of]} such as {self.such_as}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the example, and the word."""
        return self.such_as if self.word is None else f"{self.such_as}|{self.word}"


class Amount(click.ParamType[float]):
    """A positive number with an optional decimal prefix and unit: ``64MB``, ``100M``, ``30``."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in whole units."""
        try:
            return parse_amount(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


class MethodOption(click.ParamType[tuple[str, Any]]):
    """``KEY=VALUE`` with a TOML value; a bare word is text.

    >>> MethodOption().convert("frobenius_decay=0.001", None, None), MethodOption().convert("sampling=uniform", None, None)
    (('frobenius_decay', 0.001), ('sampling', 'uniform'))
    """

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Return key and value; whether the method has such an option is checked with the rest of the configuration."""
        if isinstance(value, tuple):
            return value
        key, separator, text = (part.strip() for part in str(value).partition("="))
        if not separator or not key or not text:
            self.fail(f"{value!r} is not of the form KEY=VALUE, such as frobenius_decay=0.001", param, ctx)
        try:
            read = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            read = {"value": text} if _WORD.fullmatch(text) else {}
        if list(read) != ["value"]:
            forms = "a number, true, false, a word, \"text\", [a, list] or {a = 'table'}"
            self.fail(f"{text!r} is not a TOML value: {forms}", param, ctx)
        return key, read["value"]
