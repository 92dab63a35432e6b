"""A choice under the error of the clock: how often what is first stays first, and whose measurement would decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edgefl.fleet.clock import DRAWS, Draws, drawn_factors
from edgefl.report.results import Result
from edgefl.report.words import joined
from edgefl.util.units import human_percent

SURE = 0.95
"""A choice is sure of the clock if it is first in at least this share of the draws."""


@dataclass(frozen=True)
class ClockDraws(Result):
    """How often each choice is first if the devices' clocks are wrong by their stated errors.

    Attributes:
        draws: how many times the errors were drawn, for each device class, and shared by all choices.
        first: choice → share of the draws in which it is first; without those that never are.
        errors: device → its stated error, a factor on its seconds of training.
        alone: device → share of the draws in which another choice is first if only this device's clock is wrong.
        titles: device → its name for people.
        decides: the device whose measurement would decide most; None if the first is the same in all draws.
    """

    draws: int
    first: Mapping[str, float]
    errors: Mapping[str, float]
    alone: Mapping[str, float]
    titles: Mapping[str, str]
    decides: str | None = None


def clock_draws(
    first_of: Callable[[Draws], Sequence[str | None]], errors: Mapping[str, float], titles: Mapping[str, str], draws: int = DRAWS
) -> ClockDraws:
    """Return what draws of the clock's error make of a choice.

    ``first_of`` returns what is first in each draw, None if nothing is; it is given the factors of the devices whose clocks are wrong.
    """
    factors = drawn_factors(errors, draws)
    first = Counter(filter(None, first_of(factors)))
    shares = {choice: count / draws for choice, count in first.most_common()}
    alone: dict[str, float] = {}
    if len(first) > 1 or first.total() < draws:
        (predicted,) = first_of({device: own[:1] ** 0 for device, own in factors.items()})
        alone = {device: _changed(first_of({device: own}), predicted) for device, own in factors.items()}
    decides = max(alone, key=lambda device: (alone[device], errors[device]), default=None)
    return ClockDraws(draws, shares, dict(errors), alone, dict(titles), decides)


def _changed(first: Sequence[str | None], predicted: str | None) -> float:
    return sum(choice != predicted for choice in first) / len(first)


def clock_sentence(found: ClockDraws | None, quote: str = "") -> str:
    """Return in how many draws what is first stays first, and what to measure; nothing without draws.

    >>> clock_sentence(ClockDraws(200, {"a": 0.62, "b": 0.38}, {"x": 23.0}, {"x": 0.38}, {"x": "Phone"}, "x"))
    'Under the stated error of the clock, a is first in 62.0 % and b in 38.0 % of 200 draws: measure Phone, off by up to 23 times.'
    """
    if found is None or not found.first:
        return ""
    (best, share), *others = ((f"{quote[:1]}{name}{quote[1:]}", share) for name, share in found.first.items())
    device = found.decides
    if device is None:
        return f"Under the stated error of the clock, {best} is first in all of {found.draws} draws."
    parts = [f"{best} is first in {human_percent(share)}", *(f"{name} in {human_percent(part)}" for name, part in others)]
    title, error = found.titles.get(device, device), found.errors[device]
    measure = f"measure {title}, off by up to {error:.3g} times"
    return f"Under the stated error of the clock, {joined(parts)} of {found.draws} draws: {measure}."
