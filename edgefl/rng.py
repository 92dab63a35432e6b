"""Randomness: one generator per (seed, round, client, purpose), the same in any process, and nothing global."""

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


def uniforms(seed: int, clients: np.ndarray, *key: int | str) -> np.ndarray:
    """Return one number in [0, 1) per client, float64, of the shape of ``clients``, independent of all other clients.

    >>> uniforms(0, np.array([7, 8]), 3, "drop-out")[1] == uniforms(0, np.array([8]), 3, "drop-out")[0]
    np.True_
    """
    return (_hashed(_word(seed, key), np.asarray(clients).astype(np.uint64)) >> np.uint64(11)) * 2.0**-53


def normals(seed: int, clients: np.ndarray, *key: int | str) -> np.ndarray:
    """Return one standard normal number per client, float64, rounded to six decimals: to the same bits on every host."""
    import torch

    found = torch.special.ndtri(torch.from_numpy(uniforms(seed, clients, *key) + 2.0**-54)).numpy()
    return np.round(found, 6)


def shuffled(seed: int, n: int, positions: np.ndarray, *key: int | str) -> np.ndarray:
    """Return what stands at ``positions`` of a shuffled 0 … n − 1, int64, without shuffling it: memory does not grow with ``n``.

    A Feistel network of four rounds permutes the numbers of 2b bits, 4ᵇ ≥ n; results of n or more are permuted again (cycle walking).

    >>> sorted(shuffled(0, 10, np.arange(10), "deal").tolist()) == list(range(10))
    True
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    low = np.uint64((1 << int(half)) - 1)
    words = [_word(seed, (*key, turn)) for turn in range(4)]

    def turned(numbers: np.ndarray) -> np.ndarray:
        left, right = numbers >> half, numbers & low
        for word in words:
            left, right = right, left ^ (_hashed(word, right) & low)
        return (left << half) | right

    found = turned(np.atleast_1d(np.asarray(positions)).astype(np.uint64))
    outside = np.flatnonzero(found >= n)
    while len(outside):
        found[outside] = turned(found[outside])
        outside = outside[found[outside] >= n]
    return found.astype(np.int64).reshape(np.shape(positions))


def _word(seed: int, key: tuple[int | str, ...]) -> np.uint64:
    return np.random.SeedSequence(_entropy(seed, key)).generate_state(1, np.uint64)[0]


def _hashed(word: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each number: SplitMix64 (Steele, Lea & Flood 2014), its state set apart by ``word``."""
    with np.errstate(over="ignore"):
        z = word + (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@contextlib.contextmanager
def torch_seeded(rng: np.random.Generator) -> Iterator[torch.Generator]:
    """Seed torch's global generator from ``rng`` within a block (modules draw their weights and dropout from it), then put it back."""
    import torch

    # Not torch.manual_seed: it takes a millisecond to record its caller for absent devices.
    before, seed = torch.default_generator.get_state(), int(rng.integers(2**63))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    try:
        yield torch.default_generator.manual_seed(seed)
    finally:
        torch.default_generator.set_state(before)
