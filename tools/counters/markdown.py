"""Tables in Markdown, and the markers between which a page holds them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def page_of(name: str) -> Path:
    """Return the page of the checkout that holds the table ``name``: README.md or a page of docs/.

    >>> page_of("counters").name
    'costs.md'
    """
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if f"<!-- {name}:begin -->" in page.read_text(encoding="utf-8"):
            return page
    raise ValueError(f"no page of {ROOT} has the marker <!-- {name}:begin -->")


def percent(share: float) -> str:
    """Return a signed share; one that one digit does not tell from none is below 0.1 %, none is 0 %.

    >>> percent(3), percent(-0.996), percent(1e-9), percent(0)
    ('+300 %', '−99.6 %', '< 0.1 %', '0 %')
    """
    if abs(share) < 0.0005:
        return "< 0.1 %" if share else "0 %"
    digits = 0 if share == -1 or (abs(share) >= 0.1 and share > -0.995) else 1
    return f"{100 * share:+,.{digits}f} %".replace("-", "−")


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def replaced(text: str, name: str, body: str) -> str:
    r"""Return ``text`` with ``body`` between its markers of ``name``.

    >>> replaced("a <!-- memory:begin -->old<!-- memory:end --> z", "memory", "new")
    'a <!-- memory:begin -->\nnew\n<!-- memory:end --> z'
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"expected {begin} and {end} once each, in this order")
    return f"{text.partition(begin)[0]}{begin}\n{body}\n{end}{text.partition(end)[2]}"


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the options of a command whose table a page holds, beside those that ``parser`` has already."""
    parser.add_argument("--page", type=Path, help="the file with the markers [the page of this checkout that has them]")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="fail when the file has another table")
    action.add_argument("--write", action="store_true", help="replace the table in the file")
    return parser.parse_args()


def publish(name: str, body: str, options: argparse.Namespace, hint: str = "") -> None:
    """Print ``body``, write it between the markers of ``name``, or stop with a word when the file has another one there."""
    if not (options.check or options.write):
        print(body)
        return
    page = options.page or page_of(name)
    before = page.read_text(encoding="utf-8")
    try:
        after = replaced(before, name, body)
    except ValueError as error:
        sys.exit(f"{page}: {error}")
    if options.write:
        page.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{page}: the table is not what was counted now{hint}; --write replaces it")
