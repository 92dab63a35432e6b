"""What a policy would learn, read off the curve of one real run: accuracy after its rounds, and time and energy until a target.

A round with u useful updates counts as u^γ of progress. A policy is taken to be as accurate as the run was at the same progress. That
assumes the run's method, network, data, tiers and local training, and that it does not matter which clients' updates are used. So a policy
is not judged if nobody trains the largest tier that the run trained, or if a class never trains that did so in the run. Progress may be
wrong by :data:`FACTOR`, which gives the range. Nothing is said beyond the end of the run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from edgefl.errors import InputError
from edgefl.records import ACCURACY
from edgefl.report.policies import EXPONENT, FACTOR, Learned, PolicyOutcome, Surrogate
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import RunSummary, read_summary
from edgefl.report.words import USEFUL, counted, groups_of, trained_tiers

_NEAR = 0.01
"""Without a target, the target is so much below the run's best accuracy."""


@dataclass(frozen=True)
class Curve:
    """Accuracy over progress: pairs of both, by increasing progress, of which accuracies never fall."""

    points: tuple[tuple[float, float], ...]

    def at(self, progress: float) -> float | None:
        """Return the accuracy at some progress, interpolated; None before the first evaluation, and the last beyond the end.

        >>> Curve(((1.0, 0.2), (3.0, 0.6))).at(2.0)
        0.4
        """
        place = bisect_left([at for at, _ in self.points], progress)
        if place == len(self.points):
            return self.points[-1][1]
        (after, value), before = self.points[place], self.points[place - 1] if place else None
        if after == progress:
            return value
        return None if before is None else before[1] + (value - before[1]) * (progress - before[0]) / (after - before[0])

    def until(self, accuracy: float) -> float | None:
        """Return the progress at which an accuracy is reached; None if it never is.

        >>> Curve(((1.0, 0.2), (3.0, 0.6))).until(0.5)
        2.5
        """
        if self.points[0][1] >= accuracy:
            return self.points[0][0]
        for (start, low), (end, high) in pairwise(self.points):
            if high >= accuracy:
                return start + (end - start) * (accuracy - low) / (high - low)
        return None


@dataclass(frozen=True)
class Taught:
    """What the run of a curve trained.

    Attributes:
        tiers: ratios.
        largest: the largest tier of which an update was used.
        devices: the classes of which one was used.
        noise: the noise multiplier; None without noise.
    """

    tiers: frozenset[float]
    largest: float
    devices: frozenset[str] = frozenset()
    noise: float | None = None

    @classmethod
    def of(cls, summary: RunSummary, lines: Sequence[RoundLine]) -> Taught:
        """Return what a finished run trained, which used at least one update."""
        used = [group for group in groups_of(lines) if group.status == USEFUL]
        tiers = frozenset(row.tier for row in summary.tiers)
        return cls(tiers, max(trained_tiers(used)), frozenset(group.device for group in used), summary.noise_multiplier)

    def why_not(self, policy: PolicyOutcome) -> str:
        """Return why a policy cannot be judged by the run; "" if it can."""
        if set(policy.tiers) != self.tiers:
            return "other tiers than the run's"
        if policy.noise_multiplier != self.noise:
            return "other noise than the run's"
        if not policy.updates:
            return "no update is used"
        idle = [device for device, use in policy.uses.items() if not use.updates]
        return self.left_out(policy.largest_trained or self.largest, idle)

    def left_out(self, largest: float, idle: Collection[str]) -> str:
        """Return what the run trained and a policy does not, of which tier ``largest`` trains and no class of ``idle``; "" if nothing."""
        if largest < self.largest:
            return f"nobody trains tier {self.largest:g}, as in the run"
        absent = [device for device in idle if device in self.devices]
        return f"no update of {', '.join(absent)} is used, as in the run" if absent else ""


def curve_of(rounds: Sequence[RoundLine], exponent: float = EXPONENT) -> Curve:
    """Return the curve of a run from the lines of its ``rounds.jsonl``; InputError without an evaluated round after an update."""
    points: list[tuple[float, float]] = []
    progress = best = 0.0
    for line in rounds:
        used = counted(line.groups)[USEFUL]
        progress += used**exponent if used else 0.0
        if (reached := line.accuracy.get("global")) is not None and progress:
            best = max(best, reached)
            if not points or progress > points[-1][0]:
                points.append((progress, best))
    if not points:
        raise InputError(
            "the run has no evaluated round in which an update was used; give another run, such as one with --eval-every 1"
        )
    return Curve(tuple(points))


def with_accuracy(folder: Path) -> RunSummary:
    """Return the summary of the run in a folder, which trained and has an accuracy; raise :class:`InputError` of another one."""
    summary = read_summary(folder / "summary.json")
    if not isinstance(summary, RunSummary) or summary.metric != ACCURACY:
        raise InputError(
            f"{folder}: expected a run that trained and has an accuracy, got a dry run or one with a metric of its own"
        )
    return summary


def judged(
    run: str, summary: RunSummary, lines: Sequence[RoundLine], rows: Sequence[PolicyOutcome], target: float | None
) -> Surrogate:
    """Return what each policy of ``rows`` would learn in its rounds, by the run in the folder ``run``."""
    curve = curve_of(lines)
    goal = max(curve.points[0][1], curve.points[-1][1] - _NEAR) if target is None else target
    taught = Taught.of(summary, lines)
    return Surrogate(run, curve.points[0][1], goal, tuple(learned(curve, row, row.rounds, goal, taught) for row in rows))


def learned(curve: Curve, row: PolicyOutcome, rounds: int, target: float, taught: Taught) -> Learned:
    """Return what a policy with the figures ``row`` would learn."""
    if why := taught.why_not(row):
        return Learned(why=why)
    a_round = (row.updates / rounds) ** EXPONENT
    progress, end = rounds * a_round, curve.points[-1][0]
    low, mean, high = (curve.at(progress * factor) for factor in (1 / FACTOR, 1.0, FACTOR))
    needed = curve.until(target)
    count = None if needed is None else needed / a_round
    hours = row.rounds_per_hour
    return Learned(
        accuracy=mean,
        low=curve.points[0][1] if low is None and mean is not None else low,
        high=high,
        beyond=progress > end,
        open=mean is not None and progress * FACTOR > end,
        rounds=count,
        target_s=None if count is None or not hours else 3600 * count / hours,
        target_j=None if count is None or row.energy_j is None else count * row.energy_j * row.updates / rounds,
    )
