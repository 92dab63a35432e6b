"""Randomness: one generator per (seed, round, client, purpose), and nothing global.

The same key gives the same stream whatever ran before it, in whatever process: that is why a run interrupted and resumed, or
spread over workers, gives the same bits. This is the only module that may seed a global generator, and it puts it back.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, key: tuple[int | str, ...]) -> list[int]:
    # Strings enter by their CRC: `hash` changes from process to process.
    return [seed, *(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key)]


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the NumPy generator of ``key`` under ``seed``.

    >>> draws = [int(generator(0, 3, client, "shuffle").integers(2**32)) for client in (7, 7, 8)]
    >>> draws[0] == draws[1], draws[0] == draws[2]
    (True, False)
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_entropy(seed, key))))


@contextlib.contextmanager
def torch_seeded(rng: np.random.Generator) -> Iterator[torch.Generator]:
    """Seed torch's global generator from ``rng`` within a block (modules draw their weights and dropout from it), then put it back."""
    import torch

    with torch.random.fork_rng(devices=[]):
        yield torch.manual_seed(int(rng.integers(2**63)))
