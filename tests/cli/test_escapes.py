"""What comes from a file never reaches the terminal as a command to it."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

from edgefl.util.files import shared
from tests.command import told

PACKAGE = Path(__file__).parents[2] / "edgefl"
COMMANDS = (*PACKAGE.glob("cli/*.py"), *PACKAGE.glob("contrib/*/command.py"))
TITLE = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\r\x9b1m\u200b"
"""A title for the window, an erased screen, a text from right to left, an overwritten line, an escape of one byte, an unseen space."""
SMALL = ("--rounds=1", "--clients=2", "--local-epochs=1", "--no-bundle", "--method=fedavg", "--tiers=1", "--conditions=ideal")


def clean(*texts: str) -> bool:
    """Whether a terminal shows all of the texts as they are."""
    return all(c.isprintable() or c in "\n\t" for text in texts for c in text)


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_commands_print_by_the_functions_that_escape(path: Path) -> None:
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, ast.Call)]
    ways = {"click.echo", "click.secho", "print", "sys.stdout.write", "sys.stderr.write"} & {*calls}
    assert not ways or path.stem in ("console", "main")


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """Return the file of a device whose texts mean harm."""
    path = tmp_path / "board.toml"
    shutil.copyfile(shared("profiles") / "devices" / "raspberry-pi-4.toml", path)
    lines = path.read_text(encoding="utf-8").splitlines()
    odd = json.dumps(TITLE)
    lines = [f"title = {odd}" if line.startswith("title") else line for line in lines]
    lines = [f"reference_hardware = {odd}" if line.startswith("reference_hardware") else line for line in lines]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_titles_of_a_device_are_escaped(device: Path, tmp_path: Path) -> None:
    for command in (("devices", device), ("profile", "mlp", "--device", device), ("plan", "mlp", "--device", device)):
        status, output, errors = told(*command)
        assert status == 0, errors
        assert clean(output, errors)
    status, output, errors = told("simulate", "--profile", device, "--model=mlp", *SMALL, "--out", tmp_path / "run")
    assert status == 0, errors
    assert clean(output, errors)
    assert told("devices", device)[1].count("\\x1b]0;owned") >= 1


def test_labels_of_a_table_are_escaped(tmp_path: Path) -> None:
    rows = [f'{number},{number % 3},"{TITLE}{number % 2}"' for number in range(40)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,label", *rows]), encoding="utf-8", newline="")
    for command in (
        ("inspect", "--data", tmp_path / "own.csv", "--clients=2"),
        ("inspect", "--data", tmp_path / "own.csv", "--label", TITLE),
    ):
        _, output, errors = told(*command)
        assert clean(output, errors)
        assert "\\x1b" in output + errors


def test_a_folder_of_an_odd_name_is_escaped(tmp_path: Path) -> None:
    status, output, errors = told("report", tmp_path / "a\x1b[2J")
    assert (status, clean(output, errors)) == (2, True)
    _, output, errors = told("simulate", "--no-such-flag\x1b[2J")
    assert clean(output, errors)
