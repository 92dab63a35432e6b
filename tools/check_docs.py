"""Run every command and Python block of the README and the documentation as a newcomer would, in a fresh virtual environment.

Usage:
    python tools/check_docs.py               everything, in a new environment
    python tools/check_docs.py --write       the same, and write the output of the first run into the pages that show it
    python tools/check_docs.py --page PAGE   the blocks of one page, with the installed edgefl, in the present folder

Of a ``console`` block, the lines after ``$`` are commands. A ``python`` block is run. A block that begins with a comment of a file's name,
such as ``# net.py``, becomes this file. Blocks of other kinds (``sh``, ``py``, ``text``) are for the reader. Every page has a folder of
its own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/*.md"))]
INSTALL = "pip install -c constraints.txt ."
MAIN_JOB = "edgefl simulate --profile phone"
OURS = ("edgefl ", "python ", "mkdir ")
ENDLESS = ("edgefl serve",)
"""Commands that end with Ctrl-C only."""


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and the file that it becomes ("": none)."""

    kind: str
    text: str
    file: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page's Markdown."""
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        first, _, rest = text.partition("\n")
        named = re.fullmatch(r"# ([\w-]+\.(?:py|toml|csv))", first)
        yield Block(kind, rest if named and kind == "csv" else text, named[1] if named else "")


def commands(block: Block) -> list[str]:
    """Return the commands of a ``console`` block, without those that install, test or never end."""
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    return [line for line in lines if line.startswith(OURS) and not line.startswith(ENDLESS)]


def run_page(page: Path) -> None:
    """Run the blocks of one page in the present folder."""
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            Path("block.py").write_text(block.text, encoding="utf-8")
            _quiet(f"{page.name}: a Python block", lambda: runpy.run_path("block.py", run_name="__main__"))
        elif block.kind == "console":
            for line in commands(block):
                _run(page, line)


def _run(page: Path, line: str) -> None:
    """Run a command, in this process if it is edgefl's alone: importing torch for each would take most of the time."""
    from click.testing import CliRunner

    from edgefl.cli.main import group

    words = shlex.split(line)
    if words[0] == "edgefl" and not {"&&", "|", ">"} & {*words}:
        if line == MAIN_JOB and Path("runs/0001-fedhm-digits").is_dir():
            return  # run before all pages
        print(f"$ {line}", flush=True)
        result = CliRunner().invoke(group, words[1:], prog_name="edgefl")
        if result.exit_code:
            sys.exit(f"{page.name}: $ {line}\n{result.output}\n{result.exception!r}")
    else:
        _quiet(f"{page.name}: $ {line}", lambda: _by_shell(line))


def _by_shell(line: str) -> None:
    subprocess.run(line, shell=True, check=True, stdout=subprocess.DEVNULL)  # noqa: S602 - a line of our own pages


def _quiet(what: str, run: object) -> None:
    print(what, flush=True)
    with contextlib.redirect_stdout(io.StringIO()):
        run()  # type: ignore[operator]


def in_terminal(command: list[str], folder: Path, env: dict[str, str]) -> str:
    """Run a command with a terminal of 90 columns for its output; return what it prints there. A failure ends this program."""
    import pty

    parent, child = pty.openpty()
    env = {**env, "COLUMNS": "90", "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(command, cwd=folder, env=env, stdout=child, stderr=subprocess.DEVNULL) as running:
        os.close(child)
        parts: list[bytes] = []
        with contextlib.suppress(OSError):  # how a terminal ends
            while part := os.read(parent, 65536):
                parts.append(part)
    os.close(parent)
    if running.returncode:
        sys.exit(f"{shlex.join(command)}: status {running.returncode}")
    plain = re.sub(r"\x1b\[[\d;]*m", "", b"".join(parts).decode())
    lines = plain.replace("\r\n", "\n").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def first_run(text: str, write: bool) -> None:
    """Hold the pages to the output of the first run, or write it into them.

    Accuracies may differ in the last digit between kinds of processors, and so may the seconds of this computer. Everything else must not.
    """
    marked = re.compile(r"(<!-- first-run:begin -->\n)(.*?)(<!-- first-run:end -->)", re.DOTALL)
    for page in (path for path in PAGES if "first-run:begin" in (ROOT / path).read_text(encoding="utf-8")):
        shown = (ROOT / page).read_text(encoding="utf-8")
        if write:
            (ROOT / page).write_text(marked.sub(lambda m: f"{m[1]}```text\n{text}\n```\n{m[3]}", shown), encoding="utf-8")
        elif _comparable(marked.search(shown)[2]) != _comparable(f"```text\n{text}\n```\n"):  # type: ignore[index]
            sys.exit(f"{page}: the first run prints something else; python tools/check_docs.py --write replaces it:\n{text}")


def _comparable(text: str) -> str:
    return re.sub(r"\d+\.\d %(?= +[\d.]+ k)|model: \d+\.\d %|[\d. a-z]+ on this computer", "", text)


def check_figures(run: Path) -> None:
    """Hold the first run to the accuracies that a user may expect."""
    summary = json.loads((run / "summary.json").read_text())
    accuracies = {str(row["tier"]): row["accuracy"] for row in summary["tiers"]}
    print(f"global {summary['global_accuracy']:.3f}, tiers {accuracies}")
    if summary["global_accuracy"] < 0.95 or min(accuracies.values()) < 0.93:
        sys.exit("the main job misses its accuracies: 95 % for the global model, 93 % for every tier")
    if [row["tier"] for row in summary["classes"]] != [1, 0.5, 0.25]:
        sys.exit("the phone fleet's classes do not take the tiers 1, 0.5 and 0.25")


def check_all(write: bool) -> None:
    """Run every page; the first failure ends this program."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if f"{INSTALL} && {MAIN_JOB}" not in readme:
        sys.exit(f"README.md does not show: {INSTALL} && {MAIN_JOB}")
    with tempfile.TemporaryDirectory() as folder:
        environment, work = Path(folder) / "venv", Path(folder) / "first-run"
        venv.create(environment, with_pip=True)
        env = {**os.environ, "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(environment)}
        env.pop("PYTHONPATH", None)
        subprocess.run([*shlex.split(INSTALL), "--quiet"], cwd=ROOT, env=env, check=True)
        work.mkdir()
        started = time.perf_counter()
        text = in_terminal(shlex.split(MAIN_JOB), work, env)
        print(f"main job: {time.perf_counter() - started:.1f} s on this computer")
        check_figures(work / "runs" / "0001-fedhm-digits")
        first_run(text, write)
        for page in PAGES:
            if any(block.kind in {"console", "python"} for block in blocks((ROOT / page).read_text(encoding="utf-8"))):
                print(f"== {page}", flush=True)
                own = Path(folder) / Path(page).stem
                own.mkdir(exist_ok=True)
                subprocess.run([environment / "bin/python", __file__, "--page", str(ROOT / page)], cwd=own, env=env, check=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the output of the first run into the pages")
    parser.add_argument("--page", type=Path, help="run the blocks of one page")
    given = parser.parse_args()
    if given.page is not None:
        run_page(given.page.resolve())
    else:
        check_all(given.write)


if __name__ == "__main__":
    main()
