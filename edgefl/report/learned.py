"""What a what-if shows of accuracies that were read off a real run: columns, a chart with ranges, and the policy to choose."""

from collections.abc import Callable
from dataclasses import dataclass

from edgefl.report.chart import Chart, colour, layer, layered, share, slots
from edgefl.report.policies import Learned, PolicyOutcome, WhatIf
from edgefl.report.tables import Column
from edgefl.util.units import MISSING, human_count, human_joules, human_percent, human_seconds


@dataclass(frozen=True)
class Shown:
    """A policy as tables and charts show it.

    Attributes:
        number: its number in charts and tables of a page, from 1.
        learned: what it would learn; nothing is known without a run.
        star: a mark in the table of a terminal.
    """

    policy: PolicyOutcome
    number: int
    learned: Learned = Learned()  # noqa: RUF009 - it is frozen
    star: str = ""

    @property
    def label(self) -> str:
        """The name of the policy."""
        return self.policy.label

    @property
    def numbered(self) -> str:
        """Its number and name."""
        return f"{self.number}: {self.label}"


def shown(result: WhatIf) -> list[Shown]:
    """Return the policies in the order asked for, each with what it would learn."""
    judged = (Learned(),) * len(result.rows) if result.surrogate is None else result.surrogate.rows
    return [Shown(row, number, of) for number, (row, of) in enumerate(zip(result.rows, judged, strict=True), start=1)]


def learned_columns(result: WhatIf) -> tuple[Column, ...]:
    """Return the columns of accuracies and of what the target takes; nothing without a run."""
    if (found := result.surrogate) is None:
        return ()
    gain = 100 * max(0.0, found.target - found.start)  # a target below the run's first accuracy
    until = f"until {human_percent(found.target)}"

    def per(key: str, unit: float) -> Callable[[Shown], str]:
        return lambda row: MISSING if not (of := getattr(row.learned, key)) else human_count(gain / (of / unit))

    return (
        Column(f"accuracy in {result.rounds} rounds", "", lambda row: accuracy_text(row.learned)),
        Column(until, "rounds", lambda row: human_count(_whole(row.learned.rounds))),
        Column(until, "time", lambda row: human_seconds(row.learned.target_s)),
        Column(until, "energy", lambda row: human_joules(row.learned.target_j)),
        Column("points", "per hour", per("target_s", 3600.0)),
        Column("points", "per kJ", per("target_j", 1000.0)),
    )


def accuracy_text(found: Learned) -> str:
    """Return an accuracy with its range.

    >>> accuracy_text(Learned(accuracy=0.8, low=0.7, high=0.9))
    '80.0 % (70.0–90.0)'
    >>> accuracy_text(Learned(accuracy=0.8, low=0.7, high=0.9, open=True))
    '80.0 % (70.0–90.0 or more)'
    """
    if found.accuracy is None or found.low is None or found.high is None:
        return found.why or "before the run's first evaluation"
    least, more = "at least " * found.beyond, " or more" * found.open
    return f"{least}{human_percent(found.accuracy)} ({100 * found.low:.1f}–{100 * found.high:.1f}{more})"


def assumptions(result: WhatIf) -> str:
    """Return what the accuracies assume, in words."""
    if (found := result.surrogate) is None:
        return ""
    return (
        f"No policy was trained. Accuracies are read off the curve of the run {found.run}: a round with u useful updates counts as "
        f"u^{found.exponent:g} of progress, and a policy has the accuracy that the run had at the same progress. Progress may be "
        f"{found.factor:g} times as much or as little; that is the range, open above where it passes the end of the run. "
        "It is assumed that it does not matter whose updates are used: a policy that leaves out a device class, or the largest tier, "
        "which the run trained, is not judged."
    )


def learned_chart(result: WhatIf) -> Chart | None:
    """Return the accuracy of every policy after its rounds, with its range; None without a run."""
    if result.surrogate is None:
        return None
    rows = [(accuracy, row) for row in shown(result) if (accuracy := row.learned.accuracy) is not None]
    title = f"Accuracy after {result.rounds} rounds"
    if not rows:
        return Chart("learned", title, "No policy can be judged by this run.", None)
    places = slots([(row.numbered, [""]) for _, row in rows])
    points = [
        {
            "slot": slot,
            "value": accuracy,
            "low": row.learned.low,
            "high": row.learned.high,
            "told": f"{row.label}: {accuracy_text(row.learned)}",
        }
        for (accuracy, row), (slot,) in zip(rows, places.of, strict=True)
    ]
    x = share("value", "accuracy", zero=False)
    spec = layered(
        {"step": 24},
        layer(
            {"type": "rule", "strokeWidth": 4, "opacity": 0.5, "color": colour(0)},
            points,
            x={**x, "field": "low"},
            x2="high",
            y=places.y,
        ),
        layer({"type": "point", "filled": True, "size": 90, "color": colour(0)}, points, x=x, y=places.y, tooltip="told"),
        places.heads,
    )
    _, best = max(rows, key=lambda pair: pair[0])
    return Chart("learned", title, f"“{best.label}” learns most: {accuracy_text(best.learned)}.", spec)


def advice_by_accuracy(result: WhatIf) -> tuple[str, str] | None:
    """Return what came out and what to do, if a run says which policies reach the target; None if it says nothing."""
    found = result.surrogate
    reach = [row for row in shown(result) if row.learned.target_s]
    if found is None or not reach:
        return None
    fast = min(reach, key=lambda row: row.learned.target_s or float("inf"))
    frugal = min(reach, key=lambda row: row.learned.target_j or float("inf"))
    target, seconds = human_percent(found.target), human_seconds(fast.learned.target_s)
    told = f"“{fast.label}” should reach {target} accuracy first, after {seconds} of simulated time, within a factor of "
    told += f"{found.factor:g}, judged by the run {found.run}."
    if not frugal.learned.target_j:  # of devices without figures of energy
        return told, f"Take “{fast.label}”."
    if fast.label == frugal.label:
        return told, f"Take “{fast.label}”: it also needs the least energy, {human_joules(fast.learned.target_j)}."
    needs = [human_joules(row.learned.target_j) for row in (frugal, fast)]
    longer = human_seconds(frugal.learned.target_s)
    return (
        told,
        f"Take “{fast.label}” for speed, or “{frugal.label}” to save energy: {needs[0]} instead of {needs[1]}, in {longer}.",
    )


def _whole(value: float | None) -> float | None:
    return None if value is None else float(round(value))
