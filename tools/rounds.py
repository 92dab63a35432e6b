"""Rounds of edgefl beside bare loops of torch that do the same work, and rounds of its methods beside each other.

Usage: python tools/rounds.py [--work NAME]... [--methods] [--runs N] [--rounds N] [--json FILE]

Every contestant is a process of its own; they take turns, run after run, so that a machine that slows down slows all of them. A run is
three rounds of warm-up and ten that are timed; its figure is their median, and a ratio is one of two figures of the same turn. Of works
and loops ``floors.py`` tells more. A run during which other processes took more than 15 % of a core is set aside where another is left.

``--methods`` runs the factorized methods on S, with clients drawn to three tiers if a method has several, beside FedAvg: their
seconds for a MAC, as a multiple of FedAvg's, may be at most 1.15. MACs are those in the rounds' records.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from speed.child import Played, run_child
from speed.process import commit, machine
from speed.ratios import rows_of
from speed.work import SEED, TIMED, WARM_UP, WORKS

LOOP_KINDS = ("sequential", "processes", "flat", "grouped")
THREE = (1.0, 0.5, 0.25)
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {},
    "fedhm": {"tiers": THREE, "tier_assignment": "uniform"},
    "prism": {"tiers": THREE, "tier_assignment": "uniform"},
    "flanc": {"tiers": THREE, "tier_assignment": "uniform", "lr": 0.01},
    "fedpara": {},
    "factorized-fl": {},
}
"""Method → what differs from the work's configuration; FedPara and Factorized-FL train one size, and FLANC diverges at the work's rate."""
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TOP_PAD_": str(2**26)}
"""Tells glibc to keep what a step has freed for the next one."""


def play_here(name: str, work: str, rounds: int, host: Mapping[str, Any], data_dir: str | None) -> dict[str, Any]:
    """Play a method's rounds in this process; only here are edgefl and torch loaded."""
    from speed.simulated import config_of, play
    from speed.work import material

    used = material(WORKS[work], data_dir)
    return play(config_of(WORKS[work], used, rounds + 1, **{"method": name, **METHODS[name], **host}))


def played(contestant: str, work: str, options: argparse.Namespace, memory: bool = False) -> Played:
    """Run a contestant: a bare loop, or a method of edgefl."""
    rounds = WARM_UP if memory else options.rounds
    given = ["--rounds", str(rounds), *(["--data-dir", options.data_dir] if options.data_dir else [])]
    if contestant in LOOP_KINDS:
        return run_child(["floors.py", contestant, work, *given], memory)
    host = [part for key in ("engine", "workers") if (value := getattr(options, key)) for part in (f"--{key}", str(value))]
    return run_child(["rounds.py", "--contestant", contestant, "--work", work, *given, *host], memory)


def turns(contestants: Sequence[str], work: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run the contestants in turns, and once more, briefly, for their memory; return what each took."""
    found: dict[str, list[Played]] = {name: [] for name in contestants}
    count = options.runs or WORKS[work].runs
    for turn in range(count):
        for name in contestants:
            print(f"{work}, run {turn + 1} of {count}: {name}", file=sys.stderr, flush=True)
            found[name].append(played(name, work, options))
    entries = []
    for name, runs in found.items():
        held = played(name, work, options, memory=True)
        entries.append({"contestant": name, "runs": [run.to_json() for run in runs], **held.memory})
    return {"work": work, "batches_a_round": WORKS[work].batches_a_round, "contestants": entries}


def main() -> None:
    """Measure and print; or, with ``--contestant``, be what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", action="append", choices=WORKS, help="may repeat [all; with --methods S]")
    parser.add_argument("--methods", action="store_true", help="methods beside FedAvg, instead of edgefl beside bare loops")
    parser.add_argument("--runs", type=int, help="turns [3; of S 2]")
    parser.add_argument(
        "--rounds", type=int, default=WARM_UP + TIMED, help=f"of a run, {WARM_UP} of them warm-up [{WARM_UP + TIMED}]"
    )
    parser.add_argument("--engine", default="auto", help="edgefl's [auto]")
    parser.add_argument("--workers", type=int, help="edgefl's [its own choice]")
    parser.add_argument("--data-dir", help="the folder of Fashion-MNIST's four files [the system's; digits where there are none]")
    parser.add_argument("--keep-memory", action="store_true", help="tell glibc, in all contestants, to keep what is freed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round there")
    parser.add_argument("--contestant", choices=METHODS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if min(options.runs or 1, options.rounds) < 1 or options.runs == 0:
        parser.error("--runs and --rounds: expected 1 or more")
    if options.contestant:
        host = {key: value for key in ("engine", "workers") if (value := getattr(options, key))}
        made = play_here(options.contestant, options.work[0], options.rounds, host, options.data_dir)
        options.json.write_text(json.dumps(made), encoding="utf-8")
        return
    if options.keep_memory:
        os.environ.update(KEEP)
    contestants = list(METHODS) if options.methods else [*LOOP_KINDS, "fedavg"]
    works = [turns(contestants, work, options) for work in options.work or (["S"] if options.methods else WORKS)]
    about = {"engine": options.engine, "workers": options.workers, "keep_memory": options.keep_memory, "seed": SEED}
    found: dict[str, Any] = {"commit": commit(), "machine": machine(), **about, "works": works}
    found["rows"] = rows_of(found)
    for row in found["rows"]:
        print(f"{row['case']}: {row['figure']:.3f} (at most {row['bar']:g})")
    if options.json:
        options.json.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":  # workers import this file anew
    main()
