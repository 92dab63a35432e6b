"""The work that rounds are timed on: the same clients, samples, networks and minibatches for edgefl and for bare loops."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

WARM_UP, TIMED = 3, 10
BATCH_SIZE, LR, MOMENTUM, SEED = 32, 0.05, 0.9, 7
HELD_OUT = 1_000
"""Samples on which the models are compared at the end, outside of what is timed."""
DISTURBED = 0.15
"""The share of a core that other processes may take while a contestant runs."""


@dataclass(frozen=True)
class Work:
    """Rounds of federated averaging: one local epoch of SGD with momentum, an optimizer of its own for every client.

    ``runs`` is how often it is repeated, unless somebody says otherwise.

    >>> WORKS["T1000"].batches_a_round
    200
    """

    name: str
    model: str
    clients: int
    per_round: int
    samples: int
    runs: int = 3

    @property
    def title(self) -> str:
        """What its row is called."""
        return f"{self.name}: {self.model}, {self.per_round} of {self.clients:,} clients × {self.samples} samples"

    @property
    def batches_a_round(self) -> int:
        """Minibatches of all clients of a round together."""
        return self.per_round * -(-self.samples // BATCH_SIZE)


WORKS = {
    work.name: work
    for work in (
        Work("T", "cnn-tiny", 100, 10, 600),
        Work("T1000", "cnn-tiny", 1_000, 100, 60),
        Work("S", "cnn-5x5", 100, 10, 600, runs=2),
    )
}


@dataclass(frozen=True)
class Material:
    """What a work is done with: a data set, how it is dealt, and a network that takes its images."""

    dataset: str
    partition: str
    model: str
    data_dir: str | None = None


def material(work: Work, data_dir: str | None = None) -> Material:
    """Return Fashion-MNIST dealt in equal parts; where its files are absent the bundled digits, of which clients draw as many.

    Digits have 8×8 pixels, which are too few for 5×5 convolutions: ``cnn-digits`` takes their place, without normalisation.
    """
    folder = Path(data_dir or "/usr/share/datasets/fashion-mnist")
    if (folder / "train-images-idx3-ubyte.gz").is_file():
        return Material("fashion-mnist", "iid", work.model, data_dir)
    return Material("digits", f"index:{work.samples}", "cnn-digits" if work.model == "cnn-5x5" else work.model)
