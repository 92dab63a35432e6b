"""Reading what the report room writes: pages as a browser would, tables as a terminal of some width shows them."""

import io
import json
import re
from html.parser import HTMLParser
from typing import Any

from rich.console import Console, RenderableType


class Page(HTMLParser):
    """What a page asks a browser to do: its tags, addresses, headings, captions, and the text that is not a script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.headings: list[tuple[int, str]] = []
        self.text = ""
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag
        if re.fullmatch(r"h\d", tag):
            self.headings.append((int(tag[1]), ""))

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            return
        self.text += data
        if re.fullmatch(r"h\d", self._open):
            level, text = self.headings.pop()
            self.headings.append((level, text + data.strip()))


def figures_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def printed(table: RenderableType, width: int) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
