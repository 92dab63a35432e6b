"""masked: an update travels as integers that only the sum of its group gives away."""

from dataclasses import dataclass, replace

from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace
from edgefl.contrib.secagg.masking import Masking
from edgefl.registry import stage

CLIPPED = "clipped_values"
"""The figure of a client: values of its update that were clipped. Only a simulation knows it."""


@stage("masked", needs=("tier_sums",))
@dataclass(frozen=True)
class Masked(Stage):
    """The client's half of secure sums; it takes the place of a codec."""

    place = StagePlace.DECODED

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        """Mask the update. The labels are part of the masked vector."""
        masking = Masking.of(at.handed)
        payload, clipped = masking.masked(leaving.tensors, leaving.received, leaving.labels, at.rng("masked"))
        return replace(leaving, payload=payload, labels=None, figures={**leaving.figures, CLIPPED: clipped})
