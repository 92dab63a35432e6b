"""Dry runs: which clients take part, how long rounds take, and what is wasted, for populations of any size. No client trains."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from edgefl.config import RunConfig
from edgefl.methods.capabilities import learning
from edgefl.report.dry_page import render_dry
from edgefl.report.policies import ClassUse, PolicyOutcome
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import DrySummary
from edgefl.report.run_rows import PolicyRow
from edgefl.report.summary import class_rows, participation_rows, tier_rows, totals
from edgefl.report.words import begun, counted, groups_of, trained_tiers, useful_and_wasted
from edgefl.run.calendar_rounds import require_rounds
from edgefl.run.feature import merged
from edgefl.run.folder import Notify, OnRound, RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.result import RunResult
from edgefl.run.run import Run, about, left_out
from edgefl.run.trained import without_training
from edgefl.server.light_round import light_round
from edgefl.util.compute import one_thread
from edgefl.util.files import write_bytes, write_json
from edgefl.util.unknown import known_sum

CONFIG = "dry-run.toml"
"""Another name than a run's, because a dry run cannot be resumed."""
LISTED = 3
"""The records of this many first rounds, and of the last round, list every client."""
POLICY_ROUNDS = 30
"""First rounds in which the assignments of tiers are compared: the same for each, and few, because they are simulated again."""


def dry_run(
    config: RunConfig, out: Path | str | None = None, *, on_round: OnRound | None = None, notify: Notify | None = None
) -> RunResult:
    """Simulate a fleet's rounds without training, and write records, summary and report.

    Args:
        config: what to run; see :class:`RunConfig`. Methods with phases that depend on what was learned stay in their first phase.
        out: the folder; None takes the next free ``runs/NNNN-dry-method-dataset``.
        on_round: called with the record of every round.
        notify: called with a line of text for the user, such as what is left out of the data.

    Raises:
        InputError: a name, value or file is wrong, or ``out`` is not empty.
        BudgetError: no device of the fleet fits any tier.

    Example:
        >>> import tempfile
        >>> config = RunConfig(rounds=3, clients=100_000, per_round=50, partition="index:60", deadline_s=60)
        >>> dry_run(config, Path(tempfile.mkdtemp()) / "dry").summary["useful"]["clients"]
        150
    """
    with one_thread():
        run = prepare(config)
        config = run.config
        folder = RunFolder(Path(out) if out is not None else RunFolder.next_free(f"dry-{config.method}-{run.data.name}"))
        folder.check(config, resume=False)
        if notify is not None and (left := left_out(run)):
            notify(left)
        with folder.claimed(config, resume=False):
            folder.start(config, CONFIG)
            return RunResult(folder.path, _played(run, folder, on_round))


def _played(run: Run, folder: RunFolder, on_round: OnRound | None) -> dict[str, Any]:
    """Simulate the rounds into ``folder``, write its files, and return the summary."""
    took_part: list[np.ndarray] = []
    for record in without_training(run, run.config.rounds):
        folder.add_round(record, clients=record.round <= LISTED or record.round == run.config.rounds)
        took_part.append(np.array([c.client for c in record.clients if c.status == "trained"], np.int64))
        if on_round is not None:
            on_round(record)
    rounds = folder.rounds()
    require_rounds(run, len(rounds))
    compared = rounds[:POLICY_ROUNDS]
    (label, _), *others = _assignments(run)
    policies = [outcome_in(label, run, compared), *(outcome_of(name, varied, len(compared)) for name, varied in others)]
    summary = DrySummary(
        **about(run) | {"rounds": len(rounds)},
        **vars(totals(rounds)),
        dry_run=True,
        tiers=tuple(tier_rows(run.plan, {}, rounds, *learning(run.method))),
        classes=tuple(class_rows(run.plan)),
        participation=tuple(participation_rows(run.plan, rounds, _distinct(run, took_part), {})),
        **merged(feature.totals(rounds) for feature in run.features),
        policies=tuple(
            PolicyRow(p.label, p.tiers, p.round_s, p.useful_share, p.inclusion_by_class, len(compared)) for p in policies
        ),
    )
    write_bytes(folder.path / "report.html", render_dry(summary, rounds).encode())
    stored = summary.to_dict()
    write_json(folder.path / "summary.json", stored)
    return stored


def _distinct(run: Run, took_part: Sequence[np.ndarray]) -> dict[str, int]:
    """Return device → how many of its clients trained at least once."""
    population = run.plan.population
    clients = np.unique(np.concatenate(took_part)) if took_part else np.zeros(0, np.int64)
    counts = np.bincount(population.classes(clients), minlength=len(population.fleet.classes)).tolist()
    found = Counter[str]()
    for c, count in zip(population.fleet.classes, counts, strict=True):
        found[c.device.name] += count
    return found


def _assignments(run: Run) -> list[tuple[str, Run]]:
    """Return the run's own assignment of tiers, and those with only its largest or its smallest tier."""
    tiers, how = run.tiers, run.config.tier_assignment
    found = [("each class the largest that fits" if how == "auto" else f"{how}, of those that fit", run)]
    if len(tiers) > 1:
        plain = {"tier_assignment": "auto", "tier_shares": None}
        for which, tier in (("largest", tiers[0]), ("smallest", tiers[-1])):
            found.append((f"everybody the {which}", run.varied(tiers=(tier.ratio,), **plain)))
    return found


def outcome_of(label: str, run: Run, rounds: int) -> PolicyOutcome:
    """Return what a policy makes of the fleet over some rounds: times, and who is included, by device."""
    return outcome_in(label, run, list(map(RoundLine.of, without_training(run, rounds, light_round))))


def outcome_in(label: str, run: Run, lines: Sequence[RoundLine]) -> PolicyOutcome:
    """Return what a policy made of the fleet in its first rounds, from their lines in ``rounds.jsonl``."""
    selected, trained = Counter[str](), Counter[str]()
    groups = groups_of(lines)
    for group in groups:
        selected[group.device] += group.clients
        trained[group.device] += group.clients if group.status == "trained" else 0
    sums = totals(lines)
    devices = dict.fromkeys(c.device.name for c in run.fleet.classes)
    by_class = {device: trained[device] / selected[device] if selected[device] else None for device in devices}
    by_class |= {c.device.name: 0.0 for c in run.fleet.classes if c.left_out}
    known = {device: share for device, share in by_class.items() if share is not None}
    weakest = min(known, key=known.__getitem__, default=None)
    device_s, (low, high) = sums.useful.device_s + sums.wasted.device_s, _hourly(lines)
    return PolicyOutcome(
        label=label,
        tiers=tuple(tier.number for tier in run.tiers),
        deadline_s=run.plan.deadline_s,
        over_selection=run.conditions.over_selection,
        round_s=median(lasted) if (lasted := [line.round_s for line in begun(lines)]) else None,
        inclusion=trained.total() / max(1, selected.total()) * (1 - run.conditions.share_left_out(run.config.clients)),
        inclusion_by_class=by_class,
        useful_share=sums.useful.device_s / device_s if device_s else 0.0,
        wasted_share=sums.wasted.device_s / device_s if device_s else 0.0,
        weakest=weakest,
        weakest_inclusion=known.get(weakest) if weakest else None,
        energy_j=sums.energy_j / sums.useful.clients if sums.useful.clients and sums.energy_j is not None else None,
        rounds_per_hour=3600 * len(lines) / sums.simulated_s if sums.simulated_s else None,
        updates=sums.useful.clients,
        updates_per_hour_low=low,
        updates_per_hour_high=high,
        update_bytes=(sums.download_bytes + sums.upload_bytes) / sums.useful.clients if sums.useful.clients else None,
        ended_by_deadline=_ended_by_deadline(run, lines),
        uses=_uses(run, lines),
        rounds=len(lines),
        largest_trained=max(trained_tiers(groups), default=None),
        **merged(feature.policy(len(lines)) for feature in run.features),
    )


def _uses(run: Run, lines: Sequence[RoundLine]) -> dict[str, ClassUse]:
    """Return device → what all rounds took of its class."""
    clients = Counter[str]()
    devices = {c.device.name: c.device for c in run.plan.classes}
    for c in run.plan.classes:
        clients[c.device.name] += c.clients
    found, groups = {}, groups_of(lines)
    for device, count in clients.items():
        useful, wasted = useful_and_wasted([group for group in groups if group.device == device])
        found[device] = ClassUse(
            clients=count,
            sessions=useful.clients + wasted.clients,
            updates=useful.clients,
            download_bytes=useful.download_bytes + wasted.download_bytes,
            upload_bytes=useful.upload_bytes + wasted.upload_bytes,
            energy_j=known_sum((useful.energy_j, wasted.energy_j)),
            device_s=useful.device_s + wasted.device_s,
            battery_j=devices[device].battery_j,
            metered=devices[device].link.metered,
        )
    return found


def _hourly(lines: Sequence[RoundLine]) -> tuple[float | None, float | None]:
    """Return the range of the hourly rate of useful updates, from the differences between rounds; None for less than two."""
    used = np.array([counted(line.groups)["trained"] for line in lines])
    hours = np.array([line.round_s + line.waited_s for line in lines]) / 3600
    if len(used) < 2 or not hours.sum():
        return None, None
    rate = used.sum() / hours.sum()
    spread = 1.96 * math.sqrt(len(used) / (len(used) - 1) * ((used - rate * hours) ** 2).sum()) / hours.sum()
    return max(0.0, float(rate - spread)), float(rate + spread)


def _ended_by_deadline(run: Run, lines: Sequence[RoundLine]) -> int | None:
    """Return how many rounds the deadline ended or refused a class in; None without a deadline."""
    limit_s = run.plan.deadline_s
    if limit_s is None:
        return None
    if any(refusal.budget == "deadline_s" for c in run.plan.classes for refusal in c.refusals):
        return len(lines)
    return sum(line.round_s >= limit_s for line in lines)
