"""Tables: columns and rows, and every form in which they are shown."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column as RichColumn
    from rich.table import Table as RichTable
    from rich.text import Text

Row = Mapping[str, Any]

_GAPS = (2, 1, 0)
ALWAYS = 9
"""The priority of a column that no terminal is too narrow for."""
_WHOLE = 9
"""A text of so many characters, such as a number with its unit, is not broken."""
_LONGEST_WORD = 26
"""A longer word, such as an address of the web, may be broken."""
_COLOURS = {
    ("fits", "yes"): "green",
    ("fits", "takes it"): "bold green",
    ("fits", "no"): "red",
    ("mark", "measured"): "green",
    ("mark", "assumed"): "yellow",
}
"""Heading and text of a cell → its colour in a terminal."""
_MARKUP = re.compile(r"([\\|<])")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        group: the heading that neighbouring columns share; ``head`` is the column's own below it, or "".
        cell: returns a row's text; a line break starts a new line within the cell.
        numeric: whether the column is aligned to the right.
        share: returns the share in [0, 1] that shades a row's cell on a page, None for no shade.
        wraps: whether a page may break long lines.
        widest: the most characters in a terminal, after which a text is cut; None for no limit.
        keep: in a narrow terminal, columns with the lowest number are left out first, and :data:`ALWAYS` and the first column never.
    """

    group: str
    head: str
    cell: Callable[[Row], str]
    numeric: bool = True
    share: Callable[[Row], float | None] | None = None
    wraps: bool = False
    widest: int | None = None
    keep: int = 0


@dataclass(frozen=True)
class PlainTable:
    """A table as plain texts, one per row and column. Rich prints it as it is; pages render it with the macro ``body``.

    Attributes:
        rows: one text per column.
        marked: whether a row stands out, one per row or empty.
        shares: the share in [0, 1] that shades a cell, None for no shade; one per text.
        title: stands above the table in a terminal, ``note`` below it.
        stacked: whether a terminal shows the columns of one group one above the other.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    marked: tuple[bool, ...] = ()
    shares: tuple[tuple[float | None, ...], ...] = ()
    title: str = ""
    note: str = ""
    stacked: bool = False

    @classmethod
    def of(
        cls,
        columns: Iterable[Column],
        rows: Iterable[Row],
        marked: Iterable[bool] = (),
        title: str = "",
        note: str = "",
        stacked: bool = False,
    ) -> PlainTable:
        """Return the table of ``rows`` that ``columns`` describe."""
        columns, rows = tuple(columns), tuple(rows)
        texts = tuple(tuple(column.cell(row) for column in columns) for row in rows)
        shares = tuple(tuple(_shade(column, row) for column in columns) for row in rows)
        return cls(columns, texts, tuple(marked), shares, title, note, stacked)

    @classmethod
    def of_texts(cls, heads: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[str] = ()) -> PlainTable:
        """Return a table of texts; columns named in ``numeric`` are aligned to the right."""
        columns = [Column(head, "", cell(head, str), head in numeric) for head in heads]
        return cls.of(columns, (dict(zip(heads, row, strict=True)) for row in rows))

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Neighbouring columns under their common heading."""
        return [(group, list(members)) for group, members in itertools.groupby(self.columns, key=lambda column: column.group)]

    @property
    def headed(self) -> bool:
        """Whether columns have headings of their own below those of the groups."""
        return any(column.head for column in self.columns)

    def to_plain(self) -> str:
        """Return a line of text per row, its columns' groups one after the other, and the note: for output that is no terminal."""
        rows, groups = map(iter, self.rows), self.groups
        lines = (
            "; ".join(f"{group} " + ", ".join(f"{c.head} {next(row)}".strip() for c in members) for group, members in groups)
            for row in rows
        )
        return "\n".join([*lines, *filter(None, [self.note])])

    def to_csv(self) -> str:
        """Return the table as comma-separated values under the columns' names."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([_heads(self.columns), *self.rows])
        return text.getvalue().rstrip("\n")

    def to_markdown(self) -> str:
        """Return the table as Markdown, with markup escaped."""
        lines = [_heads(self.columns), ["---:" if column.numeric else "---" for column in self.columns]]
        lines += [[" ".join(_MARKUP.sub(r"\\\1", text).split()) for text in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the table with the widest spacing that fits. Cells wrap between words; where a word has no room, columns are left out."""
        from rich.text import Text

        unlimited = options.update(width=10_000)
        shown, left_out = self, list[str]()
        while True:
            tables = [shown._rich(gap) for gap in _GAPS]
            fitting = next((t for t in tables if console.measure(t, options=unlimited).maximum <= options.max_width), None)
            if fitting is not None:
                break
            limits = [_limits(column) for column in tables[1].columns]
            frame = console.measure(tables[1], options=unlimited).maximum - sum(most for _, most in limits)
            room, last = options.max_width - frame, shown._least()
            if sum(least for least, _ in limits) <= room or last is None:
                fitting = tables[1]
                for column, width in zip(fitting.columns, _shared(limits, room), strict=True):
                    column.width = width
                break
            left_out.insert(0, _heads(shown.columns)[last])
            shown = shown._without(last)
        yield fitting
        if left_out:
            yield Text(f"No room for: {', '.join(left_out)}. A wider terminal shows them.", style="dim")

    def _least(self) -> int | None:
        """Return the column to leave out first: of those of the lowest priority the last one; None if all must stay."""
        able = [(column.keep, -at) for at, column in enumerate(self.columns) if at and column.keep < ALWAYS]
        return -min(able)[1] if able and len(self.columns) > 1 else None

    def _without(self, at: int) -> PlainTable:
        def others(row: Sequence[Any]) -> tuple[Any, ...]:
            return (*row[:at], *row[at + 1 :])

        return replace(
            self, columns=others(self.columns), rows=tuple(map(others, self.rows)), shares=tuple(map(others, self.shares))
        )

    def _rich(self, gap: int) -> RichTable:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, leading=int(self.stacked))
        table.title_justify = table.caption_justify = "left"
        table.title = Text(self.title, style="bold") if self.title else None
        table.caption = Text(self.note) if self.note else None
        groups = [members for _, members in self.groups] if self.stacked else [[column] for column in self.columns]
        headed, before = self.headed, None
        for members in groups:
            first = members[0]
            heads = [column.head for column in members if column.head] if self.stacked else [first.head] * headed
            head = "\n".join([first.group if self.stacked or first.group != before else "", *heads])
            before = first.group
            table.add_column(
                Text(head),
                justify="right" if first.numeric else "left",
                no_wrap=(self.stacked and first.numeric) or first.widest is not None,
                overflow="fold" if first.widest is None else "ellipsis",
                min_width=None if first.numeric or self.stacked else min(8, first.widest or 8),
                max_width=first.widest,
            )
        for number, row in enumerate(self.rows):
            texts = iter(row)
            cells = (_coloured(members[0].group, "\n".join(itertools.islice(texts, len(members)))) for members in groups)
            table.add_row(*cells, style="bold" if self.marked and self.marked[number] else None)
        return table


_HUMAN = {
    **dict.fromkeys(("share", "accuracy", "inclusion"), human_percent),
    **{"bytes": human_bytes, "s": human_seconds, "seconds": human_seconds, "j": human_joules, "joules": human_joules},
}
"""Word of a key, most important first → how its values are written; without such a word they are counts."""


def human_of(key: str) -> Callable[[Any], str]:
    """Return the function that writes values under a key for people, by the unit in its name.

    >>> human_of("download_bytes")(2_000_000), human_of("clients")(12)
    ('2.00 MB', '12')
    """
    words = key.split("_")
    return next((human for word, human in _HUMAN.items() if word in words), human_count)


def cell(key: str, human: Callable[[Any], str], outer: str = "") -> Callable[[Row], str]:
    """Return the function that writes a row's value under ``key``, within its record ``outer`` (which may be None) if that is given."""
    return lambda row: human(((row[outer] or {}) if outer else row).get(key))


def under(group: str, human: Callable[[Any], str] | None = None, outer: str = "", **heads: str) -> tuple[Column, ...]:
    """Return columns of one group from ``key=heading``; without ``human``, the key's name says how values are written.

    The keys are those of a row, or of its record ``outer``, which may be None.
    """
    return tuple(Column(group, head, cell(key, human or human_of(key), outer)) for key, head in heads.items())


def text(group: str, head: str, *keys: str, widest: int | None = None) -> Column:
    """Return a column of texts: the first of ``keys`` with a value, else a dash."""
    return Column(group, head, lambda row: str(next(filter(None, map(row.get, keys)), MISSING)), numeric=False, widest=widest)


def shaded(group: str, share: Callable[[Row], float | None]) -> Column:
    """Return a column of shares, which shade their cells on a page."""
    return Column(group, "", lambda row: human_percent(share(row)), share=share)


def raw_table(rows: Sequence[Row], declared: Sequence[str]) -> PlainTable:
    """Return a table of plain values under their keys; those of ``declared`` come first, in this order, if a row has them."""
    used = dict.fromkeys(key for row in rows for key in row)
    keys = [key for key in declared if key in used] + [key for key in used if key not in declared]
    numeric = {key: all(isinstance(row.get(key), int | float) for row in rows) for key in keys}
    return PlainTable.of([Column(key, "", cell(key, _raw), numeric[key]) for key in keys], rows)


def _raw(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _limits(column: RichColumn) -> tuple[int, int]:
    """Return the least width at which a column breaks no word of usual length, and the width at which it breaks no line."""
    from rich.cells import cell_len

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
    from rich.text import Text

    return Text(text, style=_COLOURS.get((group, text), ""))


def _heads(columns: Iterable[Column]) -> list[str]:
    return [f"{column.group} {column.head}".strip() for column in columns]


def _shade(column: Column, row: Row) -> float | None:
    share = column.share(row) if column.share else None
    return None if share is None else round(min(share, 1.0), 3)
