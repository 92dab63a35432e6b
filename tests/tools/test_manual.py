"""The documentation as a program: blocks of pages, and the notebooks of the tutorials."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest
from requirements import require
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

require("nbclient")
import nbclient  # noqa: E402
import nbformat  # noqa: E402

TUTORIALS = ("first-run", "network-cost", "device-and-back", "your-own")
PAGE = """# A page

See [the glossary](glossary.md). This page is also a [notebook](notebooks/page.ipynb).

```python
# half.py
HALF = 0.5
```

```console
$ edgefl serve bundle
```

```python
from half import HALF

print(HALF + HALF)
```

```console
$ edgefl --version
```
"""


@pytest.fixture
def notebook():
    return tool_of("manual.notebook")


def test_the_examples_of_the_tool():
    assert doctest.testmod(tool_of("manual.blocks")) == (0, 2)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_stored_notebook_is_that_of_its_page_and_was_run(notebook, name):
    page = TOOLS.parent / f"docs/{name}.md"
    stored = nbformat.read(TOOLS.parent / f"docs/notebooks/{name}.ipynb", as_version=4)
    nbformat.validate(stored)
    assert [cell.source for cell in stored.cells] == [cell.source for cell in notebook.notebook(page).cells], (
        "python tools/check_docs.py --text renews it, or --write if its commands have changed"
    )
    assert f"(notebooks/{name}.ipynb)" in page.read_text(encoding="utf-8")
    assert any(cell.get("outputs") for cell in stored.cells)


def test_a_notebook_runs_as_its_page_does(notebook, tmp_path: Path):
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    book = notebook.notebook(tmp_path / "page.md")
    assert book.cells[0].source == "# A page\n\nSee the glossary."
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = ["".join(output.text for output in cell.outputs) for cell in book.cells if cell.cell_type == "code"]
    assert shown[0] == "Writing half.py\n"
    assert shown[1] == "1.0\n"
    assert shown[2].startswith("edgefl")
