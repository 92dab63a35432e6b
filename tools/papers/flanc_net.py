"""FLANC, Table 1, on the authors' own network: the methods of the paper, at fewer rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papers import flanc
from papers.runs import Entry, Run, Scale
from papers.tuning import Tuning

TITLE = "Widths that share a basis, on the authors' network (FLANC, Table 1)"
ROWS = ("HeteroFL", "HeteroFL, unmasked loss", "FjORD", "FLANC", "PriSM", "FedHM")
ORDERINGS = tuple(pair for pair in flanc.ORDERINGS if set(pair) <= set(ROWS))
ROUNDS: dict[Scale, int] = {"full": 60, "quick": 10, "smoke": 1}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03), length=0.1, column="IID", same=flanc.UNMASKED),
    "quick": None,
    "smoke": Tuning((0.01,), column="IID"),
}
NOTES = (
    "*Paper*: Table 1 of FLANC: this network, without normalisation, at 200 rounds.",
    "*Schedule*: the rate falls to a tenth after half of the rounds, as in the authors' script.",
)


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    network: dict[str, Any] = {"model": "cnn-flanc", "norm": "none", "rounds": ROUNDS[scale]}
    return flanc.runs(scale, ROWS, **network)


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the tables of :func:`papers.flanc.render` for these rows."""
    return flanc.render(entries, scale, ROWS, NOTES)
