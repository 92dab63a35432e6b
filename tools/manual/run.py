"""Run the blocks of pages in one process with edgefl: each page in a process of its own that is forked from it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import runpy
import shlex
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from manual.blocks import blocks, commands, executed


def run_pages(pages: list[Path], folder: Path) -> None:
    """Run pages, each in a folder of its own. The first failure ends this program with status 1.

    The first run of a process takes seconds longer than the second, for imports and torch's first export. A small run before the processes
    are forked pays this once. It uses one thread, because threads do not survive a fork.
    """
    _run(f"edgefl simulate --rounds 1 --clients 4 --per-round 3 --conditions ideal --out {folder / 'warm'}")
    for page in pages:
        print(f"== {page.name}", flush=True)
        (folder / page.stem).mkdir(exist_ok=True)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.chdir(folder / page.stem)
                sys.path.insert(0, str(Path.cwd()))  # as for a program that lies there: it may import the files of the page
                printed = run_page(page, folder / "done")
                (folder / f"{page.stem}.json").write_text(json.dumps(printed), encoding="utf-8")
                status = 0
            finally:
                if status:
                    traceback.print_exc()
                sys.stdout.flush()
                os._exit(status)  # without the destructors of libraries, which wait for threads that only the parent has
        if os.waitpid(child, 0)[1]:
            sys.exit(f"{page.name} fails")


def run_page(page: Path, done: Path) -> list[str]:
    """Run the blocks of one page in the present folder; return what each printed. ``done`` remembers commands, also of other pages."""
    printed = []
    for block in filter(executed, blocks(page.read_text(encoding="utf-8"))):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
            printed.append(f"Writing {block.file}\n")
        elif block.kind == "python":
            Path("block.py").write_text(block.text, encoding="utf-8")
            with _timed("a Python block"), contextlib.redirect_stdout(io.StringIO()) as output:
                runpy.run_path("block.py", run_name="__main__")
            printed.append(output.getvalue())
        else:
            printed.append("".join(_once(line, done) for line in commands(block)))
    return printed


def _once(line: str, done: Path) -> str:
    """Run a command and return what it prints, unless another page has run it."""
    noted = done / hashlib.sha256(line.encode()).hexdigest()
    words = shlex.split(line)
    out = words[words.index("--out") + 1] if "--out" in words else "runs" * (words[1] == "simulate")
    if noted.is_file() and not any(Path(word.partition(":")[0]).exists() for word in words if word != out):
        before = json.loads(noted.read_text(encoding="utf-8"))
        if out and (Path(before["folder"]) / out).exists() and not Path(out).exists():
            shutil.copytree(Path(before["folder"]) / out, out)
        print(f"(as before) $ {line}", flush=True)
        return before["output"]
    with _timed(f"$ {line}"):
        output = _run(line)
    remember(line, output, done)
    return output


def remember(line: str, output: str, done: Path) -> None:
    """Note that a command has run in the present folder, and what it printed."""
    done.mkdir(exist_ok=True)
    note = json.dumps({"folder": str(Path.cwd()), "output": output})
    (done / hashlib.sha256(line.encode()).hexdigest()).write_text(note, encoding="utf-8")


def _run(line: str) -> str:
    """Run a command, in this process if it is edgefl's alone; return what it prints."""
    from click.testing import CliRunner

    from edgefl.cli.main import group

    words = shlex.split(line)
    if words[0] == "edgefl" and not {"&&", "|", ">"} & {*words}:
        result = CliRunner().invoke(group, words[1:], prog_name="edgefl")
        if result.exit_code:
            sys.exit(f"{result.output}\n{result.exception!r}")
        return result.stdout
    return subprocess.run(line, shell=True, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S602 - a line of our own pages


@contextlib.contextmanager
def _timed(what: str) -> Iterator[None]:
    """Print what runs, and afterwards the processor seconds that it took."""
    print(what, end="", flush=True)
    before = sum(os.times()[:4])
    try:
        yield
    finally:
        print(f"  # {sum(os.times()[:4]) - before:.1f} s", flush=True)
