"""A whole process, timed from its start to its end; and what figures depend on: the machine, the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speed import stored

TOOLS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """What one run took; and by their names the figures that it measured itself, where it is a tool."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    figures: Mapping[str, float] = field(default_factory=dict)


def process(*command: str, folder: Path = TOOLS, environment: Mapping[str, str] | None = None) -> Run:
    """Run a command in ``folder``, with this process's environment or another; a failing one stops the benchmark with its message.

    This process must stay smaller than what it starts (no torch here): Linux counts a parent's memory at the fork to the child's peak.
    """
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}: status {child.returncode}\n{said.read().decode(errors='replace')}")
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * unit_bytes)


def edgefl(command: str) -> Run:
    """Run the command line of edgefl in this interpreter's environment."""
    return process(sys.executable, "-m", "edgefl.cli.main", *command.split())


def measured(read: Callable[[Any], Mapping[str, float]], tool: str, *options: str, keep: Path | None = None) -> Run:
    """Run a tool that writes what it measured as JSON, and return the figures in it; ``keep`` is the file that stores them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        run = process(sys.executable, tool, *options, "--json", str(out))
        found = json.loads(out.read_text(encoding="utf-8"))
    if keep is not None:
        stored.write(keep, found)
    return replace(run, figures=read(found))


def machine() -> dict[str, str | int]:
    """Return what the figures depend on."""
    return {
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
    }


def commit() -> str:
    """Return the commit of this checkout, with a mark for changes beside it; nothing outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False).stdout.strip()
