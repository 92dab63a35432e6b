"""What attacks do to each method, and what defences are worth against them, beyond the papers: methods × attacks × defences."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from counters.markdown import table

from edgefl.contrib.attacks.adversary import lacks_of
from edgefl.data.digits import digits
from edgefl.methods.axes import conflict
from edgefl.methods.create import create
from papers.captions import protocol
from papers.paired import capacity
from papers.runs import PROFILE, SMALLEST, UNCLIPPED, Entry, Run, Scale, seeded
from papers.show import Figures, Measure, at_tier
from papers.tuning import Tuning

TITLE = "Attacks and defences (beyond the papers)"
SEEDS: dict[Scale, tuple[int, ...]] = {"full": (0, 1, 2), "quick": (0,), "smoke": (0,)}
TUNING: dict[Scale, Tuning | None] = dict.fromkeys(SEEDS)
"""One rate for all: what counts is the difference to the same method without an attack, and without a defence."""
METHODS = {
    "FedAvg": "fedavg", "FedHM": "fedhm", "HeteroFL": "heterofl", "FLANC": "flanc", "PriSM": "prism", "FedPara": "fedpara",
}  # fmt: skip
ONE_SIZE = ("fedavg", "fedpara")
ATTACKS = {
    "no attack": None,
    "sign-flip ×10, 10 %": "sign-flip:0.1(scale=10)",
    "inflated samples ×100, flipped, 10 %": "inflated:0.1(flip=True)",
    "backdoor ×5, 10 %": "backdoor:0.1(scale=5)",
    "label-flip, 20 %": "label-flip:0.2",
    "free-rider, 20 %": "free-rider:0.2",
}
SMALL = ("no attack", "sign-flip ×10, 10 %")
DEFENCES: dict[str, dict[str, Any]] = {
    "no defence": {},
    "clip 1": {"clip_norm": 1.0},
    "clip adaptive": {"clip_norm": "adaptive"},
    "median": {"defence": "median"},
    "trimmed mean": {"defence": "trimmed-mean"},
    "multi-Krum": {"defence": "multi-krum"},
    "norm filter": {"defence": "norm-filter"},
}
INFLATED = next(label for label in ATTACKS if label.startswith("inflated"))
CAP = "sample cap"
UNHARMED = "no attack, no defence"
REFUSED, MISSING = "refused", "not run"
ROUNDS: dict[Scale, int] = {"full": 15, "quick": 15, "smoke": 1}


def runs(scale: Scale) -> list[Run]:
    """Return every run that makes sense, each once per seed: attacks in the order in which they tell most."""
    found = []
    for attack, adversary in ATTACKS.items() if scale != "smoke" else [(key, ATTACKS[key]) for key in SMALL]:
        for defence, settings in defences_of(attack).items():
            for row, method in METHODS.items():
                if not refusal(method, adversary, settings.get("defence")):
                    attacked = {} if adversary is None else {"adversary": adversary}
                    cell = {**_common(method, scale), **attacked, **settings}
                    found.append(Run(row, f"{attack}, {defence}", cell))
    smallest = {**_common("origdrop", scale), "tiers": (0.25,)}
    return seeded([*found, Run(SMALLEST, UNHARMED, smallest)], SEEDS[scale])


def defences_of(attack: str) -> dict[str, dict[str, Any]]:
    """Return the defences of an attack: only inflated samples meet a cap, and only there "no defence" needs to switch it off."""
    if attack != INFLATED:
        return DEFENCES
    return {**{label: {"sample_cap": "off", **own} for label, own in DEFENCES.items()}, CAP: {"sample_cap": "auto"}}


@functools.cache
def refusal(method: str, adversary: str | None, defence: str | None) -> str:
    """Return why a method refuses an attack or a defence; "" if it takes both."""
    made = create(method)
    attack = "" if adversary is None else conflict(lacks_of(digits(), False, made), "adversary", adversary.partition(":")[0])
    return attack or ("" if defence is None else conflict(made.lacks, "defence", defence))


def _common(method: str, scale: Scale) -> dict[str, Any]:
    rounds = ROUNDS[scale]
    return {
        "method": method,
        **(UNCLIPPED if method == "heterofl" else {}),
        "dataset": "digits",
        "model": "cnn-tiny",
        "clients": 20,
        "per_round": 20,
        "rounds": rounds,
        "eval_every": rounds,
        "local_epochs": 1,
        "batch_size": 16,
        "partition": "dirichlet:0.5",
        "profile": PROFILE,
        "tiers": (1.0,) if method in ONE_SIZE else (1.0, 0.5, 0.25),
        "tier_assignment": "uniform",
        "optimizer": "momentum",
        "lr": 0.05,
        **({"data_share": 0.3} if scale == "smoke" else {}),
    }


def success(figures: Any) -> float:
    """Return the share of held-out samples under attack that get the label that the attacker wants."""
    return float(figures["attack_success"]["global"])


def render(entries: Sequence[Entry], scale: Scale) -> str:
    """Return a table per attack: methods by defences; under it the success of attacks that want a label."""
    found = Figures(entries)
    wanted = len(SEEDS[scale])
    tables = []
    for attack in ATTACKS:
        tables.append(f"**{attack[0].upper()}{attack[1:]}**: accuracy in percent.\n\n{_table(found, attack, at_tier(), wanted)}")
        if attack.startswith(("backdoor", "label-flip")):
            said = "share of attacked held-out samples that get the attacker's label, in percent"
            tables.append(f"{attack[0].upper()}{attack[1:]}: {said}.\n\n{_table(found, attack, success, wanted)}")
    text = "\n\n".join(tables)
    notes = [
        "*Clients*: all take part in every round, with uneven labels (`dirichlet:0.5`) and without losses.",
        "*Tiers*: 1, 0.5 and 0.25, a third of the clients each. FedAvg and FedPara train one size.",
        "*HeteroFL* does not clip gradients (`--clip-gradient none`), as the other methods.",
        "*Accuracy* is that of the server's largest model after the last round.",
        "*Defences*: `trimmed-mean` and `multi-krum` expect 20 % of hostile clients.",
        f"{capacity(*(found.values(row, UNHARMED, at_tier()) for row in ('FedAvg', SMALLEST)))} The full network alone is FedAvg.",
        f"*{REFUSED}*: the method and the choice make no sense together.",
        *([f"*n of {wanted}*: the seeds of a cell that has fewer than {wanted}."] if f" of {wanted})" in text else []),
        *([f"*{MISSING}*: no run yet."] if MISSING in text else []),
    ]
    return f"{protocol(entries, scale, *notes)}\n\n{text}"


def _table(found: Figures, attack: str, read: Measure, wanted: int) -> str:
    defences = defences_of(attack)
    rows = [
        [row, *(_cell(found, row, method, attack, label, own, read, wanted) for label, own in defences.items())]
        for row, method in METHODS.items()
    ]
    return table(["", *defences], rows)


def _cell(
    found: Figures, row: str, method: str, attack: str, defence: str, settings: dict[str, Any], read: Measure, wanted: int
) -> str:
    if refusal(method, ATTACKS[attack], settings.get("defence")):
        return REFUSED
    column = f"{attack}, {defence}"
    seeds = len(found.values(row, column, read))
    if not seeds:
        return MISSING
    return found.measured(row, column, read) + (f" ({seeds} of {wanted})" if seeds < wanted else "")
