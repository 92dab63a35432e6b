"""Thirty environments that are not as a program expects: each gives a run, or one sentence with exit status 2."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from command import edgefl

from edgefl.util import lock

DRY = (
    "simulate",
    "--model",
    "mlp",
    "--clients",
    "2",
    "--rounds",
    "1",
    "--tiers",
    "1",
    "--method",
    "fedavg",
    "--dry-run",
    "--out",
)
RUN, PLAN, KEYS = (*DRY, "run"), ("plan", "mlp", "--macs", "1M", "--method", "fedavg"), ("keys", "show")
NOWHERE = "/proc/self/fdinfo"
"""A folder in which nobody can write, not even root."""


def put(name: str, content: str | None = None) -> Callable[[], object]:
    """Return what makes a file of this content, or a folder."""
    return lambda: Path(name).mkdir() if content is None else Path(name).write_text(content)


def unwritable(name: str) -> Callable[[], None]:
    """Return what links a name to a folder in which nobody can write."""
    return lambda: Path(name).symlink_to(NOWHERE)


def few_files() -> None:
    """Let the process open 64 files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def removed() -> None:
    """Remove the working folder."""
    Path.cwd().rmdir()


# name → variables of the environment, with HERE for the working folder; what is done there; command; exit status; a part of what it says.
ENVIRONMENTS: dict[str, tuple[dict[str, str | None], Any, tuple[str, ...], int, str]] = {
    "a home that is missing": ({"HOME": "HERE/none"}, None, RUN, 0, ""),
    "a home that is a file": ({"HOME": "HERE/home"}, put("home", "x"), RUN, 0, ""),
    "a home that cannot be written": ({"HOME": NOWHERE}, None, RUN, 0, ""),
    "no home": ({"HOME": None}, None, RUN, 0, ""),
    "keys in a home that is missing": ({"HOME": "HERE/none"}, None, KEYS, 0, ""),
    "keys in a home that is a file": ({"HOME": "HERE/home"}, put("home", "x"), KEYS, 2, "home/.config/edgefl: cannot be written"),
    "keys in a home that cannot be written": ({"HOME": NOWHERE}, None, KEYS, 2, "no key to sign with: "),
    "keys below a file": ({"XDG_CONFIG_HOME": "HERE/f"}, put("f", "x"), KEYS, 2, "f/edgefl: cannot be written (Not a directory)"),
    "a relative place of keys": ({"HOME": "HERE", "XDG_CONFIG_HOME": "relative"}, None, KEYS, 0, ""),
    "a cache below a file": ({"XDG_CACHE_HOME": "HERE/f"}, put("f", "x"), RUN, 0, ""),
    "temporary files nowhere": ({"TMPDIR": "HERE/none"}, None, RUN, 0, ""),
    "temporary files below a file": ({"TMPDIR": "HERE/f"}, put("f", "x"), RUN, 0, ""),
    "temporary files in a folder that cannot be written": ({"TMPDIR": NOWHERE}, None, RUN, 0, ""),
    "a run in a folder that cannot be written": ({}, unwritable("p"), (*DRY, "p/run"), 2, "cannot be written"),
    "a run in a file": ({}, put("run", "x"), RUN, 2, "run: exists and is not an empty folder"),
    "a run below a file": ({}, put("f", "x"), (*DRY, "f/run"), 2, "cannot be written (Not a directory)"),
    "a run in a device": ({}, None, (*DRY, "/dev/null"), 2, "/dev/null: exists and is not an empty folder"),
    "a run in a loop of links": ({}, lambda: Path("run").symlink_to("run"), RUN, 2, "run"),
    "a run in a name that no file has": ({}, None, (*DRY, "r" * 300), 2, "cannot be written (File name too long)"),
    "an empty name": ({}, None, (*DRY, ""), 2, ""),
    "data that never end": ({}, None, ("inspect", "--data", "/dev/zero"), 2, "/dev/zero: cannot be read (not a regular file)"),
    "data in a pipe": ({}, lambda: os.mkfifo("own.csv"), ("inspect", "--data", "own.csv"), 2, "own.csv: "),
    "data in a folder that cannot be listed": ({}, None, ("inspect", "--data", "/proc/self/task/1"), 2, "no such file or folder"),
    "a profile in a folder": ({}, put("own.toml"), ("simulate", "--profile", "own.toml", "--dry-run"), 2, "own.toml: cannot be read"),
    "a working folder that was removed": ({}, removed, PLAN, 2, "the working folder cannot be used"),
    "a working folder that cannot be written": ({}, lambda: os.chdir("/proc"), RUN, 2, "run/.lock: cannot be written"),
    "a mask that hides files from others": ({}, lambda: os.umask(0o077), RUN, 0, ""),
    "few open files": ({}, few_files, RUN, 0, ""),
}  # fmt: skip


@pytest.fixture
def unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set back what a case changes in this process: folder, mask, limits and the place of temporary files."""
    mask, files, place = os.umask(0o022), resource.getrlimit(resource.RLIMIT_NOFILE), tempfile.tempdir
    monkeypatch.chdir(tmp_path)
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    tempfile.tempdir = None
    yield
    os.umask(mask)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    tempfile.tempdir = place


def told(done: CompletedProcess[str], status: int, message: str) -> None:
    """Assert the exit status, and that standard error has no traceback, and one sentence if the status is 2."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert message in done.stdout + done.stderr
    if status:
        assert done.stderr.startswith(("Error: ", "Usage: ")), done.stderr


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_odd_environment_gives_a_run_or_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variables, happens, command, status, message = ENVIRONMENTS[name]
    for key, value in variables.items():
        if value is None:
            monkeypatch.delenv(key)
        else:
            monkeypatch.setenv(key, value.replace("HERE", str(tmp_path)))
    if happens is not None:
        happens()
    told(edgefl(*command), status, message)


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("name", ["a b", "größe", "two\nlines", "-x", "~", "%s", "[x]", "#a?b&c"])
def test_a_folder_may_have_any_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    told(edgefl(*DRY, str(folder / name)), 0, "")
    assert (folder / name / "report.html").is_file()


@pytest.mark.usefixtures("unchanged")
def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with lock.only_writer(tmp_path / "run"):
        told(edgefl(*(part for part in RUN if part != "--dry-run")), 2, "run: ")


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", unknown)
    told(edgefl(*KEYS), 2, "HOME is not set")


@pytest.mark.parametrize(
    ("variables", "streams"),
    [
        ({"PYTHONWARNINGS": "error"}, ""),
        ({"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, ""),
        ({}, "<&- >&- 2>&-"),
    ],
    ids=["warnings are errors", "C without UTF-8", "closed streams"],
)
def test_an_odd_start_gives_a_run(variables: dict[str, str], streams: str, tmp_path: Path) -> None:
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "edgefl", *DRY, "größe"]
    done = subprocess.run(command, env=os.environ | variables, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert len([*tmp_path.glob("gr*/report.html")]) == 1


def test_a_full_standard_output_is_one_sentence(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edgefl", "devices"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    told(CompletedProcess([], done.returncode, "", done.stderr), 2, "No space left")
