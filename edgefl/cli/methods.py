"""The command ``methods``: List the methods, or describe one with its options."""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from edgefl.cli.console import echo, loading, show
from edgefl.cli.options import Command, complete_name, json_option, plugin_option
from edgefl.errors import ConfigError
from edgefl.methods.axes import choices, refused
from edgefl.registry import key_groups, methods
from edgefl.report.tables import Column, PlainTable, text

if TYPE_CHECKING:
    from edgefl.methods.base import Method

AXES = {
    "objective": "objectives",
    "server_optimizer": "server optimizers",
    "codec": "codecs",
    "defence": "defences",
    "tier_assignment": "tiers",
    **{key: title for titles in key_groups.each("titles") for key, title in titles.items()},
}
"""The keys of a run that combine with methods, and how a table calls them."""
_NARROW = 110


@click.command(cls=Command)
@click.argument("name", required=False, shell_complete=complete_name)
@plugin_option()
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the methods, or describe NAME with its options.

    For each method: what clients send, what stays on them, what a tier is, and which objectives, optimizers and codecs it supports.

    \b
    edgefl methods
    edgefl methods fedhm
    edgefl methods --json
    """
    if name is not None and ":" not in name:
        methods.check(name)
    with loading():
        importlib.import_module("edgefl.methods.create")
    rows = [facts_of(method) for method in (methods.names() if name is None else [methods.resolve(name)])]
    if as_json:
        echo(json.dumps([row.to_dict() for row in rows] if name is None else rows[0].to_dict(), indent=2))
    elif name is not None:
        _print_one(rows[0])
    elif sys.stdout.isatty():
        from rich.console import Console

        show(methods_table(rows, Console().width))
        show("Show one with its options, and why something does not combine with it: edgefl methods fedhm")
    else:
        echo("\n".join(map(_line, rows)))


class OwnOption(NamedTuple):
    """An option of a method's own."""

    name: str
    type: str
    default: Any
    about: str


@dataclass(frozen=True)
class MethodFacts:
    """A method's facts about itself: axis → values that combine with it, and other value → why it does not."""

    name: str
    method: "Method"
    combines: Mapping[str, list[str]]
    refuses: Mapping[str, str]
    options: list[OwnOption]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        of, sizes = self.method, list(self.method.default_tiers)
        names = {"name": self.name, "title": of.title, "paper": of.paper, "about": inspect.cleandoc(of.__doc__ or "")}
        clients = {"travels": of.travels, "stays": of.stays, "tier_meaning": of.tier_meaning, "default_tiers": sizes}
        traits = {"clip_gradient": of.clip_gradient, "one_size": len(sizes) == 1, "per_client": of.per_client}
        combines = {"personalised": of.personalised, "combines": self.combines, "refuses": self.refuses}
        return names | clients | traits | combines | {"options": [option._asdict() for option in self.options]}


def facts_of(name: str) -> MethodFacts:
    """Return what a method says of itself; UnknownNameError if there is no such method."""
    from edgefl.methods.create import create  # these import torch
    from edgefl.methods.options import config_class
    from edgefl.methods.tier_sum import gaps

    try:
        method = create(name)
    except ConfigError as error:
        raise ConfigError(f"method {name}: {error}; give every option a default") from None
    refuses = refused(gaps(method), AXES)
    combines = {key: [value for value in values if value not in refuses] for key, values in _axis_values().items()}
    return MethodFacts(name, method, combines, refuses, _options(config_class(type(method))))


def _axis_values() -> dict[str, list[str]]:
    """Return the values of every axis but its default, which every method takes."""
    from edgefl.config import RunConfig

    return {key: [choice for choice in choices(key) if choice != RunConfig.model_fields[key].default] for key in AXES}


def _options(config: type[BaseModel]) -> list[OwnOption]:
    """Return a method's own options; their meanings stand in its class's docstring."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        texts |= _attributes(inspect.cleandoc(base.__doc__ or ""))
    of = ((name, of, of.get_default(call_default_factory=True)) for name, of in config.model_fields.items())
    return [OwnOption(k, _type(f.annotation), to_jsonable_python(value), _readable(texts.get(k, ""))) for k, f, value in of]


def _attributes(text: str) -> dict[str, str]:
    """Return name → text of the section "Attributes:" of a docstring.

    >>> _attributes("Options.\\n\\nAttributes:\\n    a: first,\\n        goes on.\\n    b: second.")
    {'a': 'first, goes on.', 'b': 'second.'}
    """
    section = text.partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", section, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", about) for name, about in entries}


def _type(annotation: Any) -> str:
    """Return a type as a reader of the command line needs it, without its bounds.

    >>> _type(dict[str, int | None]), _type(tuple[float, ...])
    ('table of str → int | None', 'list of float')
    """
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(parts[0])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (Union, UnionType):
        return " | ".join(map(_type, parts))
    if origin in (dict, Mapping):
        return f"table of {_type(parts[0])} → {_type(parts[1])}"
    if origin in (tuple, list):
        return f"list of {_type(parts[0])}"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _readable(docstring: str) -> str:
    """Return a docstring for the terminal: no markup, a paragraph per line, which the terminal breaks.

    >>> _readable("The option ``a`` of :func:`b`.")
    'The option a of b.'
    """
    plain = re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", docstring)
    paragraphs = plain.split("\n\n")
    return "\n\n".join(p if re.search(r"^( |=|-)", p, re.MULTILINE) else p.replace("\n", " ") for p in paragraphs)


def _tier(of: MethodFacts) -> str:
    return f"{of.method.tier_meaning} [{', '.join(f'{ratio:g}' for ratio in of.method.default_tiers)}]"


def _line(of: MethodFacts) -> str:
    stays = f"; stays: {of.method.stays}" if of.method.stays else ""
    whose = "; every client has a model of its own" if of.method.personalised else ""
    start = f"{of.name}: {of.method.title} ({of.method.paper}); travels: {of.method.travels}{stays}{whose}"
    return f"{start}; tier: {_tier(of)}; not with: {', '.join(of.refuses) or '–'}"


def methods_table(rows: Sequence[MethodFacts], width: int) -> PlainTable:
    """Return the list of methods for a terminal of ``width`` columns; a narrow one leaves the papers out."""
    axes = "; ".join(f"{AXES[key]}: {', '.join(values)}" for key, values in _axis_values().items())
    columns = [
        text("method", "", "name", widest=20),
        Column("travels; stays", "", lambda of: of.method.travels, numeric=False),
        Column("travels; stays", "", lambda of: f"stays: {of.method.stays}" if of.method.stays else "", numeric=False),
        Column("a tier is", "", _tier, numeric=False),
        Column("not with", "", lambda of: ", ".join(of.refuses) or "–", numeric=False),
        *([] if width < _NARROW else [Column("paper", "", lambda of: of.method.paper, numeric=False)]),
    ]
    return PlainTable.of(columns, rows, note=f"All others combine ({axes}).", stacked=True)


def _print_one(of: MethodFacts) -> None:
    show(f"{of.name}: {of.method.title}\n{of.method.paper}\n\n{_readable(inspect.cleandoc(of.method.__doc__ or ''))}\n")
    whose = "every client has its own" if of.method.personalised else "one for all"
    facts = {"travels": of.method.travels, "stays": of.method.stays or "nothing", "a tier is": _tier(of), "models": whose}
    for key, values in of.combines.items():
        facts[AXES[key]] = ", ".join(values) or "none"
    facts |= {f"not with {value}": reason for value, reason in of.refuses.items()}
    show(PlainTable.of_texts(("fact", "about it"), facts.items()))
    if not of.options:
        show("It has no options of its own.")
        return
    options = (option._replace(default=json.dumps(option.default)) for option in of.options)
    show("Options, given as --method-option KEY=VALUE:\n")
    show(PlainTable.of_texts(("option", "type", "default", "what"), options))
