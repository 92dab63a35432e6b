"""FLANC, Table 1, on clients of three classes: means over the last evaluations, because one round of that column is noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from counters.markdown import table

from papers import flanc
from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import Entry, Run, Scale, seeded
from papers.show import Figures, late, orderings
from papers.tuning import Tuning

TITLE = "Clients of three classes over the last rounds (FLANC, Table 1)"
COLUMN = "3 classes a client"
SEEDS = flanc.SEEDS
ROWS = ("HeteroFL", flanc.CLIPPED, "FjORD", "FLANC")
ORDERINGS = tuple(("FLANC", row) for row in ROWS if row != "FLANC")
EVERY = 2
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03), ("static",), length=0.1, grows=True),
    "quick": None,
    "smoke": Tuning((0.01,), ("static",)),
}


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed: those of FLANC's table, evaluated in every second round of the last quarter."""
    settings = {**flanc.common(scale), "partition": flanc.PARTITIONS[COLUMN], "eval_every": EVERY}
    since = 3 * settings["rounds"] // 4 + 1
    rows = {**{row: {**flanc.MADE[row], "tiers": flanc.WIDTHS} for row in ROWS}, **flanc.ALONE}
    return seeded([Run(row, COLUMN, {**settings, **own}, since=since) for row, own in rows.items()], SEEDS[scale])


def mean_of_widths(figures: Mapping[str, Any]) -> float:
    """Return the mean over tiers of the means over the evaluated rounds."""
    return statistics.mean(figures["late"]["mean"][label] for label in figures["tiers"])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the means over the evaluated rounds, and the best rounds beside them, which the authors' log prints."""
    found = Figures(entries)
    counts = " or ".join(map(str, sorted({entry["figures"]["late"]["rounds"] for entry in entries})))
    titles = [f"{COLUMN}: width ({work(entries, flanc.PAPER_WORK)})"]
    for row in ROWS:
        titles += [row, f"{row}, best", *(["paper"] if (row, COLUMN) in flanc.PAPER else [])]
    lines = []
    for number, tier in enumerate(f"{width:g}" for width in flanc.WIDTHS):
        line = [tier]
        for row in ROWS:
            line += [found.measured(row, COLUMN, late(tier, what)) for what in ("mean", "best")]
            line += [f"{paper[number]:.1f}"] if (paper := flanc.PAPER.get((row, COLUMN))) else []
        lines.append(line)
    notes = (
        "*Tiers* are drawn anew every round, with equal chances. A width that nobody draws is not trained in that round.",
        f"*Mean* of the last {counts} evaluations, in every second round. *Best*: the best of them. It is chosen on test samples, and so "
        "flatters every method.",
        f"*{flanc.CLIPPED}*: to the norm 1, as in the code of HeteroFL's authors.",
        "*Pixels*: the authors of FLANC normalise Fashion-MNIST by MNIST's constants.",
    )
    alone = found.alone(COLUMN, read=late("global"))
    compared = orderings(found, ORDERINGS, {"mean of widths": (COLUMN, mean_of_widths)}, {COLUMN: alone})
    return "\n\n".join([protocol(entries, scale, *notes), table(titles, lines), capacity(*alone), compared])
