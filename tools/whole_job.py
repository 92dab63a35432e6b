"""What surrounds the rounds: the start and the end of a run, the README's first run, and the evaluation in a study.

Usage: python tools/whole_job.py [--turns N] [--quick] [--json FILE]

- *Start* is from the start of the process to its first round, as a multiple of ``python -c "import torch"`` in the same turn. *End* is
  from the last round to the end of the process. Both are of work T (``speed/work.py``), with FedAvg, and with FedHM in three tiers.
- The README's first run is the command line as it stands there: processor seconds of all its processes, and seconds by the clock as a
  share of them, ½ if two cores are always busy. *Nothing cached* is with an empty cache folder, as on a new computer.
- The study compares four methods with three seeds on Fashion-MNIST, six rounds each. Its figure is the share of evaluations in the seconds
  of its runs.

Every figure is the median of its turns; the study is run once. ``--quick`` is to see that it works: a turn, and a study of one seed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from check_docs import MAIN_JOB
from speed.cases import import_torch
from speed.process import TOOLS, Run, commit, machine, process

ROUNDS = 6
THREE = {"method": "fedhm", "tiers": [1.0, 0.5, 0.25], "tier_assignment": "uniform"}
ENDS: dict[str, tuple[dict[str, Any], float]] = {
    "T without a bundle": ({"bundle": False}, 1.5),
    "T with its bundle": ({}, 1.5 + 1.2),
    "T with the bundle of three tiers": (THREE, 1.5 + 3 * 1.2),
}
"""Run → what differs from the work's configuration, and the most seconds from its last round to its end."""
STUDY = (
    "compare --methods fedhm,heterofl,fjord,flanc --dataset fashion-mnist --partition dirichlet:0.3 --tiers 1,0.5,0.25 --clients 20 "
    "--per-round 5 --rounds 6 --eval-every 2 --eval-samples 500 --data-share 0.05 --no-bundle --budget-bytes 5MB"
)
Row = dict[str, Any]


def play_here(changes: Mapping[str, Any], data_dir: str | None) -> list[float]:
    """Play a run of work T in this process; return when its first round began and its last one ended, in seconds since 1970."""
    from speed.simulated import config_of
    from speed.work import WORKS, material

    import edgefl

    ended: list[float] = []
    config = config_of(WORKS["T"], material(WORKS["T"], data_dir), ROUNDS, **changes)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        edgefl.simulate(config, out, on_round=lambda record: ended.append(time.time()))
        return [(out / "config.toml").stat().st_mtime, ended[-1]]


def around(changes: Mapping[str, Any], data_dir: str | None) -> tuple[float, float]:
    """Return the seconds of a run of work T, in a process of its own, before its first round and after its last one."""
    own = [] if data_dir is None else ["--data-dir", data_dir]
    started = time.time()
    done = subprocess.run(
        [sys.executable, __file__, "--play", json.dumps(changes), *own], cwd=TOOLS, stdout=subprocess.PIPE, check=True
    )
    first, last = json.loads(done.stdout.splitlines()[-1])
    return first - started, time.time() - last


def job(command: str, folder: Path, home: Path) -> Run:
    """Run a command line of edgefl in ``folder``, whose caches are in ``home``."""
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": str(TOOLS.parent)}
    arguments = shlex.split(command.removeprefix("edgefl "))
    return process(sys.executable, "-m", "edgefl", *arguments, folder=folder, environment=environment)


def starts_and_ends(turns: int, data_dir: str | None) -> Iterator[Row]:
    """Yield the rows of starts and ends; the first run of each fills the caches and does not count."""
    starts: list[float] = []
    ends: dict[str, list[float]] = {name: [] for name in ENDS}
    for turn in range(turns + 1):
        baseline_s = import_torch().seconds
        for name, (changes, _) in ENDS.items():
            start_s, end_s = around(changes, data_dir)
            if turn:
                starts.append(start_s / baseline_s)
                ends[name].append(end_s)
    yield {"case": "start of T ÷ import torch", "figure": median(starts), "bar": 1.4}
    yield from ({"case": f"end of {name}, s", "figure": median(ends[name]), "bar": bar} for name, (_, bar) in ENDS.items())


def first_run(turns: int) -> Iterator[Row]:
    """Yield the rows of the README's first run."""
    found: dict[str, list[Run]] = {"nothing cached": [], "again": []}
    for _ in range(turns):
        with tempfile.TemporaryDirectory() as home:
            for name, of in found.items():
                folder = Path(home) / name
                folder.mkdir()
                of.append(job(MAIN_JOB, folder, Path(home)))
    for name, of in found.items():
        yield {"case": f"the README's first run, {name}: processor s", "figure": median(run.cpu_s for run in of), "bar": 28.0}
        yield {
            "case": f"the README's first run, {name}: s ÷ processor s",
            "figure": median(run.seconds / run.cpu_s for run in of),
            "bar": 0.6,
        }


def study(seeds: Sequence[int]) -> Row:
    """Return the row of the study."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        job(f"{STUDY} --seeds {','.join(map(str, seeds))} --out study", home, home)
        runs = [json.loads(path.read_text(encoding="utf-8")) for path in home.glob("study/*/*/summary.json")]
    stages = [run["host_stages"]["server"] for run in runs]
    share = sum(of.get("evaluate", 0.0) for of in stages) / sum(run["host_s"] for run in runs)
    return {"case": f"evaluation's share of a study of {len(runs)} runs", "figure": share, "bar": 0.25}


def main() -> None:
    """Measure and print; or, with ``--play``, be what is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3, help="of each figure [3]")
    parser.add_argument("--quick", action="store_true", help="a turn, and a study of one seed")
    parser.add_argument("--data-dir", help="the folder of Fashion-MNIST's four files [the system's; digits where there are none]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        print(json.dumps(play_here(json.loads(options.play), options.data_dir)))
        return
    turns = 1 if options.quick else options.turns
    rows = [*starts_and_ends(turns, options.data_dir), *first_run(turns), study((0,) if options.quick else (0, 1, 2))]
    for row in rows:
        print(f"{row['case']}: {row['figure']:.2f} (at most {row['bar']:g})")
    if options.json:
        found = {"commit": commit(), "machine": machine(), "rows": rows}
        options.json.write_text(f"{json.dumps(found, indent=1)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
