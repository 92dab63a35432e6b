"""Comparisons of hand-made runs."""

import json
from dataclasses import replace
from typing import Any

from made_records import rounds_in, summary_in

from edgefl.report.comparison import ComparisonSummary, Failure, MethodResult, Played, comparison_of
from edgefl.report.results import adapter


def played(
    seed: int, accuracies: list[float], *, sent: int = 100, tiers: tuple[float, ...] = (1, 0.5), step_s: float = 2.0
) -> Played:
    """A run whose every round sends ``sent`` bytes each way, takes 10·sent MACs, ``step_s`` and 3 J; the second tier is 0.1 worse."""
    used = {"device": "phone", "download_bytes": sent, "upload_bytes": sent, "energy_j": 3.0, "download_s": 1.0}
    clients = [{"client": at, "status": "trained", "tier": tier, **used} for at, tier in enumerate(tiers)]
    rounds = []
    for number, value in enumerate(accuracies, 1):
        accuracy = {"global": value} | {f"{tier:g}": value - 0.1 * at for at, tier in enumerate(tiers)}
        spent = {"download_bytes": sent, "upload_bytes": sent, "macs": 10 * sent, "energy_j": 3.0, "clock_s": step_s * number}
        rounds.append({"round": number, "accuracy": accuracy if value >= 0 else {}, "clients": clients, **spent})
    rows = [{"tier": tier, "params": int(1000 * tier), "uncounted_ops": []} for tier in tiers]
    about = {"model": "mlp", "dataset": "digits", "fleet": "phone", "rounds": len(rounds), "accuracy_of": "global"}
    totals = {"download_bytes": sent * len(rounds), "upload_bytes": sent * len(rounds), "host_s": 1.0}
    sessions = {"trained": len(tiers) * len(rounds)}
    classes = [{"device": "phone", "title": "Phone", "clients": len(tiers), "tier": tiers[-1], "statuses": sessions}]
    summary = {**about, **totals, "tiers": rows, "participation": classes}
    return Played(seed, summary_in(summary), rounds_in(rounds))


def with_summary(run: Played, **changes: Any) -> Played:
    """The run with other values in its summary."""
    return replace(run, summary=replace(run.summary, **changes))


def without_updates(run: Played) -> Played:
    """The run of two tiers, of which no client trained the second."""
    first, second = run.summary.tiers
    return with_summary(run, tiers=(first, replace(second, updates=0)))


def contender(label: str, *runs: Played, failures: dict[int, str] | None = None) -> tuple[MethodResult, tuple[Played, ...]]:
    failed = tuple(Failure(seed, reason) for seed, reason in (failures or {}).items())
    return MethodResult(label=label, method=label, title=label.title(), options={}, tiers_why="because", failures=failed), runs


def two(**asked: Any) -> dict[str, Any]:
    """A comparison of a quick method with two seeds and a cheap one with one tier, of which one seed failed."""
    quick = contender("quick", played(0, [0.5, 0.7, 0.9]), played(1, [0.3, 0.9, 0.8]))
    cheap = contender(
        "cheap", played(0, [0.2, 0.4, 0.6], sent=10, tiers=(0.5,)), failures={1: "no device fits\n  needs 2, has 1"}
    )
    return comparison_of([quick, cheap], [0, 1], (1.0, 0.5), rank_by="global", **asked).to_dict()


def of_json(summary: dict[str, Any]) -> ComparisonSummary:
    """A comparison read from the content of its ``compare.json``, as a finished one is."""
    found: ComparisonSummary = adapter(ComparisonSummary).validate_json(json.dumps(summary))
    return found
