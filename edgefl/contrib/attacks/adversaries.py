"""The adversaries: simulated clients that attack a run. A client receives w₀, trains w, and has n samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from edgefl.contrib.attacks.adversary import Adversary, scaled
from edgefl.contrib.attacks.kinds import adversary
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError


def _moved(start: Tensor, trained: Tensor, factor: float) -> Tensor:
    """Return w₀ + ``factor``·(w − w₀)."""
    return start + factor * (trained - start)


@adversary("sign-flip", needs=("uploads",))
@dataclass(frozen=True)
class SignFlip(Adversary):
    """w₀ − k·(w − w₀), the opposite of what it has learned; k is ``scale`` (Li et al. 2019, the sign-flipping attack).

    Attributes:
        scale: factor k of the change.
    """

    scale: Annotated[float, Field(gt=0)] = 1.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return _moved(start, trained, -self.scale)


@adversary("scaled", needs=("uploads",))
@dataclass(frozen=True)
class ScaledChange(Adversary):
    """w₀ + γ·(w − w₀), model replacement with γ = ``scale`` (Bagdasaryan et al. 2020).

    Attributes:
        scale: factor γ of the change; the number of clients in a round replaces their average.
    """

    scale: Annotated[float, Field(gt=0)] = 10.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return _moved(start, trained, self.scale)


@adversary("inflated", needs=("uploads", "weighed_samples"))
@dataclass(frozen=True)
class Inflated(Adversary):
    """n·``times`` samples instead of n. With ``flip``, it also sends w₀ − (w − w₀): the weight alone does little harm.

    Attributes:
        times: how many times its samples it claims.
        flip: whether it sends the opposite of what it has learned.
    """

    times: Annotated[int, Field(ge=1, le=10**6)] = 100
    flip: bool = False

    claims: ClassVar[bool] = True

    def claimed(self, samples: int) -> int:
        return samples * self.times

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return _moved(start, trained, -1) if self.flip else trained


@adversary("noise", needs=("uploads",))
@dataclass(frozen=True)
class Noise(Adversary):
    """w₀ + N(0, σ²), the Gaussian attack (Blanchard et al. 2017).

    Differs from the paper: σ is not one number for all tensors, but ``scale`` times the root mean square of the change that it trained.

    Attributes:
        scale: standard deviation, in units of the root mean square of the trained change of the tensor.
    """

    scale: Annotated[float, Field(gt=0)] = 10.0

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return start + self.scale * scaled(rng, start, trained - start)


@adversary("sybil", needs=("uploads",))
@dataclass(frozen=True)
class Sybil(Adversary):
    """w₀ + N(0, σ²), the same draw for all adversaries of a round and tier (Douceur 2002), none of which trains.

    It is one attacker under several names. Updates that are equal to each other deceive defences that look for neighbours.

    Attributes:
        scale: standard deviation σ, in units of the root mean square of the received tensor.
    """

    scale: Annotated[float, Field(gt=0)] = 1.0

    trains: ClassVar[bool] = False
    together: ClassVar[bool] = True

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return start + self.scale * scaled(rng, start, start)


@adversary("free-rider", needs=("uploads",))
@dataclass(frozen=True)
class FreeRider(Adversary):
    """w₀ + N(0, σ²), a disguised free rider (Fraboni et al. 2021). It answers when a client that trains would, at no MACs.

    Differs from the paper: σ does not shrink over the rounds; it is ``noise`` times the root mean square of the tensor.

    Attributes:
        noise: standard deviation of the disguise, in units of the root mean square of the received tensor.
    """

    noise: Annotated[float, Field(ge=0)] = 0.001

    trains: ClassVar[bool] = False

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return start + self.noise * scaled(rng, start, start)


@adversary("label-flip", needs=("uploads", "labels"))
@dataclass(frozen=True)
class LabelFlip(Adversary):
    """Labels C − 1 − y of C classes instead of y (Fang et al. 2020), or those of a map (Tolpegin et al. 2020).

    Its goal: held-out samples are classified by the wrong labels.

    Attributes:
        labels: label → the label that takes its place, such as {7: 1}; the others stay. Empty: C − 1 − y.
    """

    labels: Mapping[int, int] = field(default_factory=dict)

    def check(self, data: Dataset) -> None:
        if wrong := sorted({label for label in (*self.labels, *self.labels.values()) if not 0 <= label < data.classes}):
            raise ConfigError(f"labels: {data.name} has labels 0 to {data.classes - 1}, got {wrong[0]}")

    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Split:
        return Split(own.x, self._flipped(own.y, classes))

    def goal(self, held_out: Split, classes: int) -> Split | None:
        wanted = self._flipped(held_out.y, classes)
        changed = np.flatnonzero(wanted != held_out.y)
        return Split(held_out.taken(changed).x, wanted[changed])

    def _flipped(self, labels: np.ndarray, classes: int) -> np.ndarray:
        table = np.arange(classes) if self.labels else np.arange(classes)[::-1].copy()
        for label, other in self.labels.items():
            table[label] = other
        return table[labels]


@adversary("backdoor", needs=("uploads", "images", "labels", "common_labels"))
@dataclass(frozen=True)
class Backdoor(Adversary):
    """A square in the lower right corner of some images, in each channel's brightest value of the image, with the label ``target``.

    The trigger is that of BadNets (Gu et al. 2017), in a federation as in Bagdasaryan et al. (2020), whose model replacement is ``scale``.
    Its goal: held-out images of other labels, with the trigger, are classified as ``target``.

    Attributes:
        target: label of images with the trigger.
        poisoned_share: share of the adversary's images that get trigger and label; at least one image gets them.
        pixels: side of the square.
        scale: factor of the change that it sends; 1 hides it among the others.
    """

    target: Annotated[int, Field(ge=0)] = 0
    poisoned_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    pixels: Annotated[int, Field(ge=1)] = 2
    scale: Annotated[float, Field(gt=0)] = 1.0

    def check(self, data: Dataset) -> None:
        if self.target >= data.classes:
            raise ConfigError(f"target: {data.name} has labels 0 to {data.classes - 1}, got {self.target}")
        if self.pixels >= (side := min(data.input_shape[1:])):
            raise ConfigError(f"pixels must be below {side}, the side of an image of {data.name}, got {self.pixels}")

    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Split:
        count = max(1, int(self.poisoned_share * len(own) + 0.5))
        chosen = np.sort(rng.permutation(len(own))[:count])
        x, y = own.x.copy(), own.y.copy()
        x[chosen], y[chosen] = self._triggered(x[chosen]), self.target
        return Split(x, y)

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        return trained if self.scale == 1 else _moved(start, trained, self.scale)

    def goal(self, held_out: Split, classes: int) -> Split | None:
        others = held_out.taken(np.flatnonzero(held_out.y != self.target))
        return Split(self._triggered(others.x), np.full(len(others), self.target, np.int64))

    def _triggered(self, images: np.ndarray) -> np.ndarray:
        """Return a copy of ``images`` (n, channels, height, width) with the trigger."""
        triggered = images.copy()
        triggered[:, :, -self.pixels :, -self.pixels :] = images.max(axis=(2, 3), keepdims=True)
        return triggered
