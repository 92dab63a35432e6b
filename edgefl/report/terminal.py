"""How a table is shown in a terminal: its spacing, its colours, and what it does without room."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table
from rich.text import Text

from edgefl.errors import printable
from edgefl.report.tables import ALWAYS, PlainTable

_GAPS = (2, 1, 0)
_WHOLE = 9
"""A text of so many characters, such as a number with its unit, is not broken."""
_LONGEST_WORD = 26
"""A longer word, such as an address of the web, may be broken."""
_COLOURS = {
    ("fits", "yes"): "green",
    ("fits", "takes it"): "bold green",
    ("fits", "no"): "red",
    ("state", "ok"): "green",
    ("state", "missing"): "yellow",
    ("state", "broken"): "bold red",
    ("mark", "measured"): "green",
    ("mark", "assumed"): "yellow",
}
"""Heading and text of a cell → its colour in a terminal."""


def shown(what: Any) -> Any:
    """Return what rich prints of a text or a table, with what would change a terminal escaped; anything else is returned as it is."""
    return printable(what) if isinstance(what, str) else Fitted(what.printable()) if isinstance(what, PlainTable) else what


@dataclass(frozen=True)
class Fitted:
    """A table that rich prints by :func:`fitted`."""

    table: PlainTable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return fitted(self.table, console, options)


def fitted(table: PlainTable, console: Console, options: ConsoleOptions) -> RenderResult:
    """Yield the table with the widest spacing that fits. Cells wrap between words; where a word has no room, columns are left out."""
    unlimited = options.update(width=10_000)

    def width(found: Table) -> int:
        return console.measure(found, options=unlimited).maximum

    shown, left_out = table, list[str]()
    while True:
        tables = [_rich(shown, gap) for gap in _GAPS]
        fitting = next((found for found in tables if width(found) <= options.max_width), None)
        last = _least(shown)
        if fitting is not None or (fitting := _wrapped(tables[1:], options.max_width, width, last is None)) is not None:
            break
        assert last is not None  # a table of which no column may go is wrapped all the same
        left_out.insert(0, shown.columns[last].title)
        shown = _without(shown, last)
    yield fitting
    if left_out:
        yield Text(f"No room for: {', '.join(left_out)}. A wider terminal shows them.", style="dim")


def _wrapped(tables: Sequence[Table], room: int, width: Callable[[Table], int], always: bool) -> Table | None:
    """Return the first table whose words fit into ``room`` characters, with the widths of its columns; with ``always``, else the last."""
    for table in tables:
        limits = [_limits(column) for column in table.columns]
        left = room - width(table) + sum(most for _, most in limits)
        if sum(least for least, _ in limits) <= left or (always and table is tables[-1]):
            for column, own in zip(table.columns, _shared(limits, left), strict=True):
                column.width = own
            return table
    return None


def _least(table: PlainTable) -> int | None:
    """Return the column to leave out first: of those of the lowest priority the last one; None if all must stay."""
    able = [(column.keep, -at) for at, column in enumerate(table.columns) if at and column.keep < ALWAYS]
    return -min(able)[1] if able and len(table.columns) > 1 else None


def _without(table: PlainTable, at: int) -> PlainTable:
    def others(row: Sequence[Any]) -> tuple[Any, ...]:
        return (*row[:at], *row[at + 1 :])

    return replace(
        table, columns=others(table.columns), rows=tuple(map(others, table.rows)), shares=tuple(map(others, table.shares))
    )


def _rich(plain: PlainTable, gap: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, leading=int(plain.stacked))
    table.title_justify = table.caption_justify = "left"
    table.title = Text(plain.title, style="bold") if plain.title else None
    table.caption = Text(plain.note) if plain.note else None
    groups = [members for _, members in plain.groups] if plain.stacked else [[column] for column in plain.columns]
    headed, before = plain.headed, None
    for members in groups:
        first = members[0]
        heads = [column.head for column in members if column.head] if plain.stacked else [first.head] * headed
        head = "\n".join([first.group if plain.stacked or first.group != before else "", *heads])
        before = first.group
        table.add_column(
            Text(head),
            justify="right" if first.numeric else "left",
            no_wrap=(plain.stacked and first.numeric) or first.widest is not None,
            overflow="fold" if first.widest is None else "ellipsis",
            min_width=None if first.numeric or plain.stacked else min(8, first.widest or 8),
            max_width=first.widest,
        )
    for number, row in enumerate(plain.rows):
        texts = iter(row)
        cells = (_coloured(members[0].group, "\n".join(itertools.islice(texts, len(members)))) for members in groups)
        table.add_row(*cells, style="bold" if plain.marked and plain.marked[number] else None)
    return table


def _limits(column: Column) -> tuple[int, int]:
    """Return the least width at which a column breaks no word of usual length, and the width at which it breaks no line."""
    texts = [str(column.header), *map(str, column.cells)]
    most = max((cell_len(line) for text in texts for line in text.splitlines()), default=0)
    if column.no_wrap:
        return (min(most, column.max_width or most),) * 2
    lines = [line for text in texts for line in text.splitlines()]
    words = [word for line in lines for word in ([line] if cell_len(line) <= _WHOLE else line.split())]
    return min(most, max(map(cell_len, words), default=0), _LONGEST_WORD), most


def _shared(limits: Sequence[tuple[int, int]], room: int) -> list[int]:
    """Return a width for each column: its least, and of the remaining room the share of what it lacks.

    >>> _shared([(5, 5), (4, 24), (4, 14)], 28)
    [5, 14, 9]
    """
    spare, lacking = max(0, room - sum(least for least, _ in limits)), sum(most - least for least, most in limits)
    return [least + (most - least) * spare // max(lacking, 1) if spare < lacking else most for least, most in limits]


def _coloured(group: str, text: str) -> Text:
    return Text(text, style=_COLOURS.get((group, text), ""))
