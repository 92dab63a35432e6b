"""Tables: columns and rows, and every form in which they are shown."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgefl.errors import printable
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds

Row = Mapping[str, Any]
Record = Any
"""A row: a mapping, or a record with an attribute for each key."""

ALWAYS = 9
"""The priority of a column that no terminal is too narrow for."""
_MOST_COLUMNS, _MOST_TURNED, _MOST_BESIDE = 8, 6, 5
"""A page turns tables of more columns than the first, if they have at most so many rows as the second."""
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
    cell: Callable[[Record], str]
    numeric: bool = True
    share: Callable[[Record], float | None] | None = None
    wraps: bool = False
    widest: int | None = None
    keep: int = 0

    @property
    def title(self) -> str:
        """The heading of the group and the column's own."""
        return f"{self.group} {self.head}".strip()


@dataclass(frozen=True)
class PlainTable:
    """A table as plain texts, one per row and column: :mod:`edgefl.report.terminal` shows it in a terminal, the macro ``body`` on a page.

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
        rows: Iterable[Record],
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

    @property
    def turned(self) -> bool:
        """Whether a page shows a column per row: there are few rows, and too many columns for the width of a page."""
        return len(self.columns) > _MOST_COLUMNS and 0 < len(self.rows) <= _MOST_TURNED

    @property
    def stacked_on_phones(self) -> bool:
        """Whether a page on a phone shows a row as a list: there are many columns, or long texts."""
        return len(self.columns) > _MOST_BESIDE or any(column.wraps for column in self.columns)

    @property
    def turned_groups(self) -> list[tuple[str, list[tuple[int, Column]]]]:
        """The columns after the first under their common headings, each with its position."""
        rest = list(enumerate(self.columns))[1:]
        return [(group, list(members)) for group, members in itertools.groupby(rest, key=lambda pair: pair[1].group)]

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

    def to_latex(self) -> str:
        """Return the table as LaTeX, for the package booktabs."""
        kinds = "".join("r" if column.numeric else "l" for column in self.columns)
        heads, *rows = [" & ".join(map(_latex, line)) + r" \\" for line in (_heads(self.columns), *self.rows)]
        return "\n".join(
            [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", heads, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}"]
        )

    def to_markdown(self) -> str:
        """Return the table as Markdown, with markup escaped."""
        lines = [_heads(self.columns), ["---:" if column.numeric else "---" for column in self.columns]]
        lines += [[" ".join(_MARKUP.sub(r"\\\1", text).split()) for text in row] for row in self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def printable(self) -> PlainTable:
        """Return the table with what would change a terminal escaped."""
        columns = tuple(replace(c, group=printable(c.group), head=printable(c.head)) for c in self.columns)
        rows = tuple(tuple(map(printable, row)) for row in self.rows)
        return replace(self, columns=columns, rows=rows, title=printable(self.title), note=printable(self.note))


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


def value_of(row: Record, key: str) -> Any:
    """Return the value of a row under a key; None if there is none, or no row."""
    return row.get(key) if isinstance(row, Mapping) else getattr(row, key, None)


def cell(key: str, human: Callable[[Any], str], outer: str = "") -> Callable[[Record], str]:
    """Return the function that writes a row's value under ``key``, within its record ``outer`` (which may be None) if that is given."""
    return lambda row: human(value_of(value_of(row, outer) if outer else row, key))


def under(group: str, human: Callable[[Any], str] | None = None, outer: str = "", **heads: str) -> tuple[Column, ...]:
    """Return columns of one group from ``key=heading``; without ``human``, the key's name says how values are written.

    The keys are those of a row, or of its record ``outer``, which may be None.
    """
    return tuple(Column(group, head, cell(key, human or human_of(key), outer)) for key, head in heads.items())


def text(group: str, head: str, *keys: str, widest: int | None = None) -> Column:
    """Return a column of texts: the first of ``keys`` with a value, else a dash."""

    def written(row: Record) -> str:
        return str(next(filter(None, (value_of(row, key) for key in keys)), MISSING))

    return Column(group, head, written, numeric=False, widest=widest)


def shaded(group: str, share: Callable[[Record], float | None]) -> Column:
    """Return a column of shares, which shade their cells on a page."""
    return Column(group, "", lambda row: human_percent(share(row)), share=share)


def raw_columns(rows: Sequence[Record], keys: Iterable[str]) -> list[Column]:
    """Return a column of plain values per key."""
    return [Column(key, "", cell(key, _raw), all(isinstance(value_of(row, key), int | float) for row in rows)) for key in keys]


def _raw(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(value)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _heads(columns: Iterable[Column]) -> list[str]:
    return [column.title for column in columns]


_TEX = {"±": r"$\pm$", "–": "--", "−": "$-$", "≥": r"$\geq$", "µ": r"$\mu$", "ε": r"$\varepsilon$", "\\": r"\textbackslash{}"}
_TEX |= {"∞": r"$\infty$", "…": r"\ldots{}", "×": r"$\times$", "·": r"$\cdot$", ">": "$>$", "|": "$|$", '"': "''"}
_TEX |= {char: f"\\{char}" for char in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\n": " ", "<": "$<$"}


def _latex(text: str) -> str:
    r"""Return a text as LaTeX.

    >>> _latex("75.0 ± 5.0 %"), _latex("a_b")
    ('75.0 $\\pm$ 5.0 \\%', 'a\\_b')
    """
    return "".join(_TEX.get(char, char) for char in text)


def _shade(column: Column, row: Record) -> float | None:
    share = column.share(row) if column.share else None
    return None if share is None else round(min(share, 1.0), 3)
