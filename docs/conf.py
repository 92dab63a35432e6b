"""The documentation site: Sphinx reads the Markdown of this folder. Commands, the Python pages and the tables of parts come from the code.

Build it with ``sphinx-build -W -b html docs FOLDER``. A link to a file outside of this folder is a link to the page of the site that shows
the file, if there is one, else the file's name.
"""

import os
import re
import sys
from pathlib import Path

import edgefl

sys.path.insert(0, str(Path(__file__).parent))
import parts

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {
    "profiles/README.md": "profiles",
    "export/README.md": "bundle-format",
    "edgefl/onnxgrad/README.md": "onnxgrad",
    "edgefl/onnxgrad": "onnxgrad",
    "SECURITY.md": "security",
    "CONTRIBUTING.md": "contributing",
    "CHANGELOG.md": "changelog",
}
"""File of the checkout → the page of the site that shows it."""

project, author, release = "edgefl", "the edgefl authors", edgefl.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click", "sphinx_copybutton"]
exclude_patterns = ["_build", "cluster"]
html_theme, html_title = "furo", f"edgefl {release}"
html_static_path, html_css_files = ["_static"], ["site.css"]
html_show_sphinx = False
smartquotes = False  # it makes a dash of the two hyphens of an option

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # CSV has no lexer
copybutton_prompt_text, copybutton_prompt_is_regexp = r"\$ |>>> |\.\.\. ", True

autodoc_typehints_format, autodoc_member_order = "short", "bysource"
python_maximum_signature_line_length = 100
autodoc_default_options = {"exclude-members": "model_config"}


def _link(found: re.Match[str], folder: Path) -> str:
    """Return a Markdown link of a page in ``folder`` as a link of the site."""
    text, name, anchor = found["text"], found["name"], found["anchor"] or ""
    target = os.path.relpath((folder / name).resolve(), ROOT)
    if target in SHOWN:
        return f"[{text}]({SHOWN[target]}.md{anchor})"
    if target.startswith("docs/"):
        return f"[{text}]({target.removeprefix('docs/')}{anchor})"
    return text


def _read(app: object, page: str, source: list[str]) -> None:
    """Replace the text of a page that shows a file by that file, and links to files by links to pages."""
    file = next((ROOT / name for name, shown in SHOWN.items() if shown == page and name.endswith(".md")), None)
    folder = ROOT / "docs" if file is None else file.parent
    text = source[0] if file is None else file.read_text(encoding="utf-8")
    pattern = r"\[(?P<text>[^\]]*)\]\((?P<name>[\w./-]+)(?P<anchor>#[\w-]*)?\)"
    source[0] = re.sub(pattern, lambda found: found[0] if found[0].startswith("[](") else _link(found, folder), text)


def _generate(app: object) -> None:
    """Write the pages that list the parts of the package."""
    for name, text in parts.pages().items():
        (ROOT / "docs" / f"{name}.md").write_text(text, encoding="utf-8")


def setup(app: object) -> None:
    """Register with Sphinx what changes the pages."""
    app.connect("builder-inited", _generate)  # type: ignore[attr-defined]
    app.connect("source-read", _read)  # type: ignore[attr-defined]
