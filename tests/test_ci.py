"""Continuous integration does what the README says, and nothing before that. Programs are stand-ins that log how they are called."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
JOB = "edgefl simulate --profile phone --tiers 1,0.25,0.0625 --deadline-s 0.9 --method-option aggregation=residual"
COMMANDS = (
    f"pip install -c constraints.txt . && {JOB}",
    "pip install -c constraints.txt -e '.[test]' && pytest",
)
SHORT = [
    "python -m ruff check .", "python -m ruff format --check .", "python tools/sizes.py", "python -m mypy",
    "python tools/fuzz_data.py --seconds 60",
]  # fmt: skip
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
echo "$HOME ${EDGEFL_CHROMIUM-none} ${XDG_CACHE_HOME-none} ${CPLUS_INCLUDE_PATH-none}" >"$LOG.variables"
[ "$(basename "$0")" != "$FAILS" ]
"""
PYTHON = """#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
[ "$2" = venv ] || exit 0
mkdir -p "$3/bin"
for name in python pip edgefl pytest; do cp "$STANDINS/program" "$3/bin/$name"; done
echo "PATH=$3/bin:\\$PATH" >"$3/bin/activate"
"""


@pytest.fixture
def ci(tmp_path):
    """Run a copy of a job with stand-ins, and return its status and the lines of the log."""
    folder, programs, log = tmp_path / "clone", tmp_path / "programs", tmp_path / "log"
    for name in (".ci/run", ".ci/whole", ".ci/fresh", "README.md", "tools/check"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    programs.mkdir()
    for name, text in (("python3", PYTHON), ("program", PROGRAM)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(fails: str = "", readme: str = "", job: str = "run") -> tuple[int, list[str], str]:
        if readme:
            (folder / "README.md").write_text(readme)
        env = {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "STANDINS": str(programs), "LOG": str(log), "FAILS": fails,
            "HOME": "/home/own", "EDGEFL_CHROMIUM": "/opt/mine", "XDG_CACHE_HOME": "/home/own/cache", "CPLUS_INCLUDE_PATH": "/opt/include",
        }  # fmt: skip
        done = subprocess.run(["bash", str(folder / ".ci" / job)], env=env, capture_output=True, text=True, check=False)
        return done.returncode, log.read_text().splitlines(), done.stdout

    return run


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_the_commands_of_the_readme_come_first_and_as_they_are_written(ci, tmp_path):
    status, lines, said = ci()
    assert status == 0, said
    stages = re.findall(r"^== \d+ min \d\d s: (.+)$", said, re.MULTILINE)
    assert stages == [*COMMANDS, "gates beside the tests", "end"]
    assert lines[0].startswith("python3 -m venv ")
    assert lines[1:6] == [
        "pip install -c constraints.txt .", JOB,
        "pip install -c constraints.txt -e .[test]", "pytest ",
        "pip install -q -c constraints.txt -e .[dev]",
    ]  # fmt: skip
    *in_turn, beside = SHORT
    assert [line for line in lines[6:] if line != beside] == in_turn
    assert lines[6:].count(beside) == 1
    home, *variables = (tmp_path / "log.variables").read_text().split()
    assert home.startswith(("/tmp", os.environ.get("TMPDIR", "/tmp")))
    assert variables == ["none"] * 3


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_the_second_job_runs_all_cases_with_all_that_they_need(ci):
    status, lines, said = ci(job="whole")
    assert status == 0, said
    assert lines[1:3] == ["pip install -q -c constraints.txt -e .[dev]", "python tests/requirements.py --install"]
    others = ["python -m pytest --cases all --no-fold-skipped", "python tools/check_docs.py"]
    assert sorted(lines[3:]) == sorted([*SHORT, *others])
    assert ci("python", job="whole")[0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
@pytest.mark.parametrize("fails", ["pip", "edgefl", "pytest"])
def test_nothing_else_happens_if_a_command_of_the_readme_fails(ci, fails):
    status, lines, _ = ci(fails)
    assert status != 0
    assert lines[-1].split()[0] == fails
    assert not any(line.startswith("python ") for line in lines)


@pytest.mark.skipif(sys.platform == "win32", reason="a script of bash")
def test_a_readme_without_the_two_commands_fails(ci):
    status, lines, said = ci(readme="# edgefl\n\n$ pip install edgefl\n")
    assert (status, len(lines)) == (1, 1)
    assert "expected two commands that begin with pip install, found 1" in said
