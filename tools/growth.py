"""How the time and the memory of a round grow: with its clients, with the population, with the network, with the number of tiers.

Usage: python tools/growth.py [--quick] [--axis NAME]... [--runs N] [--json FILE]

Every point is a separate process that runs a few rounds of ``edgefl.simulate``; points take turns. The engine is ``inline``, because by
default only long points get workers. Clients of ``clients`` and ``population`` train ``cnn-tiny`` on 60 samples; those of ``parameters``
take one step of two samples, so that what the server does shows beside it; those of ``tiers`` train FedHM at ratios so near to each
other (0.9, 0.88, 0.86, …) that only their number differs.

What is held to a bar: seconds per client, and the server's seconds per parameter, at the largest point over those at the one before it
that is about ten times smaller (linear: 1); seconds and memory with a million clients over those with a thousand (flat: 1); what an
extra tier adds to the server's seconds. The server's seconds are those that a round's record has of it, without waiting for clients.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from speed.child import run_child
from speed.process import commit, machine
from speed.work import SEED, WARM_UP, WORKS, Work, material

ROUNDS = {"full": WARM_UP + 3, "quick": WARM_UP + 1}
LINEAR_BAR, FLAT_BAR, TIER_BAR = 1.1, 1.1, 0.05
LARGEST, NEAR = 0.9, 0.02
"""The largest tier, which is factorized as all others are, and what lies between two."""


@dataclass(frozen=True)
class Axis:
    """What grows: points of the full run and of the quick one, and what a point is a round of."""

    title: str
    full: tuple[int, ...]
    quick: tuple[int, ...]


AXES = {
    "clients": Axis("clients a round", (10, 30, 100, 300, 1_000), (10, 100)),
    "population": Axis("clients in the population", (1_000, 10_000, 100_000, 1_000_000), (1_000, 100_000)),
    "parameters": Axis("parameters", (20_490, 203_530, 582_026, 2_570_186, 11_172_810), (20_490, 203_530)),
    "tiers": Axis("tiers", (1, 2, 4, 8), (1, 2)),
}
MODELS = {20_490: "cnn-tiny", 203_530: "mlp", 582_026: "cnn-5x5", 2_570_186: "resnet9", 11_172_810: "resnet18"}
"""Parameters → network, for 1×28×28 and 10 classes, without normalisation except the ResNets' GroupNorm."""


def point_of(axis: str, value: int) -> tuple[Work, dict[str, Any]]:
    """Return the work of a point, and what differs from the configuration of ``speed.simulated``."""
    if axis == "clients":
        return Work(axis, "cnn-tiny", 1_000, value, 60), {}
    if axis == "population":
        return Work(axis, "cnn-tiny", value, 100, 60), {"partition": "index:60"}
    if axis == "parameters":
        norm = "group" if MODELS[value].startswith("resnet") else "none"
        return Work(axis, MODELS[value], 100, 10, 2), {"partition": "index:2", "norm": norm, "lr": 1e-3}
    tiers = tuple(round(LARGEST - NEAR * number, 4) for number in range(value))
    fedhm = {"method": "fedhm", "tiers": tiers, "tier_assignment": "uniform", "partition": "index:32"}
    return Work(axis, "cnn-5x5", 100, 24, 32), fedhm


def play_here(axis: str, value: int, rounds: int, data_dir: str | None) -> dict[str, Any]:
    """Play a point in this process; only here are edgefl and torch loaded."""
    from speed.simulated import config_of, play

    work, changes = point_of(axis, value)
    return play(config_of(work, material(work, data_dir), rounds + 1, engine="inline", **changes))


def rows_of(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what is held to a bar, of the axes that have two points or more.

    >>> rows_of([{"axis": "tiers", "value": n, "seconds": 9, "server_s": s} for n, s in ((1, 1.0), (8, 1.35))])
    [{'case': "tiers: what each adds to the server's seconds", 'figure': 0.05, 'bar': 0.05}]
    """
    rows: list[dict[str, Any]] = []

    def add(case: str, figure: float, bar: float) -> None:
        rows.append({"case": case, "figure": round(figure, 6), "bar": bar})

    for axis in AXES:
        on_it = sorted((p for p in points if p["axis"] == axis), key=lambda p: p["value"])
        if len(on_it) < 2:
            continue
        first, last = on_it[0], on_it[-1]
        tenth = min(on_it[:-1], key=lambda p: abs(p["value"] * 10 - last["value"]))
        server = "server_s" if last["server_s"] is not None else "seconds"
        said = "the server's seconds" if server == "server_s" else "seconds"
        if axis == "clients":
            add("clients a round: seconds per client, largest ÷ a tenth", _per(last, tenth, "seconds"), LINEAR_BAR)
        elif axis == "population":
            add("population: seconds of a round, largest ÷ smallest", last["seconds"] / first["seconds"], FLAT_BAR)
            held = [p["server_bytes"] + p["worker_bytes"] * p["workers"] for p in (first, last)]
            add("population: memory, largest ÷ smallest", held[1] / held[0], FLAT_BAR)
        elif axis == "parameters":
            add(f"network: {said} per parameter, largest ÷ about a tenth", _per(last, tenth, server), LINEAR_BAR)
        else:
            each = (last[server] / first[server] - 1) / (last["value"] - first["value"])
            add(f"tiers: what each adds to {said}", each, TIER_BAR)
    return rows


def _per(last: Mapping[str, Any], before: Mapping[str, Any], figure: str) -> float:
    return float((last[figure] / last["value"]) / (before[figure] / before["value"]))


def measure(axes: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every point ``--runs`` times, in turns; return medians."""
    scale = "quick" if options.quick else "full"
    if material(WORKS["T"], options.data_dir).dataset == "digits" and "parameters" in axes:
        print(
            "no Fashion-MNIST: clients train on digits, and parameters, which are for 28×28 pixels, are left out", file=sys.stderr
        )
        axes = [axis for axis in axes if axis != "parameters"]
    wanted = [(axis, value) for axis in axes for value in getattr(AXES[axis], scale)]
    found: dict[tuple[str, int], list[dict[str, Any]]] = {point: [] for point in wanted}
    for turn in range(options.runs):
        for axis, value in wanted:
            print(f"run {turn + 1} of {options.runs}: {axis} {value:,}", file=sys.stderr, flush=True)
            given = ["--rounds", str(ROUNDS[scale]), *(["--data-dir", options.data_dir] if options.data_dir else [])]
            played = run_child(["growth.py", "--point", f"{axis}:{value}", *given], memory=True)
            own = [s for s in played.found["server_s"][-len(played.rounds_s) :] if s is not None]
            one = {"seconds": played.median_s, "server_s": median(own) if own else None, "others": played.others}
            found[axis, value].append({**one, "macs": median(played.found["macs"]), **played.memory})
    return [{"axis": axis, "value": value, **_middle(runs)} for (axis, value), runs in found.items()]


def _middle(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of several runs of one point."""
    return {key: None if runs[0][key] is None else median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    """Measure and print; or, with ``--point``, be what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two small points of each: that it works")
    parser.add_argument("--axis", action="append", choices=AXES, help="may repeat [all]")
    parser.add_argument("--runs", type=int, default=2, help="turns [2]")
    parser.add_argument("--data-dir", help="the folder of Fashion-MNIST's four files [the system's]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the points there")
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        axis, _, value = options.point.partition(":")
        if axis not in AXES:
            parser.error(f"--point: got {options.point!r}, expected one of {', '.join(AXES)} and a number")
        options.json.write_text(json.dumps(play_here(axis, int(value), options.rounds, options.data_dir)), encoding="utf-8")
        return
    if options.runs < 1:
        parser.error(f"--runs: expected 1 or more, got {options.runs}")
    points = measure(options.axis or list(AXES), options)
    rows = rows_of(points)
    for row in rows:
        print(f"{row['case']}: {row['figure']:.3f} (at most {row['bar']:g})")
    if options.json:
        about = {"commit": commit(), "machine": machine(), "seed": SEED, "quick": options.quick}
        options.json.write_text(f"{json.dumps({**about, 'points': points, 'rows': rows}, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":  # workers import this file anew
    main()
