"""The table of extras on the installation page."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError

import pytest
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name


def test_every_extra_of_the_package_has_a_row_with_its_size():
    project = tomllib.loads((TOOLS.parent / "pyproject.toml").read_text())["project"]
    page = (TOOLS.parent / "docs/install.md").read_text()
    assert set(re.findall(r"^\| `([\w-]+)` \| .+ \| [\d,]+ MB \|$", page, re.MULTILINE)) == set(project["optional-dependencies"])


def test_an_extra_that_is_not_installed_keeps_its_row(monkeypatch):
    tool = tool_of("extras")

    def absent(requirement, found):
        raise PackageNotFoundError("litert-torch")

    monkeypatch.setattr(tool, "needed", absent)
    purpose = tool.PURPOSE["litert"]
    assert (
        tool.row("litert", {}, "| `ray` | x | 1 MB |\n| `litert` | old words | 965 MB |\n")
        == f"| `litert` | {purpose} | 965 MB |"
    )
    with pytest.raises(
        ValueError, match=r"litert-torch is not installed, and install.md has no row of litert: install the extra"
    ):
        tool.row("litert", {}, "| `ray` | x | 1 MB |\n")
