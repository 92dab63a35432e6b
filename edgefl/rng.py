"""Randomness: one generator per (seed, round, client, purpose).

A key gives the same draws in every process, so a resumed run, or one with several workers, has the same bits. Only this module seeds
torch's global generator, and it restores the state afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def _entropy(seed: int, key: tuple[int | str, ...]) -> list[int]:
    # Strings are replaced by their CRC-32, because `hash` differs between processes.
    return [seed, *(zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key)]


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return the NumPy generator of ``key``, such as (round, client, "shuffle"), under ``seed``.

    >>> draws = [int(generator(0, 3, client, "shuffle").integers(2**32)) for client in (7, 7, 8)]
    >>> draws[0] == draws[1], draws[0] == draws[2]
    (True, False)
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(_entropy(seed, key))))


def uniforms(seed: int, clients: np.ndarray, *key: int | str) -> np.ndarray:
    """Return a uniform number in [0, 1) for each client number, float64, of the shape of ``clients``; no client affects another's.

    >>> uniforms(0, np.array([7, 8]), 3, "drop-out")[1] == uniforms(0, np.array([8]), 3, "drop-out")[0]
    np.True_
    """
    return (_hashed(_word(seed, key), np.asarray(clients).astype(np.uint64)) >> np.uint64(11)) * 2.0**-53


def normals(seed: int, clients: np.ndarray, *key: int | str) -> np.ndarray:
    """Return a standard normal number for each client as :func:`uniforms` does, rounded to six decimals to be equal on every host."""
    import torch

    return np.round(torch.special.ndtri(torch.from_numpy(uniforms(seed, clients, *key) + 2.0**-54)).numpy(), 6)


def shuffled(seed: int, n: int, positions: np.ndarray, *key: int | str) -> np.ndarray:
    """Return the entries at ``positions`` of a random permutation of 0 … n − 1: int64, of the shape of ``positions``.

    The permutation is never built, so memory does not grow with ``n``. A Feistel network of four rounds permutes all numbers of 2b bits,
    with the least b such that 4ᵇ ≥ n. Results of n or more are permuted again (cycle walking).

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

    entries = turned(np.atleast_1d(np.asarray(positions)).astype(np.uint64))
    outside = np.flatnonzero(entries >= n)
    while len(outside):
        entries[outside] = turned(entries[outside])
        outside = outside[entries[outside] >= n]
    return entries.astype(np.int64).reshape(np.shape(positions))


@functools.lru_cache(maxsize=4096)  # the policies of a what-if have the rounds in common
def _word(seed: int, key: tuple[int | str, ...]) -> np.uint64:
    return np.random.SeedSequence(_entropy(seed, key)).generate_state(1, np.uint64)[0]


def _hashed(word: np.uint64, numbers: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each number: SplitMix64 (Steele, Lea & Flood 2014), with its state offset by ``word``."""
    z = np.atleast_1d(numbers) + np.uint64(1)  # an array: only single numbers warn of their overflow
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += word
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z.reshape(np.shape(numbers))


@contextlib.contextmanager
def torch_seeded(rng: np.random.Generator) -> Iterator[torch.Generator]:
    """Seed torch's generators, from which modules draw weights and dropout, by ``rng`` in a block; then restore the CPU's generator."""
    import torch

    # torch.manual_seed would take a millisecond longer: it records its caller for devices that are absent.
    before, seed = torch.default_generator.get_state(), int(rng.integers(2**63))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    try:
        yield torch.default_generator.manual_seed(seed)
    finally:
        torch.default_generator.set_state(before)
