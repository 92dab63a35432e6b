"""noised: local and central privacy as far as clients and their weights go.

With local differential privacy, a client clips its own change and adds noise to it, before anything leaves the device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from edgefl.client.clipping import clipped
from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace, Turn
from edgefl.contrib.privacy.guarantee import Level, Privacy
from edgefl.records import Update
from edgefl.registry import stage


def gaussian(shape: Sequence[int], std: float, rng: np.random.Generator) -> Tensor:
    """Return N(0, std²) of ``shape``, float64."""
    return torch.from_numpy(np.asarray(rng.standard_normal(tuple(shape)) * std))


def noised(
    update: Mapping[str, Tensor], sent: Mapping[str, Tensor], privacy: Privacy, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Return sent + min(1, C/‖Δ‖)·Δ + N(0, (zC)²) with Δ = update − sent, in the dtypes of ``update``.

    Args:
        update: name → tensor to send; all of them together are one change.
        sent: name → tensor that the client received. A tensor that it did not receive changes from zeros.
        privacy: C and z.
        rng: draws the noise of the tensors in the order of ``update``.

    >>> quiet = Privacy("local", clip=2.5, noise_multiplier=1e-9, delta=1e-5)
    >>> found = noised({"w": torch.tensor([4.0, -3.0])}, {"w": torch.tensor([1.0, 1.0])}, quiet, np.random.default_rng(0))
    >>> found["w"].tolist()
    [2.5, -1.0]
    """
    bounded, _ = clipped(update, sent, privacy.clip)
    noise = {name: gaussian(tensor.shape, privacy.noise_std, rng) for name, tensor in update.items()}
    return {name: (tensor.double() + noise[name]).to(update[name].dtype) for name, tensor in bounded.items()}


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
