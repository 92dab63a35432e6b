"""A comparison under the error of the devices' clocks: which method is the best if seconds of training are not what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgefl.fleet.clock import Draws, power_of
from edgefl.report.clock_draws import ClockDraws, clock_draws
from edgefl.report.evaluated import CountedRun, RankBy
from edgefl.report.retimed import Retimed, retimed
from edgefl.report.run_budget import RunBudget
from edgefl.report.run_files import RunSummary


@dataclass(frozen=True)
class DeviceClock:
    """What is known of a device's clock.

    Attributes:
        error: its seconds of training may be wrong by this factor.
        training_w: watts while it trains; None if its energy is unknown.
        power_error: they may be wrong by this factor.
    """

    title: str
    error: float
    training_w: float | None = None
    power_error: float | None = None


def clocks_of(summary: RunSummary) -> dict[str, DeviceClock]:
    """Return device → its clock; nothing if rounds overlap, which are not timed again."""
    if summary.mode == "async":
        return {}
    found = {}
    for row in summary.classes:
        watts = row.idle_w if row.training_w is None else row.training_w  # files without watts of training
        found[row.device] = DeviceClock(row.title, row.clock_error, watts, row.power_error)
    return found


def comparison_draws(
    methods: Mapping[str, Sequence[CountedRun]], budget: RunBudget, rank_by: RankBy, sign: int, clocks: Mapping[str, DeviceClock]
) -> ClockDraws | None:
    """Return how often each method has the best mean within the budget under draws of the clocks' errors, which all methods share.

    None if no seconds decide: there is neither a deadline nor a budget of seconds or joules, or nothing is known of the clocks.
    """
    runs = [run for own in methods.values() for run in own]
    deadline = any(line.deadline_s is not None for run in runs for line in run.rounds)
    if not clocks or not (deadline or budget.s is not None or budget.j is not None):
        return None
    watts = {device: clock.training_w or 0.0 for device, clock in clocks.items()} if budget.j is not None else None
    errors = {device: clock.error for device, clock in clocks.items()}
    titles = {device: clock.title for device, clock in clocks.items()}
    if budget.j is not None:
        errors |= {power_of(device): clock.power_error for device, clock in clocks.items() if clock.power_error is not None}
        titles |= {power_of(device): f"the power of {clock.title}" for device, clock in clocks.items()}
    labels = [label for label, own in methods.items() if own]

    def first_of(factors: Draws) -> list[str | None]:
        found = np.stack(
            [np.mean([_drawn(run, budget, rank_by, factors, watts) for run in methods[of]], axis=0) for of in labels]
        )
        signed = np.where(np.isnan(found), -np.inf, sign * found)
        best = signed.argmax(axis=0)
        return [None if np.isneginf(signed[place, draw]) else labels[place] for draw, place in enumerate(best)]

    return clock_draws(first_of, errors, titles)


def _drawn(run: CountedRun, budget: RunBudget, rank_by: RankBy, factors: Draws, watts: Mapping[str, float] | None) -> np.ndarray:
    """Return what a run reaches within the budget in every draw; NaN where no evaluated round fits."""
    again = retimed(run.rounds, run.per_round, factors, watts)
    number = {line.round: place for place, line in enumerate(run.rounds)}
    places = [number[point.round] for point in run.points]
    scores = again.scores(places, [run.score(point, rank_by) for point in run.points])
    last = _last(_fits(run, again, places, budget))
    return np.where(last < 0, np.nan, scores[np.arange(len(scores)), last])


def _fits(run: CountedRun, again: Retimed, places: Sequence[int], budget: RunBudget) -> np.ndarray:
    """Return whether each evaluated round is within the budget, in every draw: shape (draws, points)."""
    within = np.array([budget.bytes is None or point.client_bytes <= budget.bytes for point in run.points])
    fits = np.tile(within, (len(again.clock_s), 1))
    if budget.s is not None:
        fits &= again.clock_s[:, places] <= budget.s
    if budget.j is not None and again.client_j is not None:
        fits &= again.client_j[:, places] <= budget.j
    return fits


def _last(fits: np.ndarray) -> np.ndarray:
    """Return the last place that fits in every draw, −1 if none does."""
    place = fits.shape[1] - 1 - fits[:, ::-1].argmax(axis=1)
    return np.where(fits.any(axis=1), place, -1)
