"""The types of values that options take: their errors name what was expected."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgefl.errors import InputError
from edgefl.util.units import Unit, parse_amount, parse_share

PATH = click.Path(path_type=Path)
OUT_FILE = click.Path(dir_okay=False, path_type=Path)

_WORD = re.compile(r"(?:[A-Za-z!*]|1x1)[\w./*?!,\[\]-]*")  # also a list of rules, such as 1x1,blocks.*.conv,!fc


def seconds(text: str) -> float:
    """Return the seconds in ``text``, such as 30 or 2min; ValueError for anything else."""
    try:
        return parse_amount(text, "s")
    except InputError as error:
        raise ValueError(str(error)) from None


_KINDS: dict[Any, str] = {float: "numbers", int: "whole numbers", str: "words", seconds: "times"}


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


class NumberOr(click.ParamType[Any]):
    """A number of type ``of``, or one of ``words``, if any."""

    name = "number"

    def __init__(self, of: Callable[[str], Any], words: tuple[str, ...], metavar: str) -> None:
        self.of, self.words, self.metavar = of, words, metavar

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or the word."""
        if not isinstance(value, str) or value in self.words:
            return value
        try:
            return self.of(value)
        except ValueError:
            kind = "whole number" if self.of is int else "number"
            self.fail(f"{value!r} is not {' or '.join((f'a {kind}', *self.words))}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder."""
        return self.metavar


class Within(click.ParamType[Any]):
    """A number of type ``of`` from ``least`` to ``most``; errors are in the words of the configuration's."""

    def __init__(self, of: type[int] | type[float], least: float, most: float = math.inf) -> None:
        self.of, self.least, self.most = of, least, most
        self.name = "N" if of is int else "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        key = param.opts[-1].lstrip("-").replace("-", "_") if param and param.opts else "value"
        try:
            number = self.of(value)
        except ValueError:
            raise InputError(f"{key} must be a {'whole ' * (self.of is int)}number, got {value!r}") from None
        if not self.least <= number <= self.most:
            bound = f"at least {self.least:,g}" if not number >= self.least else f"at most {self.most:,g}"
            raise InputError(f"{key} must be {bound}, got {number:,.10g}")
        return number


class Amount(click.ParamType[float]):
    """A positive number with a prefix and ``unit``: ``64MB``, ``100M``, ``30``; no other unit is allowed. Only sizes need one."""

    name = "X"

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in bytes, MACs, seconds or joules; a size has a unit, unless the flag is called after it."""
        text = str(value)
        in_name = any("bytes" in name for name in (param.opts if param else ()))
        if self.unit == "B" and not in_name and text.strip().lstrip("0").isdecimal():
            self.fail(f"{text} is a number without a unit: give {text}MB, or {text}B for bytes", param, ctx)
        try:
            return parse_amount(str(value), self.unit)
        except InputError as error:
            self.fail(str(error), param, ctx)


class Share(click.ParamType[float]):
    """A share in (0, 1], also in percent: ``0.85``, ``85%``."""

    name = "X"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share."""
        try:
            return parse_share(str(value))
        except InputError as error:
            self.fail(str(error), param, ctx)


class NetworkOfTier(click.ParamType[tuple[str, str]]):
    """``RATIO=NETWORK``; whether there is such a network is checked with the rest of the configuration."""

    name = "RATIO=NETWORK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return the ratio, as text, and the network."""
        ratio, _, network = (part.strip() for part in str(value).partition("="))
        if not ratio or not network:
            self.fail(f"{value!r} is not of the form RATIO=NETWORK, such as 0.25=net.py:make", param, ctx)
        return ratio, network


def by_tier(ctx: click.Context, param: click.Parameter, pairs: tuple[tuple[str, str], ...]) -> dict[str, str] | None:
    """Return ratio → network of a repeated option of :class:`NetworkOfTier`; None: it was not given."""
    networks: dict[str, str] = {}
    for ratio, network in pairs:
        if ratio in networks:
            raise click.BadParameter(f"two networks for tier {ratio}, {networks[ratio]} and {network}; give one", ctx, param)
        networks[ratio] = network
    return networks or None


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
