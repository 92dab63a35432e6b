"""The command ``methods``: List the methods, or describe one with its options."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import click

from edgefl.cli.console import show
from edgefl.cli.options import Command, json_option
from edgefl.methods.axes import choices, refused
from edgefl.registry import methods

if TYPE_CHECKING:
    from rich.table import Table

    from edgefl.methods.base import Method, MethodConfig

AXES = {"objective": "objectives", "server_optimizer": "server optimizers", "codec": "codecs", "tier_assignment": "tiers"}
"""The keys of a run that combine with methods, and how a table calls them."""
_NARROW = 110


@click.command(cls=Command)
@click.argument("name", required=False)
@json_option
def command(name: str | None, as_json: bool) -> None:
    """List the methods, or describe NAME with its options.

    For each method: what clients send, what stays on them, what a tier is, and which objectives, optimizers and codecs it supports.

    \b
    edgefl methods
    edgefl methods fedhm
    edgefl methods --json
    """
    if name is not None:
        facts = facts_of(name)
        if as_json:
            click.echo(json.dumps(facts, indent=2))
        else:
            _print_one(facts)
        return
    rows = [facts_of(known) for known in methods.names()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif sys.stdout.isatty():
        from rich.console import Console

        show(methods_table(rows, Console().width))
        show("Show one with its options, and why something does not combine with it: edgefl methods fedhm")
    else:
        for row in rows:
            click.echo(_line(row))


def facts_of(name: str) -> dict[str, Any]:
    """Return all that a method says of itself.

    Raises:
        UnknownNameError: there is no such method.
    """
    method: type[Method] = methods.load(name)
    refuses = refused(method.lacks, AXES)
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
        "one_size": len(method.default_tiers) == 1,
        "per_client": method.per_client,
        "personalised": method.personalised,
        "combines": combines,
        "refuses": refuses,
        "options": _options(method.config_class),
    }


def _axis_values() -> dict[str, list[str]]:
    """Return the values of every axis but its default, which every method takes."""
    from edgefl.config import RunConfig

    return {key: [choice for choice in choices(key) if choice != RunConfig.model_fields[key].default] for key in AXES}


def _options(config: type[MethodConfig]) -> list[dict[str, Any]]:
    """Return name, type, default and meaning of a method's own options; the meanings stand in its class's docstring."""
    texts: dict[str, str] = {}
    for base in reversed(config.__mro__):
        texts |= _attributes(inspect.cleandoc(base.__doc__ or ""))
    return [
        {
            "name": name,
            "type": _type(field.annotation),
            "default": _jsonable(field.get_default(call_default_factory=True)),
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


def _jsonable(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value


def _readable(text: str) -> str:
    """Return a docstring for the terminal: no markup, a paragraph per line, which the terminal breaks.

    >>> _readable("The option ``a`` of :func:`b`.")
    'The option a of b.'
    """
    plain = re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", text)
    paragraphs = plain.split("\n\n")
    return "\n\n".join(p if re.search(r"^( |=|-)", p, re.MULTILINE) else p.replace("\n", " ") for p in paragraphs)


def _tier(row: dict[str, Any]) -> str:
    sizes = ", ".join(f"{ratio:g}" for ratio in row["default_tiers"])
    return f"{row['tier_meaning']} [{sizes}]"


def _not_with(row: dict[str, Any]) -> str:
    return ", ".join(row["refuses"]) or "–"


def _line(row: dict[str, Any]) -> str:
    stays = f"; stays: {row['stays']}" if row["stays"] else ""
    whose = "; every client has a model of its own" if row["personalised"] else ""
    start = f"{row['name']}: {row['title']} ({row['paper']}); travels: {row['travels']}{stays}{whose}"
    return f"{start}; tier: {_tier(row)}; not with: {_not_with(row)}"


def methods_table(rows: list[dict[str, Any]], width: int) -> Table:
    """Return the list of methods for a terminal of ``width`` columns; a narrow one leaves the papers out."""
    from rich.text import Text

    from edgefl.report.tables import bare_table

    narrow = width < _NARROW
    table = bare_table(gap=1 if narrow else 2, leading=1)
    axes = "; ".join(f"{AXES[key]}: {', '.join(values)}" for key, values in _axis_values().items())
    table.caption = Text(f"All others combine ({axes}).")
    heads = ["method", "travels; stays", "a tier is", "not with", *([] if narrow else ["paper"])]
    for head in heads:
        table.add_column(head, overflow="fold", no_wrap=head == "method")
    for row in rows:
        stays = f"\nstays: {row['stays']}" if row["stays"] else ""
        cells = (f"{row['travels']}{stays}", _tier(row), _not_with(row), row["paper"])
        table.add_row(Text(row["name"], style="bold"), *map(Text, cells[: len(heads) - 1]))
    return table


def _print_one(row: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    show(f"{row['name']}: {row['title']}\n{row['paper']}\n\n{_readable(row['about'])}\n")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    whose = "every client has its own" if row["personalised"] else "one for all"
    facts = {"travels": row["travels"], "stays": row["stays"] or "nothing", "a tier is": _tier(row), "models": whose}
    for key, values in row["combines"].items():
        facts[AXES[key]] = ", ".join(values) or "none"
    facts |= {f"not with {value}": reason for value, reason in row["refuses"].items()}
    for head, text in facts.items():
        table.add_row(Text(head, style="bold"), Text(text))
    show(table)
    if not row["options"]:
        show("\nIt has no options of its own.")
        return
    table = Table("option", "type", "default", "what", box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for option in row["options"]:
        table.add_row(*map(Text, (option["name"], option["type"], json.dumps(option["default"]), option["about"])))
    show("\nOptions, given as --method-option KEY=VALUE:\n")
    show(table)
