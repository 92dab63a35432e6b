"""Options whose help is grouped under headings, their value types, and those that several commands have."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from edgefl.cli import values
from edgefl.errors import InputError
from edgefl.util.units import Unit, parse_amount, parse_share

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from edgefl.registry import Registry

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
    """A positive number with an optional prefix and ``unit``: ``64MB``, ``100M``, ``30``; no other unit is allowed."""

    name = "X"

    def __init__(self, unit: Unit) -> None:
        self.unit: Unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number in bytes, MACs, seconds or joules."""
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


F = TypeVar("F", bound=Callable[..., Any])

OWN = "This command"
PATH = click.Path(path_type=Path)
OUT_FILE = click.Path(dir_okay=False, path_type=Path)
_HYPHEN = "\u2011"
_MOST_LISTED = 6


class Option(click.Option):
    """An option that knows under which heading help lists it; its default is shown in brackets.

    ``names`` is a registry. Its names, also those of plug-ins on the command line, take the place of ``{known}`` in the help; without a
    ``metavar``, a few are the placeholder instead.
    """

    def __init__(self, *args: Any, section: str = OWN, names: Registry | None = None, **settings: Any) -> None:
        if (default := settings.get("default")) is not None:
            settings["help"] += f" [{default:g}]" if isinstance(default, float) else f" [{default}]"
        super().__init__(*args, **settings)
        self.section, self.names = section, names

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its text."""
        if self.names is None or self.help is None or "{known}" not in self.help:
            return super().get_help_record(ctx)
        known = self.names.names()
        if self.metavar is None and len(known) <= _MOST_LISTED:
            self.metavar, self.help = "|".join(known), self.help.replace("{known}", "")
        self.metavar = self.metavar or "NAME"
        self.help = self.help.replace("{known}", f"Known: {', '.join(known)}. ")
        return super().get_help_record(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return names, choices or files that begin with ``incomplete``."""
        if isinstance(self.type, click.Choice) or (isinstance(self.type, click.Path) and self.name != "out"):
            return super().shell_complete(ctx, incomplete)
        if self.name == "out":
            return values.runs(ctx, self, incomplete)
        return values.completed(self, incomplete, self.names, ctx.info_name or "")

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the converted value; an empty text, such as that of an unset variable, is an error."""
        if isinstance(self.type, (click.Path, type(click.STRING))) and "" in (value if self.multiple and value else (value,)):
            raise click.BadParameter("expected a value, got ''", ctx, self)
        return super().type_cast_value(ctx, value)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """Return what click adds to the text: only that a flag is required."""
        return {key: value for key, value in super().get_help_extra(ctx).items() if key == "required"}


class Command(click.Command):
    """A command whose help groups its options by their sections, and breaks no name at a hyphen."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``--help`` last: it shows the names of plug-ins, wherever ``--plugin`` stands."""
        return super().parse_args(ctx, sorted(args, key=ctx.help_option_names.__contains__))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options per section, those of the command itself last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)) is not None:
                names, text = row
                sections.setdefault(getattr(parameter, "section", OWN), []).append((names, text.replace("-", _HYPHEN)))
        for section in sorted(sections, key=lambda name: name == OWN):
            with formatter.section(section if len(sections) > 1 else "Options"):
                formatter.write_dl(sections[section])

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, with plain hyphens."""
        return super().get_help(ctx).replace(_HYPHEN, "-")


def option(*names: str, section: str = OWN, **settings: Any) -> Callable[[F], F]:
    """Return the decorator of an option that help lists under ``section``."""
    return click.option(*names, cls=Option, section=section, **settings)


METHOD_OPTION = "Option of the method, may be repeated; 'edgefl methods NAME' lists them."


def method_option(**settings: Any) -> Callable[[F], F]:
    """Return the decorator of ``--method-option``, whose values are pairs of a key and a value."""
    return option("--method-option", "method_options", multiple=True, type=MethodOption(), **settings)


def sub_model_options(section: str) -> Callable[[F], F]:
    """Return the decorator of the options that name a method, its options and its tiers, for commands that show what they make."""
    sized = options_of(section)
    decorators = (
        sized("--method", metavar="NAME", help="Method that makes sub-models; see 'edgefl methods'. [the network as it is]"),
        method_option(section=section, help=METHOD_OPTION),
        sized("--tiers", type=Listed(float, "1,0.5,0.25"), help="Sizes of the sub-models, largest first. [the method's own]"),
    )

    def decorate(command: F) -> F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def sign_options(command: F) -> F:
    """Decorate a command that writes a bundle with ``--sign`` and ``--unsigned``; see :func:`signing`."""
    decorators = (
        option(
            "--sign", type=PATH, metavar="KEY", help="Sign the bundle with this Ed25519 private key, a PEM file. [your own key]"
        ),
        option("--unsigned", is_flag=True, help="Do not sign: devices then refuse the bundle unless told otherwise."),
    )
    for decorator in reversed(decorators):
        command = decorator(command)
    return command


def signing(sign: Path | None, unsigned: bool) -> Path | Literal[False] | None:
    """Return which key signs: a file's, None: the user's own, False: none."""
    if sign is not None and unsigned:
        raise click.UsageError("give either --sign or --unsigned")
    return False if unsigned else sign


def options_of(section: str, **settings: Any) -> Callable[..., Callable[[F], F]]:
    """Return :func:`option` with ``settings`` for the options of one section."""
    return partial(option, section=section, **settings)


def plugin_option(section: str = OWN, expose: bool = False) -> Callable[[F], F]:
    """Return the decorator of ``--plugin``, which imports plug-ins before other options are read; ``expose`` them as ``plugins``."""
    return option(
        "--plugin",
        "plugins",
        section=section,
        multiple=True,
        is_eager=True,
        expose_value=expose,
        callback=_plugins,
        metavar="FILE|MODULE",
        help="Python file, such as mine.py, or module that defines methods or other parts; may be repeated. [none]",
    )


def _plugins(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str] | None:
    if not given:
        return None
    from edgefl.plugins import load  # help needs no plug-ins

    return load(given)


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names that an argument of a command may be."""
    return values.completed(param, incomplete, None, ctx.info_name or "")


config_option = option(
    "--config",
    "config_file",
    type=PATH,
    metavar="FILE",
    help="TOML file with keys of a run: the long flags, with _ for -. Flags on the command line win.",
)
json_option = option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on standard output.")
