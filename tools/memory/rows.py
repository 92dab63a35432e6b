"""The stored figures of the networks, a line of JSON each, and the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from counters.markdown import ROOT, percent, table

STORED = ROOT / "tools" / "results" / "memory.jsonl"


@dataclass(frozen=True)
class Row:
    """Bytes of one network.

    Attributes:
        training: predicted and measured, of all that a training step holds.
        inference: predicted and measured, of an inference besides weights and input; the measured one is None if the network cannot be
            exported.
        versions, processor: with what, and on what, it was measured.
    """

    network: str
    batch_size: int
    held_out: bool
    training: tuple[int, int]
    inference: tuple[int, int | None]
    versions: str
    processor: str


def read(path: Path = STORED) -> dict[str, Row]:
    """Return name → row, in the order of the file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return {row["network"]: Row(**row | {kind: tuple(row[kind]) for kind in ("training", "inference")}) for row in found}


def write(rows: Sequence[Row], path: Path = STORED) -> None:
    """Store ``rows``."""
    path.write_text("".join(f"{json.dumps(asdict(row), ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def markdown(rows: Sequence[Row]) -> str:
    """Return the summary and the table of ``rows``."""
    body = []
    for row in rows:
        name = f"{row.network} *" if row.held_out else row.network
        body.append([name, f"{row.batch_size}", *_cells(*row.training), *_cells(*row.inference)])
    parts = "predicted", "measured", "error"
    titles = ["network", "batch", *(f"training: {parts[0]}", *parts[1:]), *(f"inference: {parts[0]}", *parts[1:])]
    kinds = "\n".join(f"- {summary(kind, rows)}" for kind in ("training", "inference"))
    with_what = "; ".join(sorted({f"{row.versions}, on {row.processor}" for row in rows}))
    about = f"MB, one thread, float32; {with_what}."
    about += " Rules of training were made without the networks marked *, which were drawn beforehand or added afterwards."
    return f"{about}\n\n{kinds}\n\n{table(titles, body)}"


def summary(kind: str, rows: Sequence[Row]) -> str:
    """Return a sentence with the worst errors of ``training`` or ``inference``, over all networks and over the held-out ones.

    >>> rows = [Row("a", 1, False, (95, 100), (1, 1), "", ""), Row("b", 1, False, (102, 100), (1, 1), "", "")]
    >>> summary("training", rows)
    'Training: 2 networks from −5.0 % (a) to +2.0 % (b), 2 within ±10 %, 1 under by more than 3 %.'
    """
    found = []
    for row in rows:
        predicted, measured = row.training if kind == "training" else row.inference
        if measured is not None:
            found.append((predicted / measured - 1, row))

    def worst(errors: list[tuple[float, Row]]) -> str:
        ends = (pick(errors, key=lambda one: one[0]) for pick in (min, max))
        return " to ".join(f"{percent(error)} ({row.network})" for error, row in ends)

    within = sum(abs(error) <= 0.1 for error, _ in found)
    under = sum(error < -0.03 for error, _ in found)
    said = f"{kind.title()}: {len(found)} networks from {worst(found)}, {within} within ±10 %, {under} under by more than 3 %."
    held_out = [one for one in found if one[1].held_out]
    return f"{said} Held out: {len(held_out)} from {worst(held_out)}." if held_out else said


def _cells(predicted: int, measured: int | None) -> tuple[str, str, str]:
    if measured is None:
        return f"{predicted / 1e6:,.2f}", "–", "not exported"
    return f"{predicted / 1e6:,.2f}", f"{measured / 1e6:,.2f}", percent(predicted / measured - 1)
