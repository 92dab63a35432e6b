"""Run the experiments of the five papers again, and those of attacks; write their tables into docs/papers.md and docs/trust.md.

Every finished run is one line of tools/results/<table>.jsonl, with its settings, commit, host, processor seconds, and a hash of settings
and code. A stopped or killed command resumes from checkpoints. Rates and normalisation are chosen first, by trials on validation samples.
When code has changed, a probe decides: the same run in seconds, whose figures are stored in the line. A run is repeated if its probe gives
other figures now, or if its settings have changed. Until then tables mark it as stale. The scale is the papers' own where one computer can;
``--quick`` is a reduced scale, ``--smoke`` one round of each. Run long queues in a checkout that nobody edits.

All tables at full scale, as long as three hours:  python tools/paper_tables.py --max-hours 3
One table, and its page:                           python tools/paper_tables.py --table flanc --write
Which stored runs are still current:               python tools/paper_tables.py --confirm --recount
One cell again (table/row/column/seed):            python tools/paper_tables.py --only "flanc/FLANC/IID/0" --again
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from counters.markdown import ROOT, arguments, publish
from papers.captions import again
from papers.confirm import confirm, probe_stored
from papers.queue import Queue, table_of, train
from papers.recount import recount
from papers.runs import SCALES, Scale
from papers.states import Table
from papers.store import Entries, ResultsError, load
from speed.process import commit, machine

from edgefl.errors import EdgeflError
from edgefl.util.machine import processor_name

RESULTS = Path(__file__).parent / "results"
WORK = ROOT / "runs" / "paper-tables"
TABLES = (
    *(
        "flanc",
        "flanc-late",
        "pfedpara",
        "factorized",
        "fedpara-pooled",
        "fedpara",
        "prism-deep",
        "prism",
        "fedhm-sizes",
        "fedhm",
        "flanc-net",
    ),
    *("spectral", "budget", "robustness"),
)
"""In the order in which they are worth their time."""


def rendered(name: str, stored: Entries) -> str:
    """Return a table's Markdown, stale runs marked: at full scale if all of that is stored, else at reduced scale and what full has."""
    module = table_of(name)
    parts: list[str] = []
    for scale in SCALES:
        table = Table(module.runs(scale), module.TUNING[scale])
        if not (shown := table.shown(stored.get(scale, []))):
            continue
        text = f"{module.render(shown, scale)}\n\n{again(name, shown, scale)}"
        if scale != "full" or table.complete(shown):
            parts.insert(0, text)
            break
        parts.append(f"**Full scale, unfinished: {len(shown)} of {len(table.runs)} runs.**\n\n{text}")
    return "\n\n".join(parts) or f"Not run yet: `python tools/paper_tables.py --quick --table {name} --write`."


def main() -> None:
    """Train what is missing or stale, then print the tables, write them into their page, or compare a page with them."""
    options = _options()
    scale: Scale = options.scale or "full"
    names = options.tables.split(",")
    host = {key: value for key in ("engine", "workers", "device") if (value := getattr(options, key)) is not None}
    used = {"processor": processor_name(), **machine(), **host}
    if options.device == "cuda":
        used["gpu"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    until = None if options.max_hours is None else time.time() + 3600 * options.max_hours
    with tempfile.TemporaryDirectory() as temporary:
        results = options.results or (Path(temporary) / "results" if scale == "smoke" else RESULTS)
        work = options.work or (results / "work" if scale == "smoke" else WORK)
        queue = Queue(
            scale, results, work, host, {"commit": commit(), "host": used}, tuple(options.only or ()),
            options.again, options.at_once, options.nice, until, options.seeds,
        )  # fmt: skip
        try:
            queue = queue.of_known_runs()
            if options.plan:
                for name in names:
                    print(queue.plan(name))
                return
            if options.list:
                for name in names:
                    for job in (*queue.trials(name), *queue.runs(name)):
                        print(job.run.name(name))
                return
            keeps = options.confirm or options.probe_stored or options.recount
            good = _kept(options, names, results) if keeps else options.render_only or train(queue, names)
            renders = not options.only and (not keeps or options.write or options.check)
            for name in names if renders else ():
                publish(f"paper-{name}", rendered(name, load(results / f"{name}.jsonl")), options)
        except (ResultsError, ValueError, EdgeflError) as error:
            print(error, file=sys.stderr)
            sys.exit(2)
    sys.exit(0 if good else 1)


def _kept(options: argparse.Namespace, names: Sequence[str], results: Path) -> bool:
    """Confirm, probe or count again what is stored; return whether no run has to be trained again for its costs."""
    good = True
    for path in (results / f"{name}.jsonl" for name in names):
        if options.confirm:
            confirm(path, print, before=options.before)
        if options.probe_stored:
            probe_stored(path, print)
        if options.recount:
            good &= recount(path, print)
    return good


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_const", const="quick", dest="scale", help="a reduced scale, minutes")
    add("--smoke", action="store_const", const="smoke", dest="scale", help="a round of each, into a temporary folder")
    add("--table", "--tables", default=",".join(TABLES), dest="tables", help="some of them, separated by commas")
    add(
        "--only", action="append", metavar="TABLE/ROW/COLUMN/SEED", help="only these runs, * stands for anything; may be repeated"
    )
    add("--again", action="store_true", help="also train runs that are stored, and say whether their figures are the same")
    add("--seeds", type=_seeds, metavar="SEED,SEED", help="other seeds than the tables', separated by commas")
    add("--max-hours", type=float, help="begin no round after this time; the same command resumes")
    add("--at-once", type=int, default=2, help="runs at a time, each with one thread [2]")
    add("--engine", help="edgefl's --engine, for every run")
    add("--workers", type=int, help="edgefl's --workers, for every run")
    add("--device", choices=("cpu", "cuda"), help="edgefl's --device, for every run")
    add("--no-nice", action="store_false", dest="nice", help="compete with other programs instead of giving way to them")
    add("--results", type=Path, help="the folder of the stored runs [tools/results]")
    add("--work", type=Path, help="the folder of unfinished runs [runs/paper-tables]")
    add("--list", action="store_true", help="print the runs that are missing or stale and can begin, and stop")
    add("--plan", action="store_true", help="print how many runs of each table are left and about how long they take, and stop")
    add("--render-only", action="store_true", help="train nothing")
    add("--confirm", action="store_true", help="train only the probes of lines that other code made, and say which are stale")
    add(
        "--before",
        type=Path,
        metavar="CHECKOUT",
        help="with --confirm: a checkout of the code that made the lines, whose probe on this computer replaces one that differs",
    )
    add(
        "--recount",
        action="store_true",
        help="train nothing; count the costs of stored runs again with today's code",
    )
    add("--probe-stored", action="store_true", help="add a probe to lines of this very code that have none")
    options = arguments(parser)
    if options.only:
        options.tables = ",".join(dict.fromkeys(pattern.split("/")[0] for pattern in options.only))
    if unknown := sorted(set(options.tables.split(",")) - set(TABLES)):
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if wrong := [pattern for pattern in options.only or () if pattern.count("/") != 3]:
        parser.error(f"--only: got {wrong[0]!r}, expected table/row/column/seed")
    if options.scale == "smoke" and options.write:
        parser.error("--smoke gives no figures for a page")
    if options.engine == "auto":
        parser.error("--engine auto chooses by speed, and a stored run names its engine: give inline, pool or group")
    if options.at_once < 1 or (options.max_hours is not None and not 0 < options.max_hours < math.inf):
        parser.error("--at-once and --max-hours must be positive")
    if options.before is not None and not (options.confirm and (options.before / "tools" / "papers").is_dir()):
        parser.error(f"--before: got {options.before}, expected a checkout of this repository, and --confirm beside it")
    return options


def _seeds(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected whole numbers separated by commas") from None


if __name__ == "__main__":
    main()
