"""The noise of central privacy as a stage: sums of clipped changes get noise before a method sees them."""

from dataclasses import dataclass

from edgefl.client.stage import Stage, StagePlace, TierSums, Turn
from edgefl.client.stages.clip import Clip, norms_of
from edgefl.contrib.privacy.central import Central, weighed
from edgefl.records import Observed, Tier


@dataclass(frozen=True)
class CentralNoise(Stage):
    """The sums of a round get noise, those of tiers without clients too.

    Attributes:
        central: the noise.
        clip: bounds the changes.
    """

    central: Central
    clip: Clip

    place = StagePlace.SUMMED
    sums = True

    def summed(self, sums: TierSums, turn: Turn) -> TierSums:
        """Return sums of the updates with noise, each of which counts for the clients that its tier expects."""
        bounds = self._bounds(turn)
        sent = {tier: turn.submodel(tier) for tier in bounds}
        updates = self.central.updates(turn.method, turn.model, sums, sent, bounds, turn.draw)
        return weighed(turn.method, turn.model, self.central.clients, updates)

    def record(self, turn: Turn) -> Observed:
        """Return the noise of each tier's sum; adapt the bounds by counts with noise."""
        turn.after.update(self.central.bounds(self.clip, turn.memory, norms_of(turn), turn.draw))
        return {"noise_std": {tier.label: self.central.sum_multiplier * bound for tier, bound in self._bounds(turn).items()}}

    def _bounds(self, turn: Turn) -> dict[Tier, float]:
        return {tier: self.clip.bound(turn.memory, tier) for tier in self.central.clients}
