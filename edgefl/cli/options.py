"""Options whose help is grouped under headings, and those that several commands have."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from edgefl.cli import values
from edgefl.cli.param_types import PATH, Amount, Listed, MethodOption

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from edgefl.registry import Registry

F = TypeVar("F", bound=Callable[..., Any])

OWN = "This command"
_HYPHEN = "\u2011"
_SHORT = "edgefl.short_help"
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
        names = self.names.names()
        if self.metavar is None and len(names) <= _MOST_LISTED:
            self.metavar, self.help = "|".join(names), self.help.replace("{known}", "")
        self.metavar = self.metavar or "NAME"
        self.help = self.help.replace("{known}", f"Known: {', '.join(names)}. ")
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


_INSTEAD = {
    "--gpu": "--device cuda",
    "--cuda": "--device cuda",
    "--alpha": "--partition dirichlet:ALPHA",
    "--dirichlet": "--partition dirichlet:ALPHA",
    "--num-clients": "--clients",
    "--num-rounds": "--rounds",
    "--epochs": "--local-epochs",
    "--learning-rate": "--lr",
}
"""Name of an option in other simulators → its name here."""


class Command(click.Command):
    """A command whose help groups its options by their sections, and breaks no name at a hyphen.

    If it has several sections, ``-h`` shows a line for each option, without its values and default.
    """

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Return the option of the help."""
        if (help_option := super().get_help_option(ctx)) is not None and self._sectioned():
            help_option.help = "Show this message and exit; -h: a line for each option."
        return help_option

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``--help`` last: it shows the names of plug-ins, wherever ``--plugin`` stands."""
        ctx.meta[_SHORT] = "-h" in args and "--help" not in args and self._sectioned()
        try:
            return super().parse_args(ctx, sorted(args, key=ctx.help_option_names.__contains__))
        except click.NoSuchOption as error:
            instead = _INSTEAD.get(error.option_name)
            names = {name for parameter in self.params for name in parameter.opts}
            if instead is None or instead.partition(" ")[0] not in names:
                raise
            raise click.UsageError(f"no such option {error.option_name!r}; give {instead}", ctx) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a list of options per section, those of the command itself last."""
        short, sections = ctx.meta.get(_SHORT, False), dict[str, list[tuple[str, str]]]()
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (row := parameter.get_help_record(ctx)) is not None:
                row = _in_a_line(parameter, formatter.width) if short else row
                sections.setdefault(getattr(parameter, "section", OWN), []).append((row[0], row[1].replace("-", _HYPHEN)))
        for section in sorted(sections, key=lambda name: name == OWN):
            with formatter.section(section if len(sections) > 1 else "Options"):
                formatter.write_dl(sections[section])
        if short:
            formatter.write_paragraph()
            formatter.write_text(f"The values and the default of each option: {ctx.command_path} --help")

    def _sectioned(self) -> bool:
        return any(getattr(parameter, "section", OWN) != OWN for parameter in self.params)

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, with plain hyphens."""
        return super().get_help(ctx).replace(_HYPHEN, "-")


_NAMES = 22
"""Columns of the longest name in a short help."""


def _in_a_line(parameter: click.Option, width: int) -> tuple[str, str]:
    """Return an option's name and the first clause of its help, of which a line of ``width`` columns has room for all or a part."""
    short, long = ([name for name in parameter.opts if name.startswith("--") == on] for on in (False, True))
    name, text = ", ".join([*short, min(long, key=len)]), first_clause(parameter.help or "")
    room = width - _NAMES - 6
    if len(text) > room:
        text = text[: room - 2].rpartition(" ")[0].rstrip(" ,;:(") + " …"
    return name.ljust(_NAMES), text


def first_clause(text: str) -> str:
    """Return what stands before the first details of an option's text.

    >>> first_clause("Fleet to simulate; 'edgefl devices' lists them. [phone]"), first_clause("inline: in this process; pool: in several.")
    ('Fleet to simulate', 'inline: in this process; pool: in several')
    """
    sentence = re.split(r"\.(?: |$)| \[", text, maxsplit=1)[0]
    clause = sentence.partition("; ")[0]
    return sentence if ": " in clause else clause


def option(*names: str, section: str = OWN, **settings: Any) -> Callable[[F], F]:
    """Return the decorator of an option that help lists under ``section``."""
    return click.option(*names, cls=Option, section=section, **settings)


def stacked(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return the decorator that applies ``decorators``, of which the first is the outermost: help lists them in their order."""
    return lambda command: reduce(lambda decorated, decorator: decorator(decorated), reversed(decorators), command)


def method_option(**settings: Any) -> Callable[[F], F]:
    """Return the decorator of ``--method-option``, whose values are pairs of a key and a value."""
    settings.setdefault("help", "Option of the method, may be repeated; 'edgefl methods NAME' lists them.")
    return option("--method-option", "method_options", multiple=True, type=MethodOption(), **settings)


def sub_model_options(section: str) -> Callable[[F], F]:
    """Return the decorator of the options that name a method, its options and its tiers, for commands that show what they make."""
    sized = options_of(section)
    return stacked(
        sized("--method", metavar="NAME", help="Method that makes sub-models; see 'edgefl methods'. [the network as it is]"),
        method_option(section=section),
        sized("--tiers", type=Listed(float, "1,0.5,0.25"), help="Sizes of the sub-models, largest first. [the method's own]"),
    )


def sign_options(command: F) -> F:
    """Decorate a command that writes a bundle with ``--sign``, ``--unsigned`` and ``--lasts``; see :func:`signing`."""
    decorate: Callable[[F], F] = stacked(
        option(
            "--sign", type=PATH, metavar="KEY", help="Sign the bundle with this Ed25519 private key, a PEM file. [your own key]"
        ),
        option("--unsigned", is_flag=True, help="Do not sign: devices then refuse the bundle unless told otherwise."),
        option(
            "--lasts",
            "lasts_s",
            type=Amount("s"),
            metavar="TIME",
            help="Devices refuse the bundle after TIME, such as 48h. [no end]",
        ),
    )
    return decorate(command)


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


def _plugins(ctx: click.Context, param: click.Parameter, sources: tuple[str, ...]) -> dict[str, str] | None:
    if not sources:
        return None
    from edgefl.plugins import load  # help needs no plug-ins

    return load(sources)


def trust_option(command: F) -> F:
    """Decorate a command with ``--trust-code``, by which code that a configuration or a run names may run in this call."""
    text = (
        "Run the Python files that the configuration or the run's folder names, in this call. [those on your list: edgefl trust]"
    )
    flag = option("--trust-code", is_flag=True, is_eager=True, expose_value=False, callback=_trust, help=text)
    return flag(command)


def _trust(ctx: click.Context, param: click.Parameter, trusted: bool) -> None:
    if trusted:
        from edgefl.consent import trust_code

        ctx.with_resource(trust_code())


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
