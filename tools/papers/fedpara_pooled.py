"""FedPara on a network whose classifier is small, as in the paper, so that it saves as much as there: both first weights, and tanh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from papers.fedpara import DENSE, EQUAL_BYTES, GAMMA, LOW, SMALL, render_of, runs_of
from papers.fedpara import ROWS as OLDER
from papers.runs import Entry, Run, Scale
from papers.tuning import Tuning

TITLE = "Low-rank Hadamard products (FedPara, Table 2 and Figure 3)"
MODEL, NARROW = "cnn-pooled", 0.322
OURS, AUTHORS = "FedPara", "FedPara, the authors' first weights"
TANH = f"{AUTHORS}, tanh"


def _fedpara(**options: Any) -> dict[str, Any]:
    return {"method": "fedpara", "tiers": (GAMMA,), "method_options": options}


ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    OURS: ("", _fedpara(init="he")),
    AUTHORS: ("", _fedpara(init="authors")),
    TANH: ("82.88", _fedpara(init="authors", tanh=True)),
    **{row: OLDER[row] for row in (LOW, EQUAL_BYTES, DENSE)},
    SMALL: ("", {"method": "origdrop", "tiers": (NARROW,)}),
}
ORDERINGS = (
    *((row, other) for row in (OURS, AUTHORS) for other in (LOW, EQUAL_BYTES, SMALL)),
    (AUTHORS, OURS),
    (TANH, AUTHORS),
    (DENSE, OURS),
)
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 100, "local_epochs": 5, "batch_size": 64, "per_round": 10},
    "quick": {
        **{"rounds": 10, "local_epochs": 2, "batch_size": 16, "per_round": 10, "data_share": 0.1, "eval_samples": 1000},
        **{"lr": 0.1},
    },
    "smoke": {"rounds": 2, "local_epochs": 1, "batch_size": 5, "per_round": 2, "data_share": 0.005, "eval_samples": 50},
}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.1, 0.03, 0.3, 0.01), length=0.1, grows=True),
    "quick": None,
    "smoke": Tuning((0.1,)),
}
NOTES = (
    f"*Factors*: γ = {GAMMA:g} for all convolutions. The classifier behind the global average pooling has 1,290 parameters. FedPara sends "
    "9.2 times less than FedAvg, and in the paper 9.9 times less.",
    "*First weights*: He's variance for the composed weight, or, as in the authors' notebook, for each factor by its own fan-in.",
    "*Normalisation* is GroupNorm, as in the paper's VGG16, and the optimizer plain SGD.",
)


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    return runs_of(ROWS, scale, {**SCALE[scale], "model": MODEL, "norm": "group", "optimizer": "sgd"})


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return sizes, traffic and accuracies beside the paper's, and the orderings."""
    return render_of(entries, scale, ROWS, ORDERINGS, *NOTES)
