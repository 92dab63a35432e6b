"""Notebooks of the tutorials: the text and the blocks of a page, with the output that the check of the documentation saw."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat

from manual.blocks import ROOT, Block, blocks, commands, executed

TUTORIALS = ("first-run", "network-cost", "device-and-back", "your-own")
FOLDER = ROOT / "docs/notebooks"


def notebook(page: Path, outputs: Sequence[str] = ()) -> nbformat.NotebookNode:
    """Return a page as a notebook. ``outputs`` are those of its cells of code, in their order; none: not run."""
    cells: list[nbformat.NotebookNode] = []
    texts = iter(outputs)
    for kind, source in _cells(page.read_text(encoding="utf-8")):
        if kind == "text":
            cells.append(nbformat.v4.new_markdown_cell(source, id=f"cell-{len(cells)}"))
        else:
            text = next(texts, "")
            shown = [nbformat.v4.new_output("stream", text=text)] if text else []
            cells.append(nbformat.v4.new_code_cell(source, outputs=shown, id=f"cell-{len(cells)}"))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def write(page: Path, outputs: Sequence[str]) -> None:
    """Store the notebook of a page beside the pages."""
    FOLDER.mkdir(exist_ok=True)
    nbformat.write(notebook(page, outputs), FOLDER / f"{page.stem}.ipynb")


def renew_text() -> None:
    """Take the text of the pages into the stored notebooks, whose code must be that of the pages; outputs stay."""
    for page in (ROOT / f"docs/{name}.md" for name in TUTORIALS):
        stored = [cell for cell in nbformat.read(FOLDER / f"{page.stem}.ipynb", as_version=4).cells if cell.cell_type == "code"]
        if [cell.source for cell in stored] != [cell.source for cell in notebook(page).cells if cell.cell_type == "code"]:
            sys.exit(f"{page.name}: its commands have changed; python tools/check_docs.py --write runs them")
        write(page, ["".join(output.text for output in cell.outputs) for cell in stored])


def _cells(page: str) -> Iterator[tuple[str, str]]:
    """Yield ("code" or "text", source) of each cell. Links to other pages become their text, because a notebook travels alone."""
    last = 0
    page = re.sub(r"\s+This page is also\s+a\s+\[notebook\]\([^)]+\)\.", "", page)
    page = re.sub(r"<!-- first-run:begin -->.*?<!-- first-run:end -->\n", "", page, flags=re.DOTALL)
    page = re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)[^)]+\)", r"\1", page)
    for found in re.finditer(r"^```\w+\n.*?^```\n", page, re.DOTALL | re.MULTILINE):
        (block,) = blocks(found[0])
        if not executed(block):
            continue
        if text := page[last : found.start()].strip():
            yield "text", text
        yield "code", _source(block)
        last = found.end()
    if text := page[last:].strip():
        yield "text", text


def _source(block: Block) -> str:
    if block.file:
        return f"%%writefile {block.file}\n{block.text.rstrip()}"
    if block.kind == "console":
        return "\n".join(f"!{line}" for line in commands(block))
    return block.text.rstrip()
