"""The contract of a feature: what a part of contrib adds to a run that asks for it by keys of its configuration."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from edgefl.client.client import Clients
from edgefl.client.conduct import Conduct
from edgefl.client.stage import Stage
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.fleet.conditions import Conditions
from edgefl.methods.base import Method
from edgefl.records import RoundRecord
from edgefl.registry import features
from edgefl.report.round_lines import RoundLine
from edgefl.server.assignment import Plan

Json = Mapping[str, Any]
Seen = Callable[[Split], Split]
"""Maps held-out samples to those that a model is evaluated on."""


class Feature:
    """A feature of one run. Each method does nothing unless it is written.

    A feature is a class decorated ``@feature("name")`` in a file of contrib; ``figures`` are name → title of its figures of rounds.
    """

    place: ClassVar[int] = 0
    """Features are asked in this order."""

    @classmethod
    def of(cls, config: RunConfig, conditions: Conditions) -> Self | None:
        """Return the feature of a run; None if the run does not ask for it. ConfigError if it is asked for what cannot be."""
        raise NotImplementedError

    @classmethod
    def no_devices(cls, config: RunConfig) -> str:
        """Return why devices of a run with this configuration send no updates; empty if they send some."""
        return ""

    @classmethod
    def check_devices(cls, config: RunConfig, what: str) -> None:
        """Raise :class:`ConfigError` if ``what`` trains on real devices, and the feature is simulated only."""

    @classmethod
    def training(cls, config: RunConfig, training: Training) -> Training:
        """Return how clients train, as the feature changes it."""
        return training

    def no_app(self, config: RunConfig) -> str:
        """Return why the app of real devices cannot train the run; empty if it can."""
        return ""

    def resolved(self, config: RunConfig) -> RunConfig:
        """Return the configuration with the values that the feature works out."""
        return config

    @property
    def conduct(self) -> Conduct | None:
        """How some clients behave otherwise than the server asks; None: the feature changes none."""
        return None

    def stages(self, config: RunConfig, most: int) -> Iterable[Stage]:
        """Return the stages that every update passes; ``most`` are the most samples of a client."""
        return ()

    def planned(self, config: RunConfig, plan: Plan) -> Iterable[Stage]:
        """Return the stages that depend on the run's plan."""
        return ()

    def check(self, config: RunConfig, method: Method, clients: Clients, conditions: Conditions) -> None:
        """Raise :class:`ConfigError` where the feature makes no sense with the method, the data or other keys of the run."""

    def warnings(self, config: RunConfig, largest: int) -> Sequence[str]:
        """Return what a user should know; the largest client has ``largest`` samples."""
        return ()

    def observed(self, round_: int) -> Json:
        """Return figures of a round, by name."""
        return {}

    def line(self, record: RoundRecord) -> Json:
        """Return keys of a round's line, given its record."""
        return {}

    def judged_on(self, held_out: Split, classes: int) -> Mapping[str, Seen]:
        """Return figure → how held-out samples are changed: the figure of evaluated rounds is the accuracy on the changed ones."""
        return {}

    def known(self) -> Json:
        """Return keys of the summary that are known before the first round."""
        return {}

    def totals(self, lines: Sequence[RoundLine]) -> Json:
        """Return keys of the summary of a run or a dry run, from the lines of its rounds."""
        return {}

    def summary(self, rounds: int) -> Json:
        """Return keys of the summary of a run that has trained for so many rounds."""
        return {}

    def policy(self, rounds: int) -> Json:
        """Return the columns of a policy of what-if, after so many rounds."""
        return {}


@functools.cache
def kinds() -> list[type[Feature]]:
    """Return every feature, in the order of their places."""
    found: list[type[Feature]] = [features.load(name) for name in features.names()]
    return sorted(found, key=lambda kind: kind.place)


def features_of(config: RunConfig, conditions: Conditions) -> tuple[Feature, ...]:
    """Return the features that a run asks for; ConfigError if one cannot be had."""
    return tuple(found for kind in kinds() if (found := kind.of(config, conditions)) is not None)


def conduct_of(features: Iterable[Feature]) -> Conduct | None:
    """Return how some clients of a run behave otherwise than the server asks; ConfigError if two features change that."""
    conducts = [conduct for feature in features if (conduct := feature.conduct) is not None]
    if len(conducts) > 1:
        both = " and ".join(conduct.title for conduct in conducts[:2])
        raise ConfigError(f"{both} both change what clients do; leave one of them out")
    return conducts[0] if conducts else None


def merged(found: Iterable[Json]) -> dict[str, Any]:
    """Return what several features say, in one dictionary."""
    return {key: value for of in found for key, value in of.items()}


def check_devices(config: RunConfig, what: str) -> None:
    """Raise :class:`ConfigError` if ``what`` trains on real devices for a run that can only be simulated."""
    for kind in kinds():
        kind.check_devices(config, what)


def no_updates(config: RunConfig) -> str:
    """Return why devices of a run send no updates; empty if they send some."""
    reason = next(filter(None, (kind.no_devices(config) for kind in kinds())), "")
    if config.stages:
        reason = reason or f"the run has the stages {', '.join(config.stages)}, and devices train without them"
    return reason
