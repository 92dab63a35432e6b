"""reserved: some places of every round belong to a class of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import AfterValidator

from edgefl.errors import ConfigError
from edgefl.registry import sampler
from edgefl.server.sampler import Known, Sampler


def _read(text: str) -> dict[str, int]:
    """Return device → its places, of text such as "gateway:2,board:3"; ValueError if it has another form, or a device comes twice."""
    places: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        device, colon, count = part.rpartition(":")
        if not colon or not device or not count.isdecimal() or not int(count):
            raise ValueError(f"expected DEVICE:NUMBER for each class, such as gateway:2,board:3, got {part!r}")
        if device in places:
            raise ValueError(f"reservations of {device} overlap, {places[device]} and {count} places; give one")
        places[device] = int(count)
    return places


def _checked(text: str) -> str:
    _read(text)
    return text


@sampler("reserved")
@dataclass(frozen=True)
class Reserved(Sampler):
    """A round asks so many clients of some classes first; other places, and those that a class cannot fill, are for any client.

    Attributes:
        slots: device and places of a round, such as "gateway:2,board:3".
    """

    remembers: ClassVar[bool] = False
    slots: Annotated[str, AfterValidator(_checked)] = ""

    def check(self, devices: Sequence[str], asked: int) -> None:
        """Raise :class:`ConfigError` if a class is not in the fleet, or a round does not ask so many clients."""
        wanted = _read(self.slots)
        if unknown := [device for device in wanted if device not in devices]:
            raise ConfigError(f"sampler: reserved: no class of the fleet is {unknown[0]!r}; its classes are {', '.join(devices)}")
        if (total := sum(wanted.values())) > asked:
            raise ConfigError(
                f"sampler: reserved: {self.slots} are {total} places, and a round asks {asked} clients; reserve fewer, or ask more"
            )

    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return clients of the classes with places, then any."""
        devices = np.array(known.devices(candidates), object)
        reserved = [np.flatnonzero(devices == device)[:places] for device, places in _read(self.slots).items()]
        first = np.concatenate([np.zeros(0, np.int64), *reserved])
        others = np.setdiff1d(np.arange(len(candidates)), first)
        return candidates[np.concatenate([first, others])[:count]]
