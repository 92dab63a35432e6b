"""FLANC, Table 1, on the authors' own network: the methods of the paper, at fewer rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papers import flanc
from papers.runs import Entry, Run, Scale
from papers.tuning import Tuning

TITLE = "Widths that share a basis, on the authors' network (FLANC, Table 1)"
CLIPPED = tuple(row for row in flanc.CLIPPING if row != flanc.CLIPPED)
ROWS = ("HeteroFL", "HeteroFL, unmasked loss", *CLIPPED, "FjORD", "FLANC", "PriSM", "FedHM")
ORDERINGS = (
    *(pair for pair in flanc.ORDERINGS if set(pair) <= set(ROWS)),
    *(pair for row in flanc.AT_RATES for pair in (("FLANC", row), (row, "HeteroFL"))),
)
ROUNDS: dict[Scale, int] = {"full": 60, "quick": 10, "smoke": 1}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.03), length=0.1, column="IID", same=flanc.UNMASKED, fixed=frozenset(CLIPPED)),
    "quick": None,
    "smoke": Tuning((0.01,), column="IID", fixed=frozenset(CLIPPED)),
}
NOTES = (
    "*Paper*: Table 1 of FLANC: this network, without normalisation, at 200 rounds.",
    "*Schedule*: the rate falls to a tenth after half of the rounds, as in the authors' script.",
    "*Clipped*: to the norm 1, as in the code of HeteroFL's authors, at the rate of FLANC's authors and at three times that. The other "
    "rows of HeteroFL do not clip.",
)


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    network: dict[str, Any] = {"model": "cnn-flanc", "norm": "none", "rounds": ROUNDS[scale]}
    return flanc.runs(scale, ROWS, **network)


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return the tables of :func:`papers.flanc.render` for these rows."""
    return flanc.render(entries, scale, ROWS, NOTES, ORDERINGS)
