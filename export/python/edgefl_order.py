"""The order of a training: which samples each step takes, by generators whose place is part of a state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from edgefl_bundle import InputError

_PURPOSES = ("train", "draw", "flip")
_DAMAGED = "its order of samples is damaged: train again"
_PLACE = re.compile(r"[0-9]{1,4000} [0-9]{1,18}( [0-9a-f]{1,32}(:[0-9a-f]{1,8})?){3}")


class Order:
    """The draws of a training: the samples of each step, its graph, and the samples that it mirrors.

    Each purpose has a generator of its own: NumPy's PCG64, seeded by [seed, number of the purpose], or in the state that ``states`` has
    for it. :meth:`place` is text, from which :meth:`move` continues, also within an epoch and with another size of batches.

    Raises:
        InputError: ``states`` lacks a purpose, or has no state of PCG64 for it.
    """

    def __init__(self, samples: int, batch_size: int, seed: int, states: Mapping[str, Any] | None = None) -> None:
        self._samples, self._size, self._seed, self._taken = samples, batch_size, seed, 0
        made = [_generator(seed, number, states) for number in range(len(_PURPOSES))]
        self._shuffle, self._draws, self._flips = made
        self._epoch, self._index = _spot(self._shuffle), np.arange(0)

    def batch(self) -> np.ndarray:
        """Return the indices of the next samples, shuffled in every epoch; the last batch of an epoch may be smaller."""
        if self._taken in (0, self._samples):
            self._epoch, self._taken = _spot(self._shuffle), 0
            self._index = self._shuffle.permutation(self._samples)
        found = self._index[self._taken : self._taken + self._size]
        self._taken += len(found)
        return found

    def graph(self, count: int) -> int:
        """Return the number of the next step's graph, of so many."""
        return min(int(self._draws.random() * count), count - 1)

    def mirrored(self, count: int) -> np.ndarray:
        """Return for each of so many samples whether it is mirrored."""
        found: np.ndarray = self._flips.integers(2, size=count) == 1
        return found

    def place(self) -> str:
        """Return the seed, the samples taken of this epoch, and each generator: the first as it was before the epoch."""
        return f"{self._seed} {self._taken} {self._epoch} {_spot(self._draws)} {_spot(self._flips)}"

    def move(self, place: str, where: str) -> None:
        """Continue at a :meth:`place`; InputError, which begins with ``where``, if it is none of this order."""
        seed, taken, *spots = parts(place, where)
        if seed != str(self._seed) or int(taken) > self._samples:
            raise InputError(f"{where}: {_DAMAGED}")
        self._epoch, self._taken = spots[0], int(taken)
        for generator, spot in zip((self._shuffle, self._draws, self._flips), spots, strict=True):
            _set(generator, spot)
        if self._taken:
            self._index = self._shuffle.permutation(self._samples)


def parts(place: str, where: str) -> list[str]:
    """Return the words of a :meth:`Order.place`, the seed first; InputError, which begins with ``where``, if it is none."""
    if not _PLACE.fullmatch(place):
        raise InputError(f"{where}: {_DAMAGED}")
    return place.split()


def _generator(seed: int, number: int, states: Mapping[str, Any] | None) -> np.random.Generator:
    if not states:
        return np.random.default_rng([seed, number])
    bits, purpose = np.random.PCG64(), _PURPOSES[number]
    try:
        bits.state = states[purpose]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"states: {purpose}: got no state of the generator PCG64 ({error!r})") from None
    return np.random.Generator(bits)


def _spot(generator: np.random.Generator) -> str:
    """Return the state of a generator in hexadecimal digits, and after a colon the half of a number that is left for the next draw."""
    state: dict[str, Any] = dict(generator.bit_generator.state)
    return f"{state['state']['state']:x}" + (f":{state['uinteger']:x}" if state["has_uint32"] else "")


def _set(generator: np.random.Generator, spot: str) -> None:
    state, _, left = spot.partition(":")
    found: dict[str, Any] = dict(generator.bit_generator.state)
    found["state"] = {**found["state"], "state": int(state, 16)}
    generator.bit_generator.state = {**found, "has_uint32": int(left != ""), "uinteger": int(left or "0", 16)}
