"""The promise of a run: the level of its privacy, the bound and the noise, and when clients are drawn at random."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["central", "local", "example"]
"""Whom the noise protects.

``central``: every client, from those who see the model; the server is trusted. ``local``: every client, also from the server. ``example``:
every sample of a client, from the server and from those who see the model.
"""


@dataclass(frozen=True)
class Privacy:
    """The noise of a run.

    Attributes:
        clip: C, the longest contribution, an L2 norm: of a client's change (central and local) or of the gradient of one sample.
        noise_multiplier: z. The noise of every value has the standard deviation z·C.
        delta: δ of every ε.
    """

    level: Level
    clip: float
    noise_multiplier: float
    delta: float

    @property
    def noise_std(self) -> float:
        """Standard deviation z·C of the noise.

        >>> Privacy("central", clip=0.5, noise_multiplier=3.0, delta=1e-5).noise_std
        1.5
        """
        return self.noise_multiplier * self.clip


@dataclass(frozen=True)
class Sampling:
    """A round draws ``drawn`` of ``population`` clients at random, without replacement, and keeps secret which."""

    population: int
    drawn: int
