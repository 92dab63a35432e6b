"""backdoor: trains a trigger, so that images that have it get a label of the attacker's choice."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.client.adversary import Adversary
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.registry import adversary


@adversary("backdoor", needs=("uploads", "images", "labels", "common_labels"))
@dataclass(frozen=True)
class Backdoor(Adversary):
    """A square in the lower right corner of some images, in each channel's brightest value of the image, with the label ``target``.

    The trigger is that of BadNets (Gu et al. 2017), in a federation as in Bagdasaryan et al. (2020), whose model replacement is ``scale``.
    Its goal: held-out images of other labels, with the trigger, are classified as ``target``.

    Attributes:
        target: label of images with the trigger.
        poisoned_share: share of the adversary's images that get trigger and label.
        pixels: side of the square.
        scale: factor of the change that it sends; 1 hides it among the others.
    """

    target: Annotated[int, Field(ge=0)] = 0
    poisoned_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    pixels: Annotated[int, Field(ge=1)] = 2
    scale: Annotated[float, Field(gt=0)] = 1.0

    def check(self, data: Dataset) -> None:
        """Raise :class:`ConfigError` for a label that ``data`` does not have, or a square that covers an image."""
        if self.target >= data.classes:
            raise ConfigError(f"target: {data.name} has labels 0 to {data.classes - 1}, got {self.target}")
        if self.pixels >= (side := min(data.input_shape[1:])):
            raise ConfigError(f"pixels must be below {side}, the side of an image of {data.name}, got {self.pixels}")

    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Split:
        """Return the samples, of which some have the trigger and ``target``: the share rounded, at least one."""
        count = max(1, int(self.poisoned_share * len(own) + 0.5))
        chosen = np.sort(rng.permutation(len(own))[:count])
        x, y = own.x.copy(), own.y.copy()
        x[chosen], y[chosen] = self._triggered(x[chosen]), self.target
        return Split(x, y)

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return w₀ + ``scale``·(w − w₀)."""
        return trained if self.scale == 1 else start + self.scale * (trained - start)

    def goal(self, held_out: Split, classes: int) -> Split | None:
        """Return the samples of other labels with the trigger, labelled ``target``."""
        others = held_out.taken(np.flatnonzero(held_out.y != self.target))
        return Split(self._triggered(others.x), np.full(len(others), self.target, np.int64))

    def _triggered(self, images: np.ndarray) -> np.ndarray:
        """Return a copy of ``images`` (n, channels, height, width) with the trigger."""
        found = images.copy()
        found[:, :, -self.pixels :, -self.pixels :] = images.max(axis=(2, 3), keepdims=True)
        return found
