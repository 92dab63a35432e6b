"""Run the README's commands as a newcomer would: a fresh virtual environment, the first command as printed, then the others.

Usage: python tools/check_readme.py
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL = "pip install -c constraints.txt ."
MAIN_JOB = "edgefl simulate --profile phone"
TEST = "pip install -c constraints.txt -e '.[test]' && pytest"


def commands(readme: str) -> list[str]:
    """Return the shell lines of the README's ``console`` blocks, without their prompts."""
    blocks = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def main() -> None:
    """Fail on the first command that fails, or on a main job that misses its figures."""
    found = commands((ROOT / "README.md").read_text(encoding="utf-8"))
    for expected in (f"{INSTALL} && {MAIN_JOB}", TEST):
        if expected not in found:
            sys.exit(f"README.md does not show: {expected}")
    others = [line for line in found if line.startswith("edgefl ") and line != MAIN_JOB]
    with tempfile.TemporaryDirectory() as folder:
        work, environment = Path(folder) / "work", Path(folder) / "venv"
        work.mkdir()
        venv.create(environment, with_pip=True)
        path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(environment)}
        subprocess.run([*shlex.split(INSTALL), "--quiet"], cwd=ROOT, env=env, check=True)
        started = time.perf_counter()
        subprocess.run(shlex.split(MAIN_JOB), cwd=work, env=env, check=True)
        print(f"main job: {time.perf_counter() - started:.1f} s on this computer")
        check_figures(work / "runs" / "0001-fedhm-digits")
        for line in others:
            print(f"$ {line}", flush=True)
            subprocess.run(line, shell=True, cwd=work, env=env, check=True, stdout=subprocess.DEVNULL)


def check_figures(run: Path) -> None:
    """Hold the main job to what the README says of it."""
    summary = json.loads((run / "summary.json").read_text())
    accuracies = {str(row["tier"]): row["accuracy"] for row in summary["tiers"]}
    print(f"global {summary['global_accuracy']:.3f}, tiers {accuracies}")
    if summary["global_accuracy"] < 0.95 or min(accuracies.values()) < 0.93:
        sys.exit("the main job misses its accuracies: 95 % for the global model, 93 % for every tier")
    if [row["tier"] for row in summary["classes"]] != [1, 0.5, 0.25]:
        sys.exit("the phone fleet's classes do not take the tiers 1, 0.5 and 0.25")


if __name__ == "__main__":
    main()
