"""The leaks of a finished run, measured beside what is accounted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgefl.contrib.audit.canaries import Canaries, central, example, local
from edgefl.contrib.audit.estimate import distance, epsilon
from edgefl.contrib.audit.membership import Membership, attacked
from edgefl.errors import CheckpointError
from edgefl.registry import features
from edgefl.rng import generator
from edgefl.run.feature import Json
from edgefl.run.finished import finished
from edgefl.run.folder import FED_ROUND, Notify, RunFolder
from edgefl.run.trained import Trained


@dataclass(frozen=True)
class Leak:
    """ε(``delta``) as it was measured, beside the accounted one.

    Attributes:
        attacker: what the attacker knows of who takes part.
        releases: how many releases a canary was part of.
        empirical: the lower limit of the 99 % interval: the run leaks at least that.
        most_likely: the estimate itself. If the noise is as accounted, it is above ``accounted`` in about half of all audits.
        upper: the upper limit of the interval.
        accounted: ε of the accountant for the same releases.
    """

    attacker: str
    releases: int
    delta: float
    empirical: float
    most_likely: float
    upper: float
    accounted: float

    @property
    def exceeds(self) -> bool:
        """Whether more was measured than is accounted."""
        return self.empirical > self.accounted


@dataclass(frozen=True)
class Audit:
    """The leaks of a run.

    Attributes:
        level: whom the run's noise protects; "none" without noise.
        canaries: how many canaries were used.
        leaks: with noise, a row for each attacker.
        membership: without noise, what a membership attack reaches.
    """

    level: str
    canaries: int = 0
    leaks: Sequence[Leak] = ()
    membership: Membership | None = None

    @property
    def exceeds(self) -> bool:
        """Whether more was measured than is accounted."""
        return any(leak.exceeds for leak in self.leaks)

    def to_json(self) -> Json:
        """Return the audit as JSON has it."""
        return {**asdict(self), "exceeds": self.exceeds}


def audit(folder: Path, canaries: int, notify: Notify | None = None) -> Audit:
    """Return what the finished run in ``folder`` leaks, by so many ``canaries``.

    Raises:
        CheckpointError: the folder holds no finished run, a damaged one, or one of real devices, whose samples are elsewhere.
        InputError: its data or its network is not there any more.
    """
    if (folder / FED_ROUND).exists():
        raise CheckpointError(f"{folder}: the result of fed-round, whose samples are on devices; give a simulated run")
    RunFolder(folder).require("summary.json")
    with finished(folder, notify) as trained:
        seed = int(generator(trained.run.config.seed, "audit").integers(2**32))
        return with_noise(trained, Canaries(canaries, seed)) or Audit("none", membership=attacked(trained, seed))


def with_noise(trained: Trained, canaries: Canaries) -> Audit | None:
    """Return what the releases of a run with noise leak; None if it has no noise."""
    run, state = trained.run, trained.state
    spending: Any = next((feature for feature in run.features if isinstance(feature, features.load("privacy"))), None)
    if spending is None:
        return None
    promise, releases = spending.privacy, run.config.rounds * spending.releases
    scores: np.ndarray
    if promise.level == "central":
        scores = central(run, state, canaries)
    elif promise.level == "local":
        scores = local(run, state, canaries, promise.clip)
    else:
        scores = example(run, canaries, promise.clip, promise.noise_multiplier)
    ratio, delta, unsampled = distance(scores), promise.delta, replace(spending, sampling=None)

    def leak(attacker: str, through: Callable[[float], float], accounted: float) -> Leak:
        measured = ratio.through(through)
        return Leak(attacker, releases, delta, measured.low, measured.value, measured.high, accounted)

    leaks = [leak("knows who takes part", lambda value: epsilon(value, delta), unsampled.epsilon(run.config.rounds))]
    if spending.sampling is not None:
        hidden = partial(_sampled, spending, releases=releases, rounds=run.config.rounds)
        leaks.append(leak("does not know it", hidden, spending.epsilon(run.config.rounds)))
    return Audit(promise.level, canaries.count, tuple(leaks))


def _sampled(spending: Any, ratio: float, releases: int, rounds: int) -> float:
    """Return ε with the run's sampling if the noise of each release is as measured: 2√k/``ratio`` bounds."""
    if ratio <= 0:
        return 0.0
    measured = 2 * math.sqrt(releases) / ratio
    return float(replace(spending, privacy=replace(spending.privacy, noise_multiplier=measured)).epsilon(rounds))
