"""What if the deadline, the tiers or the over-selection were others: each policy in turn, without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from edgefl.config import RunConfig
from edgefl.run.dry_run import outcome_of
from edgefl.run.prepare import chosen_tiers, prepare
from edgefl.util.threads import one_thread

OnPolicy = Callable[[str], None]


def whatif(
    config: RunConfig,
    deadlines_s: Sequence[float] = (),
    tiers: Sequence[tuple[float, ...]] = (),
    over_selections: Sequence[float] = (),
    *,
    on_policy: OnPolicy | None = None,
) -> dict[str, Any]:
    """Return what every combination of policies makes of a fleet, over ``config.rounds`` rounds each.

    Args:
        config: the run whose policies are varied.
        deadlines_s: seconds; none stands for the fleet's own deadline.
        tiers: ratios, largest first; none stands for the run's own.
        over_selections: clients asked for each one wanted; none stands for the run's own.
        on_policy: called with the label of every policy before it is tried.

    Returns:
        ``profile``, and ``rows``: per policy its label, deadline, tiers and over-selection, the median ``round_s``, which share of
        the sessions trained (``inclusion``), by class and of the ``weakest`` class, the ``wasted_share`` of the devices' time, joules
        on devices per useful update, and rounds an hour.

    Raises:
        InputError: a name, value or file is wrong.

    Example:
        >>> rows = whatif(RunConfig(rounds=3), deadlines_s=(0.2, 5))["rows"]
        >>> rows[0]["inclusion"] <= rows[1]["inclusion"]
        True
    """
    varied = dict.fromkeys(product(deadlines_s or (None,), tiers or (None,), over_selections or (None,)))
    rows = []
    with one_thread():
        run = prepare(config, required=False)
        for deadline_s, ratios, asked in varied:
            given = {"deadline_s": deadline_s, "tiers": ratios, "over_selection": asked}
            changes = {key: value for key, value in given.items() if value is not None}
            label = _label(changes)
            if on_policy is not None:
                on_policy(label)
            if config.tiers == "auto" and "tiers" not in changes:
                one = run.varied(**changes)
                changes["tiers"] = chosen_tiers(one.config, one.fleet, one.architecture, one.plan.training, one.clients)
            rows.append(outcome_of(label, run.varied(**changes), config.rounds))
    titles = {c.device.name: c.device.title for c in run.fleet.classes}
    keys = ("profile", "method", "rounds", "clients", "per_round", "seed")
    return {**{key: getattr(run.config, key) for key in keys}, "titles": titles, "rows": rows}


def _label(changes: dict[str, Any]) -> str:
    parts = []
    if "deadline_s" in changes:
        parts.append(f"{changes['deadline_s']:g} s")
    if "tiers" in changes:
        parts.append("tiers " + ", ".join(f"{ratio:g}" for ratio in changes["tiers"]))
    if "over_selection" in changes:
        parts.append(f"{changes['over_selection']:g} × asked")
    return " · ".join(parts) or "as configured"
