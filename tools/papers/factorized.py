"""Factorized-FL, Table 1: clients that name the classes alike, and clients that each have an order of their own for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counters.markdown import table

from papers import show
from papers.captions import protocol, work
from papers.paired import capacity
from papers.runs import PROFILE, SMALLEST, Entry, Run, Scale, Settings, seeded
from papers.show import Figures, before_and_after, orderings
from papers.tuning import Tuning

TITLE = "Labels in an order of one's own (Factorized-FL, Table 1)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0, 1, 2), "smoke": (0,)}
HOME = {"method_options": {"layers": 1}, "method": "fedper"}
KINDS = {"Factorized-FL": "factorized-fl", "Factorized-FL β": "factorized-fl-beta"}
FORMS: dict[str, dict[str, Any]] = {
    "": {"reshape": "flat", "penalty": 0.0},
    ", penalty": {"reshape": "flat", "penalty": 5e-4},
    ", filters": {"reshape": "filters", "penalty": 0.0},
    ", as printed": {"reshape": "filters", "penalty": 5e-4},
}
"""Ending of a row → how kernels are reshaped, and whether the penalty on μ is trained: first the authors' code, last the paper's text."""
ROWS: dict[str, tuple[Settings, Settings]] = {
    "Stand-alone": ({"method": "standalone", "tiers": (1.0,)}, {"method": "standalone", "tiers": (1.0,)}),
    "FedAvg": ({"method": "fedavg"}, HOME),
    "FedProx": ({"method": "fedavg", "objective": "prox"}, {**HOME, "objective": "prox"}),
    "Clustered-FL": (
        {"method": "clustered-fl"},
        {"method": "clustered-fl", "method_options": {"personal_classifier": True}},
    ),
    "pFedPara": ({"method": "pfedpara"}, {"method": "pfedpara", "method_options": {"personal_classifier": True}}),
    **{
        f"{kind}{ending}": (
            {"method": name, "method_options": {"personal_classifier": False, **form}},
            {"method": name, "method_options": form},
        )
        for kind, name in KINDS.items()
        for ending, form in FORMS.items()
    },
    SMALLEST: ({"method": "origdrop", "tiers": (0.25,)}, {**HOME, "tiers": (0.25,)}),
}
"""Row → its own settings where labels are alike, and where they are permuted: the paper then leaves the classifiers on the clients."""
PLAIN, BETA = KINDS
PRINTED = list(FORMS)[-1]
ORDERINGS = (
    *((BETA, row) for row in (PLAIN, "FedAvg", "pFedPara", "Stand-alone")),
    (PLAIN, "Stand-alone"),
    *((kind, f"{kind}{ending}") for kind in KINDS for ending in list(FORMS)[1:]),
)
PAPER = {
    "Stand-alone": ("64.31", "63.93", "–"),
    "FedAvg": ("70.28", "65.31", "20.39 GB"),
    "FedProx": ("70.54", "66.28", "20.39 GB"),
    "Clustered-FL": ("69.48", "65.77", "20.39 GB"),
    "pFedPara": ("67.96", "65.12", "7.4 GB"),
    "Factorized-FL": ("66.97", "67.91", "0.32 GB"),
    "Factorized-FL β": ("76.26", "70.59", "18.25 GB"),
}
"""Row → standard IID, permuted IID, traffic (CIFAR-10, ResNet-9)."""
PAPER_WORK = 50 * 5
"""Rounds times local epochs."""
SCALE: dict[Scale, dict[str, Any]] = {
    "full": {"rounds": 50, "local_epochs": 5, "batch_size": 16},
    "quick": {"rounds": 8, "local_epochs": 2, "batch_size": 16, "lr": 0.02},
    "smoke": {"rounds": 1, "local_epochs": 1, "batch_size": 16, "data_share": 0.1},
}
"""Full scale has the rounds and epochs of the paper; its batch of 256 is more than the 72 digits of a client."""
COLORS = "three channels"
TASKS: dict[str, Settings] = {
    "IID": {"dataset": "digits"},
    "IID, permuted": {"dataset": "digits", "permute_labels": True},
    COLORS: {"dataset": "digits-edges"},
}
"""With one input channel, a rank-1 first layer has a single filter, up to its sign, in all of its channels."""
COLUMNS: dict[Scale, tuple[str, ...]] = {"full": tuple(TASKS), "quick": tuple(TASKS)[:2], "smoke": tuple(TASKS)}
TUNING: dict[Scale, Tuning | None] = {
    "full": Tuning((0.01, 0.003, 0.001, 0.03), column="IID", common=True),
    "quick": None,
    "smoke": Tuning((0.01, 0.003), column="IID", common=True),
}
"""One rate for all methods, as in the paper's section C.3."""


def runs(scale: Scale) -> list[Run]:
    """Return every run, each once per seed."""
    common: dict[str, Any] = {
        **SCALE[scale],
        "profile": PROFILE,
        "model": "cnn-digits",
        "clients": 20,
        "per_round": 20,
        "optimizer": "momentum",
        "weight_decay": 1e-6,
        "partition": "iid",
        "eval_every": SCALE[scale]["rounds"],
    }
    found = []
    for column in COLUMNS[scale]:
        for row, (alike, permuted) in ROWS.items():
            own = permuted if "permute_labels" in TASKS[column] else alike
            found.append(Run(row, column, {**common, **TASKS[column], **own}, local=True))
    return seeded(found, SEEDS[scale])


def kept(figures: Mapping[str, Any]) -> float:
    """Return the share of the entries of μ that clients do not prune."""
    return float(figures["kept"])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return accuracies with labels alike and permuted, and all bytes of a run, beside the paper's."""
    found = Figures(entries)
    columns = COLUMNS[scale]
    lines = []
    for row in ROWS:
        standard, permuted, traffic = PAPER.get(row, ("–", "–", "–"))
        accuracies = [text for column in columns for text in found.local(row, column)]
        own = [found.measured(row, "IID", kept), found.traffic(row, "IID")]
        lines.append([row, *accuracies, *own, standard, permuted, traffic])
    heads = [head for column in columns for head in (column, "after training")]
    titles = [work(entries, PAPER_WORK), *heads, "μ kept", "bytes, all", "paper: IID", "permuted", "bytes"]
    alone = {column: found.alone(column, "FedAvg", SMALLEST, show.local) for column in columns}
    sentences = [f"- {column}. {capacity(*of)}" for column, of in alone.items()]
    return "\n\n".join(
        [
            protocol(
                entries,
                scale,
                show.BEFORE_AND_AFTER,
                "*Labels* are the client's own. With permuted labels the classifier stays on the client, as in the paper.",
                "*Three channels*: the digits, and their differences to the right and down.",
                "*Factorized-FL*: kernels are reshaped as in the authors' code, which also drops entries of μ below 5e-4. *Penalty*: "
                "clients train the penalty on μ as well. *Filters*: every filter is a multiple of u. *As printed*: both, as in the text.",
                "*μ kept*: the share of its entries that are not dropped, mean over clients, on IID clients.",
                "*Bytes*: every tensor is sent as it is. The entries of μ that β drops cost nothing under `--codec sparse` only.",
                "*Paper*: CIFAR-10, ResNet-9, 50 rounds of 5 epochs. For pFedPara it prints 7.4 GB after 50 rounds and 15.98 GB after 100, "
                "which contradict each other. edgefl's pFedPara at γ = .5 sends 3.85 GB there, and 7.64 GB if both inner weights travel.",
            ),
            table(titles, lines),
            "\n".join([*sentences, "- The full network alone is FedAvg."]),
            orderings(found, ORDERINGS, before_and_after(columns)),
        ]
    )
