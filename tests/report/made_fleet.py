"""Hand-made records of a fleet: its rounds, its plan, a dry run and a what-if."""

import json
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from client_records import client_record
from made_costs import made_cost
from made_records import rounds_in
from made_whatif import outcome_with, whatif_with

from edgefl.fleet.budget import Budget
from edgefl.records import ClientRecord, Cost, RoundRecord, Shortfall, Tier, Timing
from edgefl.report.policies import WhatIf
from edgefl.report.results import Result
from edgefl.report.run_rows import TierResult
from edgefl.report.summary import class_rows, participation_rows, tier_rows, totals
from edgefl.server.assignment import Assignment, Attempt, TierPolicy

EVIL = "<script>alert(1)</script><b>&\"'"
SHORT = Shortfall("memory_bytes", 2e6, 1e6, "slow", 0.5)
TITLES = {"fast": "Fast phone", "slow": "Slow phone"}


def outcome(
    client: int, device: str, status: str, parts: tuple[float, float, float] = (1.0, 2.0, 1.0), **more: Any
) -> ClientRecord:
    """Each second costs 10 MACs, a joule on the device and one in the network; 100 bytes go down, 50 up if the upload began."""
    timing = Timing(*parts, 0.75 * sum(parts), 0.25 * sum(parts), sum(parts))
    sent: dict[str, Any] = {"macs": int(10 * sum(parts)), "download_bytes": 100, "upload_bytes": 50 if parts[2] else 0}
    tier = Tier(1.0 if device == "fast" else 0.5)
    if status == "refused":
        return client_record(client, device, "refused", samples=0, refusal=(SHORT,))
    return client_record(client, device, status, tier, timing, **sent, **more)


def record(number: int, *outcomes: ClientRecord, round_s: float = 4.0, clock_s: float = 104.0, **more: Any) -> dict[str, Any]:
    whole = RoundRecord(number, outcomes, round_s, clock_s, {}, 0.5, **more)
    return dict(json.loads(json.dumps(whole.to_json())))


def busy(number: int = 7, clock_s: float = 104.0, start_s: float = 100.0) -> dict[str, Any]:
    """Ten clients: 4 trained, 1 late, 1 of each way of being lost but one, 1 refused."""
    started = [
        outcome(0, "fast", "trained", (1, 1, 1)),
        outcome(1, "fast", "trained", (1, 2, 1)),
        outcome(2, "slow", "trained", (1, 1.5, 1)),
        outcome(3, "slow", "trained", (1, 1.76, 1)),
        outcome(4, "slow", "late", (1, 5, 1)),
        outcome(5, "fast", "dropped", (1, 1, 0.5)),
        outcome(6, "slow", "interrupted", (1, 0.5, 0)),
        outcome(7, "slow", "out_of_memory", (1, 0.25, 0)),
        outcome(8, "fast", "diverged", (1, 1, 1)),
    ]
    outcomes = (*(replace(o, expected=replace(o.expected, start_s=start_s)) for o in started), outcome(9, "slow", "refused"))
    return record(number, *outcomes, clock_s=clock_s, deadline_s=6.0, waited_s=600.0)


def cost(**changes: Any) -> Cost:
    return made_cost(1000, **{"batch_size": 32, "micro_batch": 32, **changes})


def device(name: str) -> Any:
    return SimpleNamespace(name=name, title=TITLES[name], assumed=("power.idle_w",), clock_error=1.25, energy=None)


def a_plan() -> Any:
    """Two classes: the fast one takes the full tier in whole batches, the slow one half of it in micro-batches of 8."""
    refused = (SHORT,)
    full, half, parts = Assignment(Tier(1.0)), Assignment(Tier(0.5)), Assignment(Tier(0.5), 8)
    costs = {full: cost(), half: cost(training_memory_bytes=2_000_000), parts: cost(training_memory_bytes=400_000, micro_batch=8)}
    fast = SimpleNamespace(
        device=device("fast"), share=0.25, clients=1, assignment=full, tier=full.tier, options=(full, half), refusals=(), left_out=False,
        attempts=(Attempt(full, ()), Attempt(half, ())), budget=Budget(memory_bytes=8e6),
    )  # fmt: skip
    slow = SimpleNamespace(
        device=device("slow"), share=0.75, clients=3, assignment=parts, tier=parts.tier, options=(parts,), refusals=refused, left_out=False,
        attempts=(Attempt(half, refused), Attempt(parts, ())), budget=Budget(memory_bytes=1e6),
    )  # fmt: skip
    return SimpleNamespace(
        classes=(fast, slow),
        costs={Tier(1.0): costs[full], Tier(0.5): costs[half]},
        cost=costs.__getitem__,
        timing=lambda device, fit, samples, margin=1.0: Timing(1.0, margin * samples / 10, 1.0, 1.0, 1.0),
        home_of=lambda tier: fast if tier == Tier(1.0) else slow,
        workload=SimpleNamespace(largest_shard=50, mean_shard=20, clock_margin=1.0),
        policy=TierPolicy(),
    )


def dicts(rows: Sequence[Result]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in rows]


def summary_of(rounds: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    plan, lines = a_plan(), rounds_in(rounds)
    results = {Tier(1.0): TierResult(0.9, 0.9, None), Tier(0.5): TierResult(0.8, 0.8, None)}
    names = ("method", "model", "dataset", "fleet", "partition", "objective", "server_optimizer", "codec")
    keys = dict.fromkeys((*names, "conditions", "mode", "enforce"), "some") | {
        "availability": "always",
        "start_hour": 0.0,
        "tier_assignment": "auto",
    }
    keys |= {"permute_labels": False, "dynamic_devices": False, "buffer": None, "over_selection": 1.0, "assumed": []}
    numbers = {"format": 1, "seed": 0, "rounds": len(rounds), "clients": 4, "per_round": 4, "batch_size": 32, "local_epochs": 1}
    return {
        **keys,
        **numbers,
        "global_accuracy": 0.9,
        "deadline_s": None,
        **totals(lines).to_dict(),
        "tiers": dicts(tier_rows(plan, results, lines, False)),
        "classes": dicts(class_rows(plan)),
        "participation": dicts(participation_rows(plan, lines, {"fast": 2, "slow": 2}, {1.0: 0.9, 0.5: 0.8})),
        "accuracy_of": "global",
        "host_stages": {"server": {"wait": 1.0}},
        **changes,
    }


def dry(count: int = 30) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rounds, clock_s = [], 0.0
    for number in range(1, count + 1):
        waited_s = 3600.0 if number % 3 == 0 else 0.0
        clock_s += waited_s + 4.0
        line = busy(number, clock_s, clock_s - 4.0) | {"waited_s": waited_s}
        rounds.append(line if number in (1, count) else {key: value for key, value in line.items() if key != "clients"})
    inclusion = [{"fast": 0.9, "slow": 0.6}, {"fast": 0.8, "slow": 0.2}]
    policies = [
        {"policy": policy, "tiers": [1, 0.5], "round_s": 4.0, "useful_share": 0.5, "inclusion": shares}
        for policy, shares in zip(("auto", "uniform"), inclusion, strict=True)
    ]
    summary = summary_of(rounds, availability="daily", start_hour=22, policies=policies, clients=1_000_000)
    del summary["global_accuracy"]
    summary["participation"] = dicts(participation_rows(a_plan(), rounds_in(rounds), {"fast": 2, "slow": 2}, {}))
    for row in summary["tiers"]:
        row |= {key: None for key in row if "accuracy" in key or key.startswith("measured")}
    return summary, rounds


def whatif() -> WhatIf:
    figures = {"patient": (40.0, 0.9, 0.8), "strict": (10.0, 0.5, 0.1), "poor": (40.0, 0.7, 0.4), "middling": (20.0, 0.8, 0.6)}
    rows = [
        outcome_with(
            label,
            deadline_s=None if label == "patient" else round_s,
            tiers=(1.0, 0.5),
            over_selection=1.3,
            round_s=round_s,
            inclusion=inclusion,
            inclusion_by_class={"fast": 1.0, "slow": weakest},
            weakest="slow",
            weakest_inclusion=weakest,
            wasted_share=1 - inclusion,
            energy_j=7.5,
            rounds_per_hour=3600 / round_s,
            updates=round(500 * inclusion),
        )
        for label, (round_s, inclusion, weakest) in figures.items()
    ]
    return whatif_with(rows, rounds=50, clock_error=1.25, titles=TITLES)
