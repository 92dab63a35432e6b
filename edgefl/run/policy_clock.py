"""The policies of a what-if under the error of the devices' clocks: which is the fastest if training does not take what was predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from edgefl.fleet.clock import Draws
from edgefl.fleet.profile import Fleet
from edgefl.report.clock_draws import ClockDraws, clock_draws
from edgefl.report.policies import EXPONENT, PolicyOutcome, Surrogate
from edgefl.report.retimed import TimedRound, rounds_retimed
from edgefl.run.forks import in_forks

MANY_SESSIONS = 200_000
"""So many sessions of all policies take some ten seconds: they are then simulated, and timed again, on all cores."""


@dataclass(frozen=True)
class Simulated:
    """The rounds of a policy, as far as they are needed to time them again.

    Attributes:
        rounds: none in mode async, whose rounds overlap.
        wanted: how many updates a round wants.
    """

    rounds: Sequence[TimedRound]
    wanted: int


def policy_draws(
    rows: Sequence[PolicyOutcome], policies: Sequence[Simulated], fleet: Fleet, surrogate: Surrogate | None = None
) -> ClockDraws | None:
    """Return how often each policy is the fastest under draws of the clocks' errors, which all policies share.

    That is the policy with the most useful updates an hour or, judged by a run, the one that reaches the target first. Of equal policies
    it is the one that includes most clients.
    """
    able = [place for place in range(len(rows)) if surrogate is None or surrogate.rows[place].target_s]
    able.sort(key=lambda place: -rows[place].inclusion)
    if len(able) < 2 or not all(policies[place].rounds for place in able):
        return None
    exponent = 1.0 if surrogate is None else EXPONENT
    many = sum(len(of.devices) for place in able for of in policies[place].rounds) > MANY_SESSIONS

    def first_of(factors: Draws) -> list[str | None]:
        timed = [partial(_speed, policies[place], factors, exponent) for place in able]
        speeds = np.stack([*in_forks(timed, worth=many)])
        best = speeds.argmax(axis=0)
        return [rows[able[place]].label if speeds[place, draw] > 0 else None for draw, place in enumerate(best)]

    devices = {c.device.name: c.device for c in fleet.classes}
    return clock_draws(
        first_of,
        {name: device.clock_error for name, device in devices.items()},
        {name: device.title for name, device in devices.items()},
    )


def _speed(policy: Simulated, factors: Draws, exponent: float) -> np.ndarray:
    """Return the progress of a policy in a second, in every draw: a round with u useful updates counts as u to the ``exponent``."""
    again = rounds_retimed(policy.rounds, policy.wanted, factors, max((len(own) for own in factors.values()), default=1))
    progress, lasted_s = again.used.mean(axis=1) ** exponent, again.clock_s[:, -1]
    return np.divide(progress, lasted_s, out=np.zeros_like(progress), where=lasted_s > 0)
