"""The key ``secure_aggregation`` of a run: its stage, and what it must not be combined with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.secagg.grouping import Grouping
from edgefl.contrib.secagg.keys import SecureKeys
from edgefl.contrib.secagg.protocol import SecureAggregation
from edgefl.contrib.secagg.stage import SecureGroups
from edgefl.contrib.secagg.vector import Coding
from edgefl.contrib.secagg.words import secure_sums
from edgefl.errors import ConfigError
from edgefl.fleet.conditions import Conditions
from edgefl.methods.base import Method
from edgefl.registry import feature
from edgefl.report.round_lines import RoundLine
from edgefl.run.feature import Feature, Json
from edgefl.run.resolved import objective_of, outside_of
from edgefl.wire.codec import codec_named


@feature("secure-sums")
@dataclass(frozen=True)
class SecureRun(Feature):
    """Updates are added up so that the server sees sums of groups only.

    Attributes:
        rules: what ``secure_aggregation`` says.
    """

    rules: SecureAggregation

    place = 2

    @classmethod
    def of(cls, config: RunConfig, conditions: Conditions) -> Self | None:
        """Return the feature of a run; None: updates are sent plain."""
        rules = secure_of(config)
        return None if rules is None else cls(rules)

    @classmethod
    def no_devices(cls, config: RunConfig) -> str:
        """Return why devices of a run send no updates: update files have no masks."""
        return (
            "" if secure_of(config) is None else f"the run has secure_aggregation {_spec(config)}, and update files have no masks"
        )

    @classmethod
    def check_devices(cls, config: RunConfig, what: str) -> None:
        """Raise :class:`ConfigError` if updates would be added up securely."""
        if secure_of(config) is not None:
            raise ConfigError(
                f"{_key(config)} is simulated only: update files have no masks; start a new run without "
                "it, which can begin with the --weights of this one"
            )

    def no_app(self, config: RunConfig) -> str:
        """Return that the app cannot add up securely."""
        lacks = "the app of devices has no messages for masks; simulate it, or leave it out"
        return f"secure_aggregation: got {_spec(config)!r}, expected 'off': {lacks}"

    def stages(self, config: RunConfig, most: int) -> Iterator[SecureGroups]:
        """Yield the stage that masks updates and opens their sums."""
        yield SecureGroups(Grouping(self.rules, config.seed), most)

    def totals(self, lines: Sequence[RoundLine]) -> Json:
        """Return the secure sums of each tier."""
        return {"secure_sums": secure_sums(lines)}

    def check(self, config: RunConfig, method: Method, clients: Clients, conditions: Conditions) -> None:
        """Raise :class:`ConfigError` if updates cannot be added up securely."""
        key = _key(config)
        if reads := next((stage.name for stage in outside_of(config) if not stage.folds), ""):
            raise ConfigError(f"{key} shows the server sums only, and stages: {reads} reads every update; leave one of them out")
        if (conduct := clients.task.conduct) is not None and conduct.claims:
            raise ConfigError(
                f"{conduct.title}: secure aggregation weighs clients by samples that the server knows; leave one of them out"
            )
        check_secure(config, conditions, clients.shards.largest if method.weighs_samples else 1)


def secure_of(config: RunConfig) -> SecureAggregation | None:
    """Return how a run aggregates securely; None: updates are sent plain."""
    return SecureAggregation.of(_spec(config))


def _spec(config: RunConfig) -> str:
    return group_keys(config, SecureKeys).secure_aggregation


def _key(config: RunConfig) -> str:
    return f"secure_aggregation: {_spec(config)}"


def check_secure(config: RunConfig, conditions: Conditions, most: int) -> None:
    """Raise :class:`ConfigError` if updates cannot be added up securely; ``most``: the largest weight of a client."""
    rules, key = secure_of(config), _key(config)
    if rules is None:
        return
    if not codec_named(config.codec).raw:
        raise ConfigError(
            f"{key} sends integers of {rules.bits} bits that add up, and what codec {config.codec} sends does not; give codec fp32, and "
            "bits=16 or bits=24 for fewer bytes"
        )
    holds = config.outliers or config.defence != "none"
    if holds or config.clip_norm == "adaptive":
        what = "outliers" if config.outliers else f"defence {config.defence}" if holds else "clip_norm adaptive"
        raise ConfigError(
            f"{key} shows the server sums only, and {what} compares updates; leave it out, or give a fixed clip_norm"
        )
    if objective_of(config).remembers:
        raise ConfigError(f"{key}: the server's half of {config.objective} reads every update; give objective none or prox")
    if rules.threshold >= 1 / conditions.over_selection:
        raise ConfigError(
            f"{key}: the server waits for {1 / conditions.over_selection:.0%} of the clients that it asks (over_selection "
            f"{conditions.over_selection:g}), and more than threshold={rules.threshold:g} of them must answer; give a smaller one of both"
        )
    members = min(rules.group, conditions.asked(config.per_round or 1, config.clients))
    try:
        Coding(rules.bits, members, rules.bound, most)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from None
