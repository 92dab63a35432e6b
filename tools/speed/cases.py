"""The cases of ``bench.py``: whole commands with what they may take, and tools that measure figures themselves."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speed.process import TOOLS, Run, edgefl, measured, process
from speed.rows import share_of_bar, with_bars

BASELINE = "import-torch"
RESULTS = TOOLS / "results"


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


def whatif_month() -> Run:
    """Compare 24 policies over a month of a round an hour, of 40,000 clients."""
    keys = (
        "--clients 40000 --per-round 100 --partition index:60 --model mlp --availability always --rounds-per-day 24 --rounds 720"
    )
    with tempfile.TemporaryDirectory() as folder:
        swept = "--deadlines 5,10,20,30,60,120 --over-selections 1,1.1,1.3,1.5"
        return edgefl(f"whatif --profile mixed {keys} {swept} --out {folder}")


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


def bundle_of_the_main_job() -> Run:
    """Measure the stage "bundle" of the README's first run, three tiers, in the process that trained them."""
    return measured(dict, "speed/bundled.py")


def inspect_timm() -> Run:
    """Show every layer of a network of timm, which the process imports first; needs timm, and stands in for torchvision."""
    command = "inspect timm:efficientnet_b0 --input 3x224x224"
    return process(sys.executable, "-m", "speed.with_timm", *command.split())


@dataclass(frozen=True)
class Rows:
    """A tool that writes ``rows``, each with a figure and its bar; it repeats its measurements itself, so that it is run once."""

    tool: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ()

    def run(self, keep: Path, quick: bool) -> Run:
        """Run it, store what it measured in ``keep``, and return its figures that have a bar, by name, as shares of it: 1 is the most."""
        return measured(bar_shares, self.tool, *(self.quick if quick else self.options), keep=keep)


def bar_shares(found: Any) -> dict[str, float]:
    """Return by name how much of its bar each figure takes that has one."""
    return {row["case"]: share_of_bar(row) for row in with_bars(found["rows"]) if row.get("bar") is not None}


@dataclass(frozen=True)
class Case:
    """A line of the table: what it runs, and the most it may take, or the most that a figure it measures may be."""

    title: str
    run: Callable[[], Run] | Rows
    seconds_target: float | None = None
    peak_bytes_target: int | None = None
    figure_target: float | None = None
    cpu_s_target: float | None = None

    def verdict(self, seconds: float, peak_bytes: float, figures: Mapping[str, float], cpu_s: float = 0.0) -> str:
        """Say what the target is and whether it is met."""
        parts = []
        if self.cpu_s_target is not None:
            parts.append(f"< {self.cpu_s_target:g} CPU s: {_met(cpu_s < self.cpu_s_target)}")
        if self.seconds_target is not None:
            parts.append(f"< {self.seconds_target:g} s: {_met(seconds < self.seconds_target)}")
        if self.peak_bytes_target is not None:
            parts.append(f"< {self.peak_bytes_target / 1e6:,.0f} MB: {_met(peak_bytes < self.peak_bytes_target)}")
        if self.figure_target is not None and figures:
            worst = max(figures, key=lambda name: figures[name])
            passed = sum(figure <= self.figure_target for figure in figures.values())
            met = "met" if passed == len(figures) else f"**met by {passed} of {len(figures)}**"
            parts.append(f"≤ {self.figure_target:g}: {met}, at most {figures[worst]:.2f} ({worst})")
        return ", ".join(parts)


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


COMMANDS = {
    BASELINE: Case('`python -c "import torch"`', import_torch),
    "help": Case("`edgefl --help`", help_screen),
    "profile": Case("`edgefl profile` ResNet-18, 3×32×32, four FedHM tiers", profile_tiers, seconds_target=5),
    "profile-large": Case("`edgefl profile` ResNet-50, 3×224×224, batch 64", profile_large, peak_bytes_target=10**9),
    "dry-1e3": Case("`edgefl simulate --dry-run`, 1 round, 1,000 clients", dry_thousand),
    "dry-1e6": Case("`edgefl simulate --dry-run`, 1 round of 1,000 of 1,000,000 clients", dry_million),
    "dry-1e6-long": Case(
        "`edgefl simulate --dry-run`, 1,000 rounds of 1,000 of 1,000,000 clients", dry_million_long, seconds_target=120
    ),
    "whatif-month": Case(
        "`edgefl whatif`, 24 policies, 720 rounds of 100 of 40,000 clients",
        whatif_month,
        seconds_target=60,
        peak_bytes_target=10**9,
    ),
    "plan": Case("`edgefl plan --allocate spectral` ResNet-18, 100 M MACs, 200 MB", plan_ranks),
    "train-steps": Case("`tools/onnx_steps.py`: training steps ÷ torch's", train_steps, figure_target=1.2),
    "inference": Case("`tools/inference_shares.py`: share of time − share of MACs", inference, figure_target=0.1),
    "export-resnet18": Case("graphs of ResNet-18, 3×32×32, four FedHM tiers", export_resnet18, cpu_s_target=14),
    "bundle": Case("stage `bundle` of `edgefl simulate --profile phone`: its CPU s", bundle_of_the_main_job, figure_target=3),
}
WITH_TIMM = {
    "inspect-timm": Case("`edgefl inspect timm:efficientnet_b0`", inspect_timm, cpu_s_target=5),
}
"""Run only if named."""

SPEED = {
    "rounds": Case(
        "`tools/rounds.py`: rounds beside bare loops, ÷ bar",
        Rows("rounds.py", quick=("--work", "T", "--runs", "1", "--rounds", "4")),
        figure_target=1,
    ),
    "methods": Case(
        "`tools/rounds.py --methods`: seconds a MAC ÷ FedAvg's, ÷ bar",
        Rows("rounds.py", ("--methods", "--runs", "1"), ("--methods", "--work", "T", "--runs", "1", "--rounds", "4")),
        figure_target=1,
    ),
    "growth": Case("`tools/growth.py`: growth, ÷ bar", Rows("growth.py", (), ("--quick", "--runs", "1")), figure_target=1),
    "factorization": Case(
        "`tools/factorization.py`: tiers from one decomposition, ÷ bar", Rows("factorization.py"), figure_target=1
    ),
    "whole-job": Case(
        "`tools/whole_job.py`: start, end and a whole job, ÷ bar", Rows("whole_job.py", quick=("--quick",)), figure_target=1
    ),
    "server-speed": Case("`tools/server_speed.py`: bytes, sums and composition, ÷ bar", Rows("server_speed.py"), figure_target=1),
}
"""What docs/speed.md shows; each stores its figures in ``tools/results``."""
CASES = {**COMMANDS, **WITH_TIMM, **SPEED}
