"""The table of where this computer's time went, stage by stage."""

from __future__ import annotations

from edgefl.report.chart import Json
from edgefl.report.share_table import Cell, ShareRow, ShareTable
from edgefl.timing.spans import STAGES
from edgefl.util.units import human_seconds

OWN = "report"
"""The stage that is not over while the page is being made: a page made anew would differ from the first by it."""


def stage_table(summary: Json) -> ShareTable:
    """Return the seconds of every stage: in the main thread with their shares, in the background, and in all worker processes."""
    stages = summary["host_stages"]
    server = {name: taken_s for name, taken_s in stages["server"].items() if name != OWN}
    beside = stages.get("background", {})
    workers = stages.get("workers", {})
    of_workers: dict[str, float] = {}
    for worker in workers.values():
        for name, taken_s in worker.items():
            of_workers[name] = of_workers.get(name, 0.0) + taken_s
    columns = [("in the background", beside)] if beside else []
    columns += [(f"in {len(workers)} worker processes", of_workers)] if workers else []
    all_s = sum(server.values())
    known = {*server, *beside, *of_workers}
    rows = []
    for name in (*(name for name in STAGES if name in known), *sorted(known - STAGES.keys())):
        taken_s = server.get(name)
        cells = [Cell(f"{name}: {STAGES[name]}" if name in STAGES else name), Cell(human_seconds(taken_s))]
        cells.append(Cell.of(taken_s / all_s if taken_s is not None and all_s else None))
        rows.append(ShareRow((*cells, *(Cell(human_seconds(seconds.get(name))) for _, seconds in columns))))
    return ShareTable(("stage", "this process", "share", *(head for head, _ in columns)), tuple(rows))
