"""The contract of a client sampler: whom the server asks, of the clients that are eligible at a moment.

A sampler sees what a real server knows: what clients have reported, how long their sessions took, and their devices; not their data. To
add one, write a file in ``edgefl/server/samplers/`` with a class decorated ``@sampler("name")``, or a plug-in. A run names it in its key
``sampler``, with options, such as ``power-of-choice(candidates=20)``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor

from edgefl.errors import EdgeflError
from edgefl.fleet.conditions import Choose
from edgefl.records import ClientRecord
from edgefl.registry import samplers
from edgefl.util.spec import called
from edgefl.util.validation import with_options

KNOWN = "sampler:"
"""Prefix of what the server knows of clients, among its tensors: one value per client."""
_FIGURES = {
    "losses": torch.float64,
    "durations_s": torch.float64,
    "samples": torch.int64,
    "rounds": torch.int64,
    "last": torch.int64,
}


@dataclass(frozen=True)
class Known:
    """The server's knowledge of all clients, by their numbers.

    Attributes:
        round: the number of the round that clients are chosen for, from 1; in mode async, of the server's next step.
        losses: mean training loss that each client reported last, (clients,) float64; NaN: none so far.
        durations_s: how long its last session took in simulated seconds, (clients,) float64; NaN: it had none so far.
        samples: how many samples it has, (clients,) int64; 0: it had no session so far.
        rounds: how many updates it has sent, (clients,) int64.
        last: the round of its last update, (clients,) int64; 0: it has sent none.
        devices: numbers of clients → the names of their devices.
    """

    round: int
    losses: np.ndarray
    durations_s: np.ndarray
    samples: np.ndarray
    rounds: np.ndarray
    last: np.ndarray
    devices: Callable[[np.ndarray], Sequence[str]]

    @classmethod
    def of(cls, memory: Mapping[str, Tensor], clients: int, round_: int, devices: Callable[[np.ndarray], Sequence[str]]) -> Self:
        """Return what the tensors ``memory`` of a server say of ``clients`` clients."""
        empty = {
            name: torch.full((clients,), torch.nan if dtype.is_floating_point else 0, dtype=dtype)
            for name, dtype in _FIGURES.items()
        }
        figures = {name: memory.get(KNOWN + name, tensor).numpy() for name, tensor in empty.items()}
        return cls(round=round_, devices=devices, **figures)


@dataclass(frozen=True)
class Sampler(abc.ABC):
    """Chooses clients. Its options are the fields of a subclass, each with a default.

    Attributes:
        blind: whether it chooses the first candidates, whatever the server knows. Then nothing is recorded for it.
        remembers: whether it chooses by earlier sessions, and not by devices alone.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    blind: ClassVar[bool] = False
    remembers: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return samplers.name_of(type(self)) or type(self).__name__

    def check(self, devices: Sequence[str], asked: int) -> None:  # noqa: B027, most have nothing to check
        """Raise :class:`ConfigError` where it makes no sense with the ``devices`` of a fleet, or in rounds that ask so many clients."""

    @abc.abstractmethod
    def chosen(self, candidates: np.ndarray, count: int, known: Known, rng: np.random.Generator) -> np.ndarray:
        """Return ``count`` of the ``candidates``, or all of them if they are fewer.

        Args:
            candidates: numbers of the eligible clients, (n,) int64, in random order.
            count: how many to ask.
            known: what the server knows.
            rng: a generator of this choice.
        """


def sampler_of(text: str) -> Sampler:
    """Return the sampler of a text such as ``oort(explore=0.1)``.

    Raises:
        ConfigError: an option is unknown, or its value is wrong.
        UnknownNameError: there is no such sampler.

    >>> sampler_of("power-of-choice(candidates=20)")
    PowerOfChoice(candidates=20)
    """
    name, options = called(text)
    kind: type[Sampler] = samplers.load(name)
    return with_options(kind, options, f"sampler: {name}: ")


def choice(sampler: Sampler, known: Known, rng: Callable[[], np.random.Generator]) -> Choose:
    """Return how ``sampler`` chooses among candidates; it raises an EdgeflError if the sampler returns anything but some of them."""

    def chosen(candidates: np.ndarray, count: int) -> np.ndarray:
        picks: Any = sampler.chosen(candidates.copy(), count, known, rng())
        wanted = min(count, len(candidates))
        if not isinstance(picks, np.ndarray) or len({*picks.tolist()} & {*candidates.tolist()}) != wanted or len(picks) != wanted:
            listed = picks.tolist() if isinstance(picks, np.ndarray) else picks
            raise EdgeflError(f"sampler {sampler.name}: chosen returned {listed!r:.100}, expected {wanted} different candidates")
        return picks.astype(np.int64)

    return chosen


def heard(
    sampler: Sampler, memory: Mapping[str, Tensor], records: Iterable[ClientRecord], round_: int, clients: int
) -> dict[str, Tensor]:
    """Return the tensors of what the server knows after a round with ``records``, by prefixed name; none if the sampler does without."""
    if sampler.blind or not sampler.remembers:
        return {}
    known = Known.of(memory, clients, round_, lambda some: [])
    figures = {name: getattr(known, name).copy() for name in _FIGURES}
    for record in records:
        client, outcome = record.client, record.outcome
        if record.expected.timing is None or record.status == "late":
            continue
        figures["durations_s"][client], figures["samples"][client] = record.expected.total_s, record.expected.samples
        if record.status == "trained":
            figures["rounds"][client] += 1
            figures["last"][client] = round_
            if outcome is not None and outcome.train_loss is not None:
                figures["losses"][client] = outcome.train_loss
    return {KNOWN + name: torch.from_numpy(values) for name, values in figures.items()}
