"""Compares policies, such as deadlines, tiers and samplers, on simulated rounds, without training, also with clocks that are wrong."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgefl.config import RunConfig, changed
from edgefl.config.fleet import FleetKeys, HostKeys
from edgefl.config.group import groups
from edgefl.config.rates import SCHEDULES, follows_rounds
from edgefl.config.task import RoundsKeys
from edgefl.errors import ConfigError, InputError
from edgefl.fleet.resolve import with_class_limits
from edgefl.registry import compared_keys, key_groups
from edgefl.report.policies import TARGET_UPDATES, ClassNeed, PolicyOutcome, WhatIf
from edgefl.report.required import NO_GOAL, Goal, required
from edgefl.report.results import Results
from edgefl.report.run_files import read_rounds
from edgefl.report.surrogate import judged, with_accuracy
from edgefl.report.words import budget_name
from edgefl.run.auto_tiers import chosen_tiers
from edgefl.run.folder import RunFolder
from edgefl.run.forks import in_forks
from edgefl.run.policy_clock import MANY_SESSIONS, Simulated, policy_draws
from edgefl.run.policy_reach import policy_outcome
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.util.compute import one_thread
from edgefl.util.units import human_budget

OnPolicy = Callable[[str], None]
_POLICY = {
    "profile",
    *chain.from_iterable(key_groups.each("of_policies")),
    *FleetKeys.model_fields,
    *RoundsKeys.model_fields,
    *HostKeys.model_fields,
}
_VARIED = _POLICY - {*compared_keys(), "mode", "staleness_power"}
"""Keys that may differ from those of the run whose accuracies are read: who takes part, and when. Other tiers and other noise are told
apart policy by policy."""
_OF_ALL = "profile", "clients", "rounds", "rounds_per_day", "seed"
"""Keys that no policy has for itself: their devices and days would not be comparable."""
_LISTED = "deadline_s", "tiers", "over_selection", "target_epsilon"
_BY_HASH = {"dataset": "data", "weights": "weights"}


def whatif(
    config: RunConfig,
    deadlines_s: Sequence[float] = (),
    tiers: Sequence[tuple[float, ...]] = (),
    over_selections: Sequence[float] = (),
    target_epsilons: Sequence[float] = (),
    *,
    vary: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    run_folder: Path | str | None = None,
    target_accuracy: float | None = None,
    target_updates: int = TARGET_UPDATES,
    goal: Goal = NO_GOAL,
    on_policy: OnPolicy | None = None,
) -> WhatIf:
    """Return the outcome of every combination of these policies, over ``config.rounds`` rounds each.

    Args:
        config: the run, with policies that are varied.
        deadlines_s: seconds; empty for the fleet's own deadline.
        tiers: ratios, largest first; empty for the run's own.
        over_selections: clients selected per update wanted; empty for the run's own.
        target_epsilons: largest ε of a run with noise; empty for the run's own.
        vary: any other key of the configuration → its values, such as ``{"sampler": ("uniform", "oort"), "per_round": (50, 100)}``.
            ``DEVICE.KEY`` is a limit of a class, such as ``{"gateway.largest_tier": (0, 0.5)}``; 0 leaves the class out.
        run_folder: a finished run that trains the same: only who takes part and when may differ. Accuracies are read from its curve. None:
            no accuracies. :mod:`edgefl.report.surrogate` says what that assumes.
        target_accuracy: share in (0, 1]; the time and energy until then are shown; None: a point below the run's best.
        target_updates: under a calendar, the days until each class has given so many useful updates are shown.
        goal: what is required of a policy, such as "gateway >= 20 %", and which figure shall be small.
        on_policy: called with the label of every policy before its rounds are simulated.

    Raises:
        InputError: a name, value or file is wrong, or a policy cannot run; the message names the policy.

    Example:
        >>> rows = whatif(RunConfig(rounds=3), deadlines_s=(0.2, 5)).rows
        >>> rows[0].inclusion <= rows[1].inclusion
        True
    """
    varied = dict.fromkeys(
        product(deadlines_s or (None,), tiers or (None,), over_selections or (None,), target_epsilons or (None,))
    )
    several = {**dict(zip(_LISTED, (deadlines_s, tiers, over_selections, target_epsilons), strict=True)), **vary}
    _check_varied(vary)
    named = {key for key, values in several.items() if len(values) > 1} or set(several)
    if target_epsilons:
        config = RunConfig.of({**config.model_dump(), "target_epsilon": target_epsilons[0], "noise_multiplier": None})
    source = None if run_folder is None else (Path(run_folder), with_accuracy(Path(run_folder)))
    policies, rows, rounds = list[tuple[str, Run]](), list[PolicyOutcome](), list[Simulated]()
    with one_thread():
        combined = [dict(zip(vary, values, strict=True)) for values in product(*vary.values())]
        known: dict[str, Run] = {}
        runs = [(others, _prepared(config, others, known)) for others in combined]
        if source is not None:
            for _, run in runs:
                _check_same(RunFolder(source[0]), run.config)
        run_of_all = runs[0][1]
        titles = {c.device.name: c.device.title for c in run_of_all.fleet.classes}
        fleet = run_of_all.fleet
        requirements = goal.resolved(titles, run_of_all.conditions.calendar is not None, fleet.prices is not None)
        for policy, (others, run) in product(varied, runs):
            changes: dict[str, Any] = {key: value for key, value in zip(_LISTED, policy, strict=True) if value is not None}
            label = _label({key: value for key, value in {**changes, **others}.items() if key in named})
            try:
                policies.append((label, _policy(run, config, changes)))
            except ConfigError as refusal:
                raise ConfigError(f"policy “{label}”: {refusal}") from None
        # All are valid.
        simulated = [partial(_simulated, label, policy, config.rounds, target_updates) for label, policy in policies]
        asked_all = sum(config.rounds * policy.per_round for _, policy in policies)
        played = in_forks(simulated, worth=asked_all > MANY_SESSIONS)
        for label, _ in policies:
            if on_policy is not None:
                on_policy(label)
            row, its_rounds = next(played)
            rows.append(row)
            rounds.append(its_rounds)
    shown = {
        key: getattr(run_of_all.config, key) for key in ("profile", "rounds", "clients", "per_round", "seed", "clock_margin")
    }
    shown["method"] = ", ".join(dict.fromkeys(run.config.method for _, run in runs))
    error = max(c.device.clock_error for c in fleet.classes)
    found = WhatIf(**shown, clock_error=error, titles=titles, rows=Results(rows))
    if (calendar := run_of_all.conditions.calendar) is not None:
        found = replace(found, calendar=str(calendar), rounds_per_day=calendar.rounds_per_day, target_updates=target_updates)
    found = replace(found, fleet_title=fleet.title, needs=_needs([policy for _, policy in policies], rows))
    if goal != NO_GOAL:
        found = replace(found, required=required(requirements, goal.minimize, found))
    if source is None:
        return replace(found, clock=policy_draws(found.rows, rounds, fleet))
    folder, summary = source
    surrogate = judged(folder.name, summary, read_rounds(folder / "rounds.jsonl"), found.rows, target_accuracy)
    return replace(found, surrogate=surrogate, clock=policy_draws(found.rows, rounds, fleet, surrogate))


def _simulated(label: str, policy: Run, rounds: int, target_updates: int) -> tuple[PolicyOutcome, Simulated]:
    """Return what a policy makes of the fleet, and its rounds."""
    row, played = policy_outcome(label, policy, rounds, target_updates)
    return row, Simulated(() if policy.config.mode == "async" else [of.timed for of in played], policy.per_round)


def _needs(policies: Sequence[Run], rows: Sequence[PolicyOutcome]) -> dict[str, ClassNeed]:
    """Return device → what its sessions need, of the devices of which no session trained under any policy."""
    found = {}
    for place, of in enumerate(policies[0].fleet.classes):
        plans = [policy.plan for policy in policies if not policy.fleet.classes[place].left_out]
        if not plans or any(row.inclusion_by_class.get(of.device.name) for row in rows):
            continue
        plan = min(plans, key=lambda plan: min(plan.costs))
        tier, c = min(plan.costs), plan.classes[place]
        timing = plan.timing(c.device, tier, plan.workload.mean_shard)
        short = [str(refusal) for refusal in c.refusals if refusal.budget != "deadline_s" and refusal.tier == tier.ratio]
        found[c.device.name] = ClassNeed(
            tier.number, timing.total_s, timing.total_s - timing.train_s, c.device.link.title, "; ".join(short)
        )
    return found


def _check_varied(vary: Mapping[str, Sequence[Any]]) -> None:
    """Raise :class:`ConfigError` for a key or a value of ``vary`` that is wrong, or for a value that comes twice."""
    for key, values in vary.items():
        if key in _OF_ALL or key in _LISTED:
            why = "has a list of its own" if key in _LISTED else "is the same for all policies"
            raise ConfigError(f"vary: {key} {why}; vary another key, such as sampler or per_round")
        if not values or isinstance(values, str):
            raise ConfigError(f"vary: {key}: expected a list of values, got {values!r}")
        if twice := [value for value in values if list(values).count(value) > 1]:
            raise ConfigError(f"vary: {key}: {twice[0]} comes twice, expected each value once")
        for value in values if not _of_class(key) else ():
            RunConfig.of({key: value}, "vary")


def _of_class(key: str) -> bool:
    """Return whether a key is a limit of a class of the fleet, such as ``gateway.largest_tier``."""
    return "." in key


def _prepared(config: RunConfig, others: Mapping[str, Any], known: dict[str, Run]) -> Run:
    """Return the run with other values of some keys; ``known`` has the runs of the keys that were prepared before."""
    limits = {key: value for key, value in others.items() if _of_class(key)}
    keys = {key: value for key, value in others.items() if key not in limits}
    try:
        run = known.get(str(keys)) or prepare(RunConfig.of({**config.model_dump(), **keys}), required=False)
    except ConfigError as refusal:
        if not others:
            raise
        raise ConfigError(f"policy “{_label(others)}”: {refusal}") from None
    known[str(keys)] = run
    return replace(run, fleet=with_class_limits(run.fleet, limits)) if limits else run


def _policy(run: Run, config: RunConfig, changes: dict[str, Any]) -> Run:
    """Return ``run``, which was prepared from ``config``, under a policy."""
    if config.tiers == "auto" and "tiers" not in changes:
        policy = run.varied(**changes)
        changes = {**changes, "tiers": chosen_tiers(policy.config, policy.fleet, policy.clients, policy.features)}
    for group in groups().values():
        changes = {**changes, **group.unresolved(config)}
    return run.varied(**changes)


def _check_same(folder: RunFolder, config: RunConfig) -> None:
    """Raise :class:`InputError` unless the run in a folder trained what the policies, of a resolved configuration, are about."""
    before, where = folder.config(), folder.path
    then, now = (dict[Any, str](of.sources or {}) for of in (before, config))
    # With some schedules, the rate of a round follows from the number of rounds.
    varied = _VARIED if not any(follows_rounds(getattr(config, key)) for key in SCHEDULES) else _VARIED - {"rounds"}
    for key in changed(before, config):
        content = then.get(_BY_HASH.get(key))
        if key not in varied and (content is None or content != now.get(_BY_HASH.get(key))):
            value, other = (getattr(of, key) if getattr(of, key) is not None else "none" for of in (before, config))
            raise InputError(f"{where}: its {key.replace('_', ' ')} is {value}, that of the policies {other}; give the same")
    for kind in ("data", "weights", "model", "loss", "metric", "lr_schedule"):
        if then.get(kind) != now.get(kind):
            raise InputError(f"{where}: its {kind} has changed since it trained; restore the file, or give another run")


def _limit_words(limit: str, value: Any) -> str:
    if limit == "largest_tier":
        return f"at most tier {value:g}" if value else "left out"
    return f"{budget_name(limit.removeprefix('round_'))} {human_budget(limit, value)}"


def _label(changes: Mapping[str, Any]) -> str:
    texts = {"deadline_s": "{:g} s", "over_selection": "{:g} × asked", "target_epsilon": "ε {:g}"}
    parts = []
    for key, value in changes.items():
        device, _, limit = key.rpartition(".")
        if device:
            parts.append(f"{device} {_limit_words(limit, value)}")
        elif key in texts:
            parts.append(texts[key].format(value))
        else:
            listed = (
                ", ".join(f"{of:g}" if isinstance(of, float) else str(of) for of in value) if isinstance(value, tuple) else value
            )
            parts.append(f"{key.replace('_', ' ')} {listed}")
    return " · ".join(parts) or "as configured"
