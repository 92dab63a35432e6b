"""Time edgefl's commands as whole processes, and their peak memory, beside ``import torch`` on the same machine.

Usage: python tools/bench.py [--runs N] [--case NAME]... [--json FILE]

How to read the table:

- Each figure is the median of ``--runs`` runs. Runs of the cases take turns, so that a machine that slows down slows all of them.
- ``seconds`` is from the start of the process to its end; ``CPU s`` is its processor time over all threads, which other work on the
  machine disturbs less. Seconds well above CPU s mean a busy machine, or one that reads its files for the first time: run it again.
- ``× import torch`` is seconds over those of ``python -c "import torch"`` in the same turn: the figure to compare between machines.
- ``peak MB`` is the largest resident memory of the process, 1 MB = 10⁶ bytes, as the system reports it for each child.
- ``target`` says what the case is held to, and whether the median meets it. A missed target is not a failure of the tool.
- Cases that are tools themselves (``train-steps``, ``inference``) are held to the figures that they measure: the largest is shown.

To add a case, write a function that returns a ``Run`` and give it a line in ``CASES``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

TOOLS = Path(__file__).resolve().parent
BASELINE = "import-torch"


@dataclass(frozen=True)
class Run:
    """What one run took; and by their names the figures that it measured itself, where it is a tool."""

    seconds: float
    cpu_s: float
    peak_bytes: int
    figures: Mapping[str, float] = field(default_factory=dict)


def process(*command: str) -> Run:
    """Run a command in the folder of the tools; a failing one stops the benchmark with its message.

    This process must stay smaller than what it starts (no torch here): Linux counts a parent's memory at the fork to the child's peak.
    """
    with tempfile.TemporaryFile() as said:
        started = time.perf_counter()
        child = subprocess.Popen(command, cwd=TOOLS, stdout=subprocess.DEVNULL, stderr=said)
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


def import_torch() -> Run:
    """What every command that counts has to wait for."""
    return process(sys.executable, "-c", "import torch")


def help_screen() -> Run:
    """Answer without torch."""
    return edgefl("--help")


def profile_tiers() -> Run:
    """Count a reference network and four tiers of it."""
    return edgefl("profile resnet18 --input 3x32x32 --method fedhm --tiers 1,0.5,0.25,0.125")


def profile_large() -> Run:
    """Count a network and a batch whose activations would take gigabytes."""
    return edgefl("profile counters.networks:resnet50 --input 3x224x224 --batch-size 64")


def plan_ranks() -> Run:
    """Choose a rank per layer for two budgets."""
    return edgefl("plan resnet18 --input 3x32x32 --macs 100M --memory 200MB --allocate spectral")


def dry_run(clients: int, rounds: int) -> Run:
    """Simulate rounds of 1,000 clients without training, by the hour of the day."""
    keys = f"--clients {clients} --rounds {rounds} --per-round 1000 --partition index:60 --availability daily --dataset fashion-mnist"
    with tempfile.TemporaryDirectory() as folder:
        return edgefl(f"simulate --dry-run {keys} --out {folder}/run")


def dry_thousand() -> Run:
    """Ask everybody of a small population once: what a million clients are compared with."""
    return dry_run(clients=1_000, rounds=1)


def dry_million() -> Run:
    """Begin with a million clients: a round of 1,000 and the report."""
    return dry_run(clients=1_000_000, rounds=1)


def dry_million_long() -> Run:
    """1,000 rounds of 1,000 of a million clients."""
    return dry_run(clients=1_000_000, rounds=1_000)


def measured(read: Callable[[Any], Mapping[str, float]], tool: str, *options: str) -> Run:
    """Run a tool that writes what it measured as JSON, and take the figures that are in there."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        run = process(sys.executable, tool, *options, "--json", str(out))
        return replace(run, figures=read(json.loads(out.read_text(encoding="utf-8"))))


def train_steps() -> Run:
    """Measure training steps in onnxruntime: each as a multiple of torch's, on one thread and on two."""

    def read(found: Any) -> dict[str, float]:
        return {f"{row['network']}, {t['threads']} threads": t["ratio"] for row in found["rows"] for t in row["times"]}

    return measured(read, "onnx_steps.py", "--no-export", "--seconds", "3")


def inference() -> Run:
    """Measure inference in the form ``auto``: its share of the full network's time less the least share of MACs of its tier."""

    def read(rows: Any) -> dict[str, float]:
        least = {row["tier"]: min(other["mac_share"] for other in rows if other["tier"] == row["tier"]) for row in rows}
        return {f"tier {row['tier']:g}": row["time_share"] - least[row["tier"]] for row in rows if row["form"] == "auto"}

    return measured(read, "inference_shares.py")


def export_resnet18() -> Run:
    """Export four tiers, each with its graphs for inference, training, and inference of what was trained."""
    return process(sys.executable, "onnx_steps.py", "--export")


@dataclass(frozen=True)
class Case:
    """A line of the table: what it runs, and the most it may take, or the most that a figure it measures may be."""

    title: str
    run: Callable[[], Run]
    seconds_target: float | None = None
    peak_bytes_target: int | None = None
    figure_target: float | None = None

    def verdict(self, seconds: float, peak_bytes: float, figures: Mapping[str, float]) -> str:
        """Say what the target is and whether it is met."""
        parts = []
        if self.seconds_target is not None:
            parts.append(f"< {self.seconds_target:g} s: {_met(seconds < self.seconds_target)}")
        if self.peak_bytes_target is not None:
            parts.append(f"< {self.peak_bytes_target / 1e6:,.0f} MB: {_met(peak_bytes < self.peak_bytes_target)}")
        if self.figure_target is not None:
            worst = max(figures, key=lambda name: figures[name])
            passed = sum(figure <= self.figure_target for figure in figures.values())
            met = "met" if passed == len(figures) else f"**met by {passed} of {len(figures)}**"
            parts.append(f"≤ {self.figure_target:g}: {met}, at most {figures[worst]:.2f} ({worst})")
        return ", ".join(parts)


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


CASES = {
    BASELINE: Case('`python -c "import torch"`', import_torch),
    "help": Case("`edgefl --help`", help_screen),
    "profile": Case("`edgefl profile` ResNet-18, 3×32×32, four FedHM tiers", profile_tiers, seconds_target=5),
    "profile-large": Case("`edgefl profile` ResNet-50, 3×224×224, batch 64", profile_large, peak_bytes_target=10**9),
    "dry-1e3": Case("`edgefl simulate --dry-run`, 1 round, 1,000 clients", dry_thousand),
    "dry-1e6": Case("`edgefl simulate --dry-run`, 1 round of 1,000 of 1,000,000 clients", dry_million),
    "dry-1e6-long": Case(
        "`edgefl simulate --dry-run`, 1,000 rounds of 1,000 of 1,000,000 clients", dry_million_long, seconds_target=120
    ),
    "plan": Case("`edgefl plan --allocate spectral` ResNet-18, 100 M MACs, 200 MB", plan_ranks),
    "train-steps": Case("`tools/onnx_steps.py`: training steps ÷ torch's", train_steps, figure_target=1.2),
    "inference": Case("`tools/inference_shares.py`: share of time − share of MACs", inference, figure_target=0.1),
    "export-resnet18": Case("graphs of ResNet-18, 3×32×32, four FedHM tiers", export_resnet18, seconds_target=20),
}


def measure(names: Sequence[str], runs: int) -> dict[str, list[Run]]:
    """Run the cases in turns, the baseline first."""
    found: dict[str, list[Run]] = {name: [] for name in dict.fromkeys((BASELINE, *names))}
    for number in range(runs):
        for name, done in found.items():
            print(f"run {number + 1} of {runs}: {name}", file=sys.stderr, flush=True)
            done.append(CASES[name].run())
    return found


def markdown(found: Mapping[str, Sequence[Run]]) -> str:
    """Return the table of medians.

    >>> print(markdown({BASELINE: [Run(2, 1, 10**8)], "profile": [Run(4, 3, 2 * 10**8)]}).splitlines()[-1])
    | `edgefl profile` ResNet-18, 3×32×32, four FedHM tiers | 4.00 | 3.00 | 2.00 | 200 | < 5 s: met |
    """
    lines = ["| case | seconds | CPU s | × import torch | peak MB | target |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    for name, done in found.items():
        seconds, peak_bytes = median(run.seconds for run in done), median(run.peak_bytes for run in done)
        ratio = median(run.seconds / base.seconds for run, base in zip(done, found[BASELINE], strict=True))
        figures = f"{seconds:.2f} | {median(run.cpu_s for run in done):.2f} | {ratio:.2f} | {peak_bytes / 1e6:,.0f}"
        own = {key: median(run.figures[key] for run in done) for key in done[0].figures}
        lines.append(f"| {CASES[name].title} | {figures} | {CASES[name].verdict(seconds, peak_bytes, own)} |")
    return "\n".join(lines)


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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each case [3]")
    parser.add_argument("--case", action="append", choices=CASES, help="this one alone; may repeat [all]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there, with commit and machine")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs: expected 1 or more, got {options.runs}")
    found = measure(options.case or list(CASES), options.runs)
    here = machine()
    print(f"{here['cores']} cores, {here['system']}, Python {here['python']}, torch {here['torch']}; median of {options.runs}.\n")
    print(markdown(found))
    if options.json:
        runs = {name: [asdict(run) for run in done] for name, done in found.items()}
        text = json.dumps({"commit": commit(), "machine": here, "runs": runs}, indent=2)
        options.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
