"""The scale at the door: sizes of rooms, their budgets, and what a change adds."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest
from tool_modules import TOOLS, on_the_path, tool_of  # noqa: F401 - a fixture is used by its name


@pytest.fixture
def tool():
    return tool_of("sizes")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a repository of git, as it is in its only commit."""
    for path, lines in {
        "rng.py": 3,
        "run/run.py": 10,
        "run/deep/loop.py": 5,
        "contrib/ray/nodes.py": 7,
        "run/page.html": 90,
    }.items():
        file = tmp_path / "edgefl" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n" * lines)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "Begin")):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    return tmp_path


def test_the_examples_of_the_tool(tool):
    assert doctest.testmod(tool) == (0, 3)


def test_a_room_is_a_folder_and_contrib_is_counted_apart(tool, package):
    assert tool.present(package) == {"contrib/ray": (7, 1), "edgefl": (3, 1), "run": (15, 2)}


def test_what_a_change_adds_includes_new_files_and_moved_ones(tool, package):
    (package / "edgefl/cli").mkdir()
    (package / "edgefl/cli/new.py").write_text("x = 1\n" * 4)
    (package / "edgefl/run/deep/loop.py").rename(package / "edgefl/cli/loop.py")
    rows = [line.split() for line in tool.table(tool.present(package), {}, tool.at("HEAD", package)).splitlines()]
    added = {row[0]: row[-2:] for row in rows}
    assert added["cli"] == ["+9", "+2"]
    assert added["run"] == ["-5", "-1"]
    assert added["contrib/ray"] == ["+0", "+0"]
    assert rows[-1][1:] == ["package", "29", "5", "+4", "+1"]


def test_a_room_that_passes_its_budget_is_named_with_what_it_has(tool):
    sizes = {"run": tool.Size(1_205, 3), "cli": tool.Size(10, 1)}
    assert tool.problems(sizes, {"run": tool.Size(1_205, 3), "cli": tool.Size(10, 1)}) == []
    assert tool.problems(sizes, {"run": tool.Size(1_200, 2), "cli": tool.Size(10, 1)}) == [
        "run: 1,205 lines, at most 1,200 and 3 files, at most 2; make it smaller, or raise its budget on purpose"
    ]


def test_a_room_without_a_budget_and_a_budget_without_a_room_are_named(tool):
    assert tool.problems({"run": tool.Size(5, 1)}, {"gone": tool.Size(5, 1)}) == [
        "gone: no such room; take its budget out of tools/sizes.toml",
        "run: a new room; give it a budget in tools/sizes.toml",
    ]


def test_written_budgets_are_just_kept(tool):
    sizes = {"run": tool.Size(1_201, 3), "contrib/ray": tool.Size(50, 1)}
    budgets = tool.budgets_in(tool.as_toml(sizes))
    assert budgets == {"run": (1_250, 3), "contrib/ray": (50, 1)}
    assert tool.problems(sizes, budgets) == []


def test_an_unknown_commit_is_refused(tool, package):
    with pytest.raises(SystemExit, match=r"--since: git has no commit or branch 'nowhere' with a folder edgefl"):
        tool.at("nowhere", package)


def test_a_room_over_its_budget_ends_the_tool_with_status_1(tool, monkeypatch, tmp_path, capsys):
    (tmp_path / "sizes.toml").write_text('"run" = { lines = 1, files = 1 }\n')
    monkeypatch.setattr(tool, "BUDGETS", tmp_path / "sizes.toml")
    monkeypatch.setattr(sys, "argv", ["sizes.py"])
    with pytest.raises(SystemExit, match=r"run: [\d,]+ lines, at most 1 and \d+ files, at most 1; make it smaller"):
        tool.main()
    assert "the package" in capsys.readouterr().out


def test_every_gate_calls_the_tool():
    assert "tools/sizes.py" in (TOOLS / "check").read_text()
