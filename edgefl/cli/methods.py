"""The command ``methods``: List the methods, or describe one with its options."""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from edgefl.cli.console import echo, loading, show
from edgefl.cli.options import Command, complete_name, json_option, plugin_option
from edgefl.errors import ConfigError
from edgefl.methods.axes import choices, refused
from edgefl.registry import key_groups, methods
from edgefl.report.tables import Column, PlainTable, Row, text

AXES = {
    "objective": "objectives",
    "server_optimizer": "server optimizers",
    "codec": "codecs",
    "defence": "defences",
    "tier_assignment": "tiers",
    **{key: title for name in key_groups.names() for key, title in key_groups.facts(name).get("titles", {}).items()},
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
    found = [facts_of(known) for known in (methods.names() if name is None else [methods.resolve(name)])]
    if as_json:
        echo(json.dumps(found if name is None else found[0], indent=2))
    elif name is not None:
        _print_one(found[0])
    elif sys.stdout.isatty():
        from rich.console import Console

        show(methods_table(found, Console().width))
        show("Show one with its options, and why something does not combine with it: edgefl methods fedhm")
    else:
        echo("\n".join(map(_line, found)))


def facts_of(name: str) -> dict[str, Any]:
    """Return all that a method says of itself; UnknownNameError if there is no such method."""
    from edgefl.methods.create import create  # these import torch
    from edgefl.methods.options import config_class
    from edgefl.methods.tier_sum import gaps

    try:
        method = create(name)
    except ConfigError as error:
        raise ConfigError(f"method {name}: {error}; give every option a default") from None
    refuses = refused(gaps(method), AXES)
    combines = {key: [value for value in values if value not in refuses] for key, values in _axis_values().items()}
    return {
        "name": name,
        "title": method.title,
        "paper": method.paper,
        "about": inspect.cleandoc(method.__doc__ or ""),
        "travels": method.travels,
        "stays": method.stays,
        "tier_meaning": method.tier_meaning,
        "default_tiers": list(method.default_tiers),
        "clip_gradient": method.clip_gradient,
        "one_size": len(method.default_tiers) == 1,
        "per_client": method.per_client,
        "personalised": method.personalised,
        "combines": combines,
        "refuses": refuses,
        "options": _options(config_class(type(method))),
    }


def _axis_values() -> dict[str, list[str]]:
    """Return the values of every axis but its default, which every method takes."""
    from edgefl.config import RunConfig

    return {key: [choice for choice in choices(key) if choice != RunConfig.model_fields[key].default] for key in AXES}


def _options(config: type[BaseModel]) -> list[dict[str, Any]]:
    """Return name, type, default and meaning of a method's own options; the meanings stand in its class's docstring."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        texts |= _attributes(inspect.cleandoc(base.__doc__ or ""))
    return [
        {
            "name": name,
            "type": _type(field.annotation),
            "default": to_jsonable_python(field.get_default(call_default_factory=True)),
            "about": _readable(texts.get(name, "")),
        }
        for name, field in config.model_fields.items()
    ]


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
    origin, of = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(of[0])
    if origin is Literal:
        return " | ".join(map(str, of))
    if origin in (Union, UnionType):
        return " | ".join(map(_type, of))
    if origin in (dict, Mapping):
        return f"table of {_type(of[0])} → {_type(of[1])}"
    if origin in (tuple, list):
        return f"list of {_type(of[0])}"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _readable(docstring: str) -> str:
    """Return a docstring for the terminal: no markup, a paragraph per line, which the terminal breaks.

    >>> _readable("The option ``a`` of :func:`b`.")
    'The option a of b.'
    """
    plain = re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", docstring)
    paragraphs = plain.split("\n\n")
    return "\n\n".join(p if re.search(r"^( |=|-)", p, re.MULTILINE) else p.replace("\n", " ") for p in paragraphs)


def _tier(row: Row) -> str:
    return f"{row['tier_meaning']} [{', '.join(f'{ratio:g}' for ratio in row['default_tiers'])}]"


def _not_with(row: Row) -> str:
    return ", ".join(row["refuses"]) or "–"


def _line(row: Row) -> str:
    stays = f"; stays: {row['stays']}" if row["stays"] else ""
    whose = "; every client has a model of its own" if row["personalised"] else ""
    start = f"{row['name']}: {row['title']} ({row['paper']}); travels: {row['travels']}{stays}{whose}"
    return f"{start}; tier: {_tier(row)}; not with: {_not_with(row)}"


def methods_table(rows: Sequence[Row], width: int) -> PlainTable:
    """Return the list of methods for a terminal of ``width`` columns; a narrow one leaves the papers out."""
    axes = "; ".join(f"{AXES[key]}: {', '.join(values)}" for key, values in _axis_values().items())
    columns = [
        text("method", "", "name", widest=20),
        text("travels; stays", "", "travels"),
        Column("travels; stays", "", lambda row: f"stays: {row['stays']}" if row["stays"] else "", numeric=False),
        Column("a tier is", "", _tier, numeric=False),
        Column("not with", "", _not_with, numeric=False),
        *([] if width < _NARROW else [text("paper", "", "paper")]),
    ]
    return PlainTable.of(columns, rows, note=f"All others combine ({axes}).", stacked=True)


def _print_one(row: Row) -> None:
    show(f"{row['name']}: {row['title']}\n{row['paper']}\n\n{_readable(row['about'])}\n")
    whose = "every client has its own" if row["personalised"] else "one for all"
    facts = {"travels": row["travels"], "stays": row["stays"] or "nothing", "a tier is": _tier(row), "models": whose}
    for key, values in row["combines"].items():
        facts[AXES[key]] = ", ".join(values) or "none"
    facts |= {f"not with {value}": reason for value, reason in row["refuses"].items()}
    show(PlainTable.of_texts(("fact", "about it"), facts.items()))
    if not row["options"]:
        show("It has no options of its own.")
        return
    options = ((option["name"], option["type"], json.dumps(option["default"]), option["about"]) for option in row["options"])
    show("Options, given as --method-option KEY=VALUE:\n")
    show(PlainTable.of_texts(("option", "type", "default", "what"), options))
