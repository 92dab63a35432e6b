"""Run the experiments of the five papers again, and write their tables into docs/results.md.

Every finished run is stored at once, as a line of tools/results/<table>.jsonl with all of its settings. A stopped command resumes, and a
run whose settings have changed is repeated. The tables between ``<!-- paper-<table>:begin -->`` and its ``:end`` are made from the stored
runs alone. ``--quick`` computes every table at a reduced scale, which its caption states, in less than 20 minutes on two cores. Without
it the scale is the papers' own, as far as one computer can, which takes days. Tables that ran at full scale are shown at full scale.

Usage: python tools/paper_tables.py [--quick | --smoke] [--tables a,b] [--seeds 0,1] [--list | --render-only] [--check | --write]
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from types import ModuleType
from typing import Any

from counters.markdown import arguments, publish
from papers.play import figures
from papers.runs import SCALES, Run, Scale, missing, pruned, seeded

import edgefl
from edgefl.util.files import write_bytes

RESULTS = Path(__file__).parent / "results"
TABLES = ("flanc", "fedpara", "prism", "factorized", "spectral")
Entries = dict[str, list[dict[str, Any]]]


def table_of(name: str) -> ModuleType:
    """Return the module of a table: its TITLE, ``runs`` and ``render``."""
    return importlib.import_module(f"papers.{name}")


def load(path: Path) -> Entries:
    """Return scale → stored runs; none where there is no file."""
    if not path.exists():
        return {}
    stored: Entries = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        stored.setdefault(entry.pop("scale"), []).append(entry)
    return stored


def save(path: Path, stored: Entries) -> None:
    """Write the file whole or not at all; the order of its lines does not depend on which run finished first."""
    lines = [{"scale": scale, **entry} for scale, entries in stored.items() for entry in entries]
    lines.sort(key=lambda line: (line["scale"], line["column"], line["row"], line["seed"]))
    text = "".join(f"{json.dumps(line, sort_keys=True, ensure_ascii=False, allow_nan=False)}\n" for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, text.encode())


def rendered(name: str, stored: Entries) -> str:
    """Return a table's Markdown: at full scale where all of that has been run, else reduced, else a word. Stale runs do not count."""
    for scale in SCALES:
        runs = table_of(name).runs(scale)
        entries = pruned(stored.get(scale, []), runs)
        if entries and (scale != "full" or not missing(entries, runs)):
            return str(table_of(name).render(entries, scale))
    return "Not run yet: `python tools/paper_tables.py --quick --write`."


def wanted(names: Sequence[str], scale: Scale, seeds: Sequence[int] | None) -> list[tuple[str, Run]]:
    """Return the runs of the tables, those that take longest first."""
    runs = [(name, run) for name in names for run in table_of(name).runs(scale)]
    if seeds is not None:
        once = {name: [run for other, run in runs if other == name and run.seed == 0] for name in names}
        runs = [(name, run) for name in names for run in seeded(once[name], seeds)]
    return sorted(runs, key=lambda pair: -pair[1].work)


def left_over(folder: Path, every: Sequence[tuple[str, Run]], scale: Scale) -> list[tuple[str, Run]]:
    """Return the runs that are not stored."""
    stored = {name: load(folder / f"{name}.jsonl").get(scale, []) for name in {name for name, _ in every}}
    return [(name, run) for name, run in every if missing(stored[name], [run])]


def drop_stale(folder: Path, name: str, scale: Scale) -> None:
    """Take out of a table's file what its settings no longer stand for."""
    path = folder / f"{name}.jsonl"
    stored = load(path)
    kept = pruned(stored.get(scale, []), table_of(name).runs(scale))
    if kept != stored.get(scale, []):
        save(path, {**stored, scale: kept})


def timed(run: Run) -> tuple[dict[str, Any], float]:
    """Return a run's figures and the processor seconds they took; in a process of its own."""
    started = time.process_time()
    return figures(run.settings, run.local), time.process_time() - started


def played(left: Sequence[tuple[str, Run]], workers: int) -> Iterator[tuple[str, Run, dict[str, Any] | Exception, float]]:
    """Yield every run as it ends, with its figures or what went wrong; ``workers`` at a time, one thread each."""
    # Told to keep the memory that a step has freed, glibc saves the processes a twentieth of their time.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_TOP_PAD_": str(2**28)}
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        futures = {pool.submit(timed, run): (name, run) for name, run in left}
        try:
            for future in as_completed(futures):
                name, run = futures[future]
                error = future.exception()
                if error is None:
                    yield name, run, *future.result()
                else:
                    yield name, run, error if isinstance(error, Exception) else RuntimeError(repr(error)), 0.0
        finally:
            pool.shutdown(cancel_futures=True)


def play_all(folder: Path, left: Sequence[tuple[str, Run]], scale: Scale, workers: int) -> int:
    """Play runs and store each at once; return how many failed."""
    failed, seconds = 0, 0.0
    for number, (name, run, found, took_s) in enumerate(played(left, workers), 1):
        seconds += took_s
        said = f"[{number}/{len(left)}] {name}: {run.row}, {run.column}, seed {run.seed}"
        if isinstance(found, Exception):
            failed += 1
            print(f"{said}: {type(found).__name__}: {found}", file=sys.stderr, flush=True)
            continue
        path = folder / f"{name}.jsonl"
        stored = load(path)
        save(path, {**stored, scale: [*stored.get(scale, []), run.stored(found, edgefl.__version__)]})
        print(f"{said}: {100 * found['accuracy']['global']:.1f} %, {took_s:.0f} s", flush=True)
    print(f"{len(left)} runs, {failed} failed, {seconds:.0f} processor seconds", flush=True)
    return failed


def main() -> None:
    """Run what is missing, then print the tables, write them into their page, or compare a page with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_const", const="quick", dest="scale", help="a reduced scale, minutes")
    parser.add_argument(
        "--smoke", action="store_const", const="smoke", dest="scale", help="a round of each, into a temporary folder"
    )
    parser.add_argument("--tables", default=",".join(TABLES), help="some of them, separated by commas")
    parser.add_argument("--seeds", help="other seeds than the tables', separated by commas")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, each with one thread")
    parser.add_argument("--results", type=Path, help="the folder of the stored figures")
    parser.add_argument("--list", action="store_true", help="print the runs that are not stored, and stop")
    parser.add_argument("--render-only", action="store_true", help="run nothing")
    options = arguments(parser)
    scale: Scale = options.scale or "full"
    names = options.tables.split(",")
    if unknown := sorted(set(names) - set(TABLES)):
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if scale == "smoke" and options.write:
        parser.error("--smoke gives no figures for a page")
    seeds = None if options.seeds is None else [int(seed) for seed in options.seeds.split(",")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.results or (Path(temporary) if scale == "smoke" else RESULTS)
        failed = 0
        if not options.render_only:
            left = left_over(folder, wanted(names, scale, seeds), scale)
            if options.list:
                for name, run in left:
                    print(f"{name}: {run.row}, {run.column}, seed {run.seed}")
                return
            for name in names:
                drop_stale(folder, name, scale)
            failed = play_all(folder, left, scale, options.workers)
        for name in names:
            publish(f"paper-{name}", rendered(name, load(folder / f"{name}.jsonl")), options)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
