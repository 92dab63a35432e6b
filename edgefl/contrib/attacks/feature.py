"""The key ``adversary`` of a run: who attacks, whether it makes sense, and how far the attack succeeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from edgefl.client.client import Clients
from edgefl.config import RunConfig
from edgefl.config.group import group_keys
from edgefl.contrib.attacks.adversary import Adversaries, lacks_of
from edgefl.contrib.attacks.keys import AttackKeys
from edgefl.contrib.attacks.records import AttackRow
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.fleet.conditions import Conditions
from edgefl.methods.axes import conflict
from edgefl.methods.base import Method
from edgefl.records import RoundRecord
from edgefl.registry import feature
from edgefl.run.feature import Feature, Json, Seen


@feature("attacks", figures={"attack_success": "Success of the attack, by tier"})
@dataclass(frozen=True)
class Attack(Feature):
    """Some clients attack the run."""

    attackers: Adversaries

    place = 1

    @classmethod
    def of(cls, config: RunConfig, conditions: Conditions) -> Self | None:
        """Return the attack on a run; None: every client is honest."""
        spec = group_keys(config, AttackKeys).adversary
        return None if spec is None else cls(Adversaries.of(spec, config.clients, config.seed))

    @property
    def conduct(self) -> Adversaries:
        """The adversaries."""
        return self.attackers

    def no_app(self, config: RunConfig) -> str:
        """Return that attacks are simulated."""
        spec = group_keys(config, AttackKeys).adversary
        return f"adversary: {spec} is simulated, and real devices train here; leave it out"

    def check(self, config: RunConfig, method: Method, clients: Clients, conditions: Conditions) -> None:
        """Raise :class:`ConfigError` where the attack makes no sense with ``method``, the data, or labels that are permuted."""
        name, data = self.attackers.spec.name, clients.data
        if reason := conflict(lacks_of(data, config.permute_labels, method), "adversary", name):
            raise ConfigError(f"adversary: {name} makes no sense with {type(method).title} on {data.name}: {reason}")
        try:
            self.attackers.kind.check(data)
        except ConfigError as error:
            raise ConfigError(f"adversary: {name}: {error}") from None

    def known(self) -> Json:
        """Return the adversaries."""
        of = self.attackers
        return {"attack": AttackRow(str(of.spec), of.count, tuple(of.listed))}

    def line(self, record: RoundRecord) -> Json:
        """Return the clients of the round that attack, in their order."""
        return {"adversaries": self.attackers.among(client.client for client in record.clients)}

    def judged_on(self, held_out: Split, classes: int) -> Mapping[str, Seen]:
        """Return samples under attack: their accuracy is the share that gets the label that the adversaries want, if they want one."""
        goal = self.attackers.kind.goal
        if goal(held_out, classes) is None:
            return {}
        return {"attack_success": lambda split: goal(split, classes) or split}
