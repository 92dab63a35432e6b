"""Time edgefl's commands as whole processes beside ``import torch``; and, with ``--speed``, its rounds, its methods and its growth.

Usage: python tools/bench.py [--runs N] [--case NAME]... [--json FILE]
       python tools/bench.py --speed --write [--peers FILE]      (25 minutes on a machine that does nothing else)
       python tools/bench.py --no-run --write | --check [--peers FILE]

How to read the table:

- Each figure is the median of ``--runs`` runs. Runs of the cases take turns, so that a machine that slows down slows all of them.
- ``seconds`` is from the start of the process to its end; ``CPU s`` is its processor time over all threads, which other work on the
  machine disturbs less. Seconds well above CPU s mean a busy machine, or one that reads its files for the first time: run it again.
- ``least`` is the least processor time of the runs: the closest to what the machine needs when nothing else runs on it.
- ``× import torch`` is seconds over those of ``python -c "import torch"`` in the same turn: the figure to compare between machines.
- ``peak MB`` is the largest resident memory of the process, 1 MB = 10⁶ bytes, as the system reports it for each child.
- ``target`` says what the case is held to, and whether the median meets it. A missed target is not a failure of the tool.
- Cases that are tools themselves (``train-steps``, ``inference``) are held to the figures that they measure: the largest is shown. Those
  of ``--speed`` repeat their measurements and are run once; a figure is shown as a share of its bar, and all are kept in tools/results.

``--write`` puts the figures of tools/results into docs/speed.md, with the plot of growth; ``--check`` holds them to it.
``--peers`` takes what peerbench measured of other simulators (tools/peers/README.md). To add a case, write a function that returns a
``Run`` and give it a line in ``speed/cases.py``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from speed.cases import BASELINE, CASES, COMMANDS, RESULTS, SPEED, Rows
from speed.pages import check_pages, take_peers, write_pages
from speed.process import TOOLS, Run, commit, machine

__all__ = ["commit", "machine"]


def measure(names: Sequence[str], runs: int, results: Path = RESULTS, quick: bool = False) -> dict[str, list[Run]]:
    """Run the cases in turns, the baseline first; a case that repeats itself is run once, and left out where it fails."""
    found: dict[str, list[Run]] = {name: [] for name in dict.fromkeys((BASELINE, *names))}
    for number in range(runs):
        for name, done in found.items():
            run = CASES[name].run
            if number and isinstance(run, Rows):
                continue
            print(f"run {number + 1} of {1 if isinstance(run, Rows) else runs}: {name}", file=sys.stderr, flush=True)
            if not isinstance(run, Rows):
                done.append(run())
                continue
            try:
                done.append(run.run(results / f"{name}.jsonl", quick))
            except SystemExit as stopped:
                print(stopped, file=sys.stderr, flush=True)
    return {name: done for name, done in found.items() if done}


def markdown(found: Mapping[str, Sequence[Run]]) -> str:
    """Return the table of medians.

    >>> print(markdown({BASELINE: [Run(2, 1, 10**8)], "profile": [Run(4, 3, 2 * 10**8)]}).splitlines()[-1])
    | `edgefl profile` ResNet-18, 3×32×32, four FedHM tiers | 4.00 | 3.00 | 3.00 | 2.00 | 200 | < 5 s: met |
    """
    lines = ["| case | seconds | CPU s | least | × import torch | peak MB | target |", f"| --- |{' ---: |' * 5} --- |"]
    for name, done in found.items():
        seconds, peak_bytes = median(run.seconds for run in done), median(run.peak_bytes for run in done)
        ratio = median(run.seconds / base.seconds for run, base in zip(done, found[BASELINE], strict=False))
        cpu_s, least_s = median(run.cpu_s for run in done), min(run.cpu_s for run in done)
        figures = f"{seconds:.2f} | {cpu_s:.2f} | {least_s:.2f} | {ratio:.2f} | {peak_bytes / 1e6:,.0f}"
        own = {key: median(run.figures[key] for run in done) for key in done[0].figures}
        lines.append(f"| {CASES[name].title} | {figures} | {CASES[name].verdict(seconds, peak_bytes, own, cpu_s)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print; write the pages, or hold them to the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each case [3]")
    parser.add_argument("--case", action="append", choices=CASES, help="this one alone; may repeat [all that are commands]")
    parser.add_argument("--speed", action="store_true", help=f"these cases: {', '.join(SPEED)}")
    parser.add_argument("--quick", action="store_true", help="little of each case of --speed: that it works; needs --results")
    parser.add_argument("--no-run", action="store_true", help="run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every run there, with commit and machine")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the stored figures [tools/results]")
    parser.add_argument("--peers", type=Path, metavar="FILE", help="runs of peerbench, to be stored with the figures")
    parser.add_argument("--pages", type=Path, default=TOOLS.parent, help="the folder of docs [the checkout]")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="fail where the pages have other tables than the stored figures")
    action.add_argument("--write", action="store_true", help="put the stored figures into the pages")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error(f"--runs: expected 1 or more, got {options.runs}")
    if options.quick and options.results == RESULTS:
        parser.error("--quick: its figures are not worth keeping; give --results a folder of their own")
    if options.peers:
        take_peers(options.peers, options.results)
    names = options.case or list(SPEED if options.speed else COMMANDS)
    failed: list[str] = []
    if not options.no_run:
        found = measure(names, options.runs, options.results, options.quick)
        failed = [name for name in names if name not in found]
        here = machine()
        print(
            f"{here['cores']} cores, {here['system']}, Python {here['python']}, torch {here['torch']}; median of {options.runs}.\n"
        )
        print(markdown(found))
        if options.json:
            runs = {name: [asdict(run) for run in done] for name, done in found.items()}
            text = json.dumps({"commit": commit(), "machine": here, "runs": runs}, indent=2)
            options.json.write_text(f"{text}\n", encoding="utf-8")
    if options.write:
        write_pages(options.pages, options.results)
    if options.check:
        check_pages(options.pages, options.results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
