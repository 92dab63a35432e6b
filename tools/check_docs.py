"""Build the site, and run every command and Python block of the README and the documentation as a newcomer would.

Usage:
    python tools/check_docs.py            everything; the environment of the blocks has links to the packages of the present one
    python tools/check_docs.py --write    run the tutorials only; write the output of the first run into the pages that show it, and the
                                          notebooks of the tutorials
    python tools/check_docs.py --text     run nothing; write changed text of the tutorials into their notebooks

Of a ``console`` block, the lines after ``$`` are commands. A ``python`` block is run. A block that begins with a comment of a file's name,
such as ``# net.py``, becomes this file, and so does a block ``csv trace.csv``. Blocks of other kinds (``sh``, ``py``, ``text``) are for the
reader. Every page has a folder of its own. A command that two pages show runs once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from manual.blocks import PAGES, ROOT, runs

MAIN_JOB = "edgefl simulate --profile phone --tiers 1,0.25,0.0625 --deadline-s 0.9 --method-option aggregation=residual"


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
    text = " ".join(text.split())  # where a line wraps depends on the length of the seconds
    return re.sub(r"\d+\.\d %(?= [\d.]+ k)|model: \d+\.\d %|[\d. a-z]+ on this computer", "", text)


def check_figures(run: Path) -> None:
    """Hold the first run to the accuracies that a user may expect."""
    summary = json.loads((run / "summary.json").read_text())
    accuracies = {str(row["tier"]): row["accuracy"] for row in summary["tiers"]}
    print(f"global {summary['global_accuracy']:.3f}, tiers {accuracies}")
    if summary["global_accuracy"] < 0.95 or min(accuracies.values()) < 0.93:
        sys.exit("the main job misses its accuracies: 95 % for the global model, 93 % for every tier")
    if accuracies["1"] < accuracies["0.0625"] + 0.01:
        sys.exit("the full tier of the main job is not a point more accurate than the smallest")
    if [row["tier"] for row in summary["classes"]] != [1, 0.25, 0.0625]:
        sys.exit("the phone fleet's classes do not take the tiers 1, 0.25 and 0.0625")


def build_site(folder: Path) -> None:
    """Build the site. A warning ends this program."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(ROOT / "docs"), str(folder)]
    if subprocess.run(command, check=False).returncode:
        sys.exit("the site has warnings")


def check_all(write: bool) -> None:
    """Build the site and run every page; the first failure ends this program."""
    from manual import environment, notebook

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    if f"{environment.INSTALL} && {MAIN_JOB}" not in readme:
        sys.exit(f"README.md does not show: {environment.INSTALL} && {MAIN_JOB}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not write:
            build_site(folder / "site")
        env = environment.create(folder / "venv")
        work = folder / "first-run"
        work.mkdir()
        text = in_terminal(shlex.split(MAIN_JOB), work, env)
        check_figures(work / "runs" / "0001-fedhm-digits")
        first_run(text, write)
        (folder / "main-job.txt").write_text(f"{text}\n", encoding="utf-8")
        env |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        tutorials = [ROOT / f"docs/{name}.md" for name in notebook.TUTORIALS]
        pages = tutorials if write else [ROOT / page for page in PAGES]
        command: list[Path | str] = [folder / "venv/bin/python", __file__, "--folder", folder, "--pages", *filter(runs, pages)]
        subprocess.run(command, env=env, check=True)
        for page in tutorials if write else ():
            notebook.write(page, json.loads((folder / f"{page.stem}.json").read_text(encoding="utf-8")))
    print(f"all blocks run; {sum(os.times()[:4]):.0f} processor seconds")


def check_pages(pages: list[Path], folder: Path) -> None:
    """Run the blocks of pages with the edgefl of this process, after the main job."""
    from manual.run import remember, run_pages

    os.chdir(folder / "first-run")
    remember(MAIN_JOB, (folder / "main-job.txt").read_text(encoding="utf-8"), folder / "done")
    run_pages(pages, folder)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the output of the first run and the notebooks")
    parser.add_argument("--text", action="store_true", help="write changed text of the tutorials into their notebooks")
    parser.add_argument("--pages", type=Path, nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.pages:
        check_pages(given.pages, given.folder)
    elif given.text:
        from manual import notebook

        notebook.renew_text()
    else:
        check_all(given.write)


if __name__ == "__main__":
    main()
