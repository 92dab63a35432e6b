"""What several methods came to on the same clients: means over seeds, curves over what was spent, and what one accuracy took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgefl import __version__

Json = Mapping[str, Any]

SPENT = ("bytes", "macs", "simulated_s", "energy_j")
"""What a run spends, summed over its rounds; ``simulated_s`` is the clock."""
_ALSO = ("download_bytes", "upload_bytes", "host_s")
_SAME = ("model", "dataset", "fleet", "partition", "rounds", "clients", "per_round", "local_epochs", "batch_size")
_SAME_ADDED = ("objective", "server_optimizer", "codec", "permute_labels", "deadline_s")


@dataclass(frozen=True)
class Played:
    """One finished run: the content of its ``summary.json`` and ``rounds.jsonl``."""

    seed: int
    summary: Json
    rounds: Sequence[Json]


@dataclass(frozen=True)
class Contender:
    """One method of a comparison.

    Attributes:
        label: how it was asked for: ``fedhm``, ``fedavg@0.5``.
        method: its name.
        title: its name as its authors write it.
        tiers_why: why it has the tiers that it has.
        options: the method's own options.
        runs: its finished runs, a seed each.
        failures: seed → why that run failed.
    """

    label: str
    method: str
    title: str
    tiers_why: str
    options: Json
    runs: tuple[Played, ...]
    failures: Mapping[int, str]


def comparison_of(contenders: Sequence[Contender], seeds: Sequence[int], tiers: Sequence[float] | str) -> dict[str, Any]:
    """Return the content of ``compare.json``.

    ``target_accuracy`` is the lowest final accuracy among the methods, each the mean over its seeds. What it took until it was first
    reached is read off the mean curve of each method: the first evaluated round whose mean accuracy is at least that.
    """
    rows = [_row(contender) for contender in contenders]
    target = min((row["accuracy"]["mean"] for row in rows if row["seeds"]), default=None)
    for row in rows:
        row["to_target"] = _reached(row["curve"], target)
    first = next((played.summary for contender in contenders for played in contender.runs), {})
    return {
        "format": 1,
        "edgefl_version": __version__,
        **{key: first.get(key) for key in (*_SAME, *_SAME_ADDED)},
        "seeds": list(seeds),
        "tiers": tiers if isinstance(tiers, str) else list(tiers),
        "target_accuracy": target,
        "methods": rows,
    }


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return mean and sample standard deviation (None of a single value), and the values.

    >>> spread([1.0, 3.0])
    {'mean': 2.0, 'sd': 1.4142135623730951, 'values': [1.0, 3.0]}
    """
    return {
        "mean": statistics.fmean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else None,
        "values": list(values),
    }


def curve_of(runs: Sequence[Played]) -> list[dict[str, Any]]:
    """Return a point per evaluated round: the mean over the runs of accuracy and of what was spent so far, and accuracy's range."""
    sums = [_spent(played.rounds) for played in runs]
    points = []
    for number, record in enumerate(runs[0].rounds if runs else ()):
        if not record["accuracy"]:
            continue
        reached = [float(played.rounds[number]["accuracy"]["global"]) for played in runs]
        spent = {key: statistics.fmean(of_run[number][key] for of_run in sums) for key in SPENT}
        range_ = {"accuracy": statistics.fmean(reached), "lowest": min(reached), "highest": max(reached)}
        points.append({"round": record["round"], **spent, **range_})
    return points


def _spent(rounds: Sequence[Json]) -> list[dict[str, float]]:
    """Return what was spent up to the end of every round."""
    totals, found = dict.fromkeys(SPENT, 0.0), []
    for record in rounds:
        totals["bytes"] += record["download_bytes"] + record["upload_bytes"]
        totals["macs"] += record["macs"]
        totals["energy_j"] += record["energy_j"]
        totals["simulated_s"] = record["clock_s"]
        found.append(dict(totals))
    return found


def _reached(curve: Sequence[Json], target: float | None) -> dict[str, Any] | None:
    """Return round and expenses of the first point with the accuracy ``target``, None where there is none."""
    if target is None:
        return None
    # A mean that is the target itself may differ from it in its last bit.
    found = next((point for point in curve if point["accuracy"] >= target - 1e-12), None)
    return None if found is None else {key: found[key] for key in ("round", *SPENT)}


def _row(contender: Contender) -> dict[str, Any]:
    runs = contender.runs
    start = {
        "label": contender.label,
        "method": contender.method,
        "title": contender.title,
        "options": dict(contender.options),
        "tiers_why": contender.tiers_why,
        "seeds": [played.seed for played in runs],
        "failures": [{"seed": seed, "reason": reason} for seed, reason in contender.failures.items()],
    }
    if not runs:
        nothing = dict.fromkeys(("accuracy_of", "accuracy", *SPENT, *_ALSO))
        of_tiers: dict[str, Any] = {"tier_accuracy": {}, "untrained_tiers": [], "params": {}}
        return {**start, **nothing, "tiers": [], **of_tiers, "curve": [], "uncounted_ops": []}
    last = [played.rounds[-1]["accuracy"] for played in runs]
    tiers = {f"{row['tier']:g}": row for row in runs[0].summary["tiers"]}
    totals = [{**_spent(played.rounds)[-1], **{key: played.summary[key] for key in _ALSO}} for played in runs]
    return {
        **start,
        "tiers": [row["tier"] for row in tiers.values()],
        "accuracy_of": runs[0].summary.get("accuracy_of", "global"),
        "accuracy": spread([float(accuracy["global"]) for accuracy in last]),
        "tier_accuracy": {label: spread([float(accuracy[label]) for accuracy in last]) for label in tiers},
        "untrained_tiers": _untrained(runs, tiers),
        "params": {label: row["params"] for label, row in tiers.items()},
        "curve": curve_of(runs),
        **{key: spread([of_run[key] for of_run in totals]) for key in (*SPENT, *_ALSO)},
        "uncounted_ops": sorted({name for row in tiers.values() for name in row["uncounted_ops"]}),
    }


def _untrained(runs: Sequence[Played], tiers: Mapping[str, Json]) -> list[str]:
    """Return the tiers that no client trained in some run: what an accuracy of theirs says is how well others carry over to them."""
    trained = [{f"{c['tier']:g}" for r in played.rounds for c in r["clients"] if c["status"] == "trained"} for played in runs]
    return [label for label in tiers if any(label not in of_run for of_run in trained)]
