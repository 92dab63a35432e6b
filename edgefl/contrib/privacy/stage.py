"""noised: local and central privacy as far as clients and their weights go."""

from dataclasses import dataclass, replace

from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace, Turn
from edgefl.contrib.privacy.guarantee import Level, Privacy
from edgefl.contrib.privacy.noised import noised
from edgefl.records import Update
from edgefl.registry import stage


@stage("noised")
@dataclass(frozen=True)
class Noised(Stage):
    """Clients send no labels, and all of them weigh the same; with local privacy, they clip their changes and add noise.

    The samples of a client have noise in its training (:mod:`edgefl.client.per_sample`), so that it weighs as usual.

    Attributes:
        level, clip, noise_multiplier, delta: see :class:`edgefl.contrib.privacy.guarantee.Privacy`.
    """

    level: Level
    clip: float
    noise_multiplier: float
    delta: float

    place = StagePlace.NOISED

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        """Add the noise of local privacy, and leave out the labels."""
        if self.level != "local" or at.departs:
            return replace(leaving, labels=None)
        privacy = Privacy(self.level, self.clip, self.noise_multiplier, self.delta)
        return replace(leaving, labels=None, tensors=noised(leaving.tensors, leaving.received, privacy, at.rng("privacy")))

    def counts(self, client: int, samples: int, turn: Turn) -> int:
        """Return 1 for every client, unless samples are protected, not clients."""
        return samples if self.level == "example" else min(samples, 1)

    @property
    def folds(self) -> bool:
        """True: the weight of an update in a sum is that of :meth:`counts` already."""
        return True

    def admit(self, update: Update, turn: Turn) -> Update:
        """Let the update weigh as much as any other."""
        return replace(update, samples=self.counts(update.client, update.samples, turn))
