"""The fenced blocks of a page of Markdown: what each is, and which commands it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))]
OURS = ("edgefl ", "python ", "mkdir ")
ENDLESS = ("edgefl serve",)
"""Commands that end with Ctrl-C only."""


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and the file that it becomes ("": none)."""

    kind: str
    text: str
    file: str


def blocks(page: str) -> Iterator[Block]:
    r"""Yield the fenced blocks of a page's Markdown.

    >>> [tuple(block) for block in blocks("```python\n# net.py\nx = 1\n```\n")]
    [('python', '# net.py\nx = 1\n', 'net.py')]
    >>> [tuple(block) for block in blocks("```csv trace.csv\nclient,from\n```\n")]
    [('csv', 'client,from\n', 'trace.csv')]
    """
    for kind, file, text in re.findall(r"^```(\w+)(?: ([\w-]+\.csv))?\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        named = re.match(r"# ([\w-]+\.(?:py|toml))\n", text)
        yield Block(kind, text, named[1] if named else file)


def commands(block: Block) -> list[str]:
    """Return the commands of a ``console`` block, without those that install, test or never end."""
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line.startswith(OURS) and not line.startswith(ENDLESS)]


def executed(block: Block) -> bool:
    """Return whether the check runs a block or writes it as a file: then it is a cell of a notebook."""
    return bool(block.file or block.kind == "python" or (block.kind == "console" and commands(block)))


def runs(page: Path) -> bool:
    """Return whether a page has a block that the check runs."""
    return any(executed(block) for block in blocks(page.read_text(encoding="utf-8")))
