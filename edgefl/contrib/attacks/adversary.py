"""The contract of an adversary: a client that trains on other samples, sends another update, or claims other samples than it has.

Simulated attacks, so that defences can be compared. To add one, write a file in ``edgefl/contrib/attacks/`` with a class
decorated ``@adversary("name", needs=("uploads",))``, see :mod:`edgefl.methods.axes`. Its fields are its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from pydantic import ConfigDict
from torch import Tensor

from edgefl.client.conduct import Conduct
from edgefl.contrib.attacks.kinds import adversaries
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.methods.axes import Need
from edgefl.methods.base import Method
from edgefl.methods.state import Tensors
from edgefl.registry import Options, conduct
from edgefl.rng import generator, shuffled
from edgefl.util.compute import described
from edgefl.util.fields import each
from edgefl.util.spec import Spec, shared
from edgefl.util.validation import with_options
from edgefl.wire.message import MessageFields

MOST_LISTED = 100
"""So many adversaries of a run are listed by their numbers."""


@dataclass(frozen=True)
class Adversary:
    """A client that attacks. Its options are the fields of a subclass, each with a default. The methods here are those of an honest client.

    Attributes:
        trains: whether it trains; if not, its session costs no MACs.
        together: whether all adversaries of a round draw the same random numbers.
        claims: whether it claims other samples than it has.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    trains: ClassVar[bool] = True
    together: ClassVar[bool] = False
    claims: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """Its name in the registry."""
        return adversaries.name_of(type(self)) or type(self).__name__

    @classmethod
    def of(cls, options: Options) -> Self:
        """Return the adversary with ``options``; ConfigError for an unknown one or a wrong value."""
        return with_options(cls, options)

    # Subclasses override these.

    def check(self, data: Dataset) -> None:
        """Raise :class:`ConfigError` if the options make no sense with ``data``, which has all that the adversary needs."""

    def poisoned(self, own: Split, classes: int, rng: np.random.Generator) -> Split:
        """Return the samples that the adversary trains on: as many as its ``own``, and of their shapes.

        ``own`` is a copy, which may be changed in place. ``classes`` is the number of labels. ``rng`` starts anew in every round, so that
        the choice is the same.
        """
        return own

    def sent(self, start: Tensor, trained: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the tensor that the adversary sends instead of ``trained`` (float32), of the same shape.

        ``start`` is what an honest client would send without training.
        """
        return trained

    def claimed(self, samples: int) -> int:
        """Return the number of samples that the adversary claims to have."""
        return samples

    def goal(self, held_out: Split, classes: int) -> Split | None:
        """Return held-out samples in attacked form, with the labels that the adversary wants; None if it wants no labels."""
        return None

    # A client calls these.

    def upload(self, start: Tensors, trained: Tensors, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return what it sends instead of ``trained``, by name; control variates, which ``start`` lacks, begin with zeros."""
        return {
            name: self._sent(name, start.get(name), tensor, rng) if tensor.is_floating_point() else tensor
            for name, tensor in trained.items()
        }

    def _sent(self, name: str, start: Tensor | None, trained: Tensor, rng: np.random.Generator) -> Tensor:
        sent: object = self.sent(torch.zeros_like(trained) if start is None else start, trained, rng)
        if not isinstance(sent, Tensor) or sent.shape != trained.shape:
            returned, expected = described(sent), described(trained)
            raise ConfigError(f"adversary {self.name}: sent returned {returned} for {name}, expected {expected}")
        return sent


@conduct("adversaries")
@dataclass(frozen=True)
class Adversaries(Conduct):
    """Which clients of a run are adversaries: a share of them, drawn by the seed.

    >>> some = Adversaries.of("sign-flip:0.1(scale=10)", clients=20, seed=0)
    >>> some.kind, some.count, some.listed
    (SignFlip(scale=10.0), 2, [10, 14])
    """

    kind: Adversary
    spec: Spec
    clients: int
    seed: int

    @classmethod
    def of(cls, spec: str, clients: int, seed: int) -> Self:
        """Return the adversaries of ``spec``, such as ``sign-flip:0.1(scale=10)``; ConfigError if it is wrong or nobody stays honest."""
        parts = shared(spec)
        try:
            attackers = cls(adversaries.load(parts.name).of(parts.options), parts, clients, seed)
        except ConfigError as error:
            raise ConfigError(f"adversary: {parts.name}: {error}") from None
        if attackers.count >= clients:
            raise ConfigError(
                f"adversary: {spec} makes all of {clients} clients adversaries; give more clients, or a smaller share"
            )
        return attackers

    def fields(self) -> MessageFields:
        """Return what :meth:`of` makes them from."""
        return {"spec": str(self.spec), "clients": self.clients, "seed": self.seed}

    @property
    def title(self) -> str:
        """The key with the name of the attack."""
        return f"adversary: {self.spec.name}"

    @property
    def claims(self) -> bool:  # type: ignore[override]  # of the attack
        """Whether adversaries claim other samples than they have."""
        return self.kind.claims

    @property
    def count(self) -> int:
        """How many clients are adversaries: the share, rounded, at least one."""
        return max(1, int(self.spec.share * self.clients + 0.5))

    def departs(self, client: int) -> bool:
        """Whether ``client`` is an adversary."""
        return bool(self._places([client])[0] < self.count)

    def among(self, clients: Iterable[int]) -> list[int]:
        """Return the adversaries among ``clients``, in their order."""
        asked = list(clients)
        return [client for client, place in zip(asked, self._places(asked), strict=True) if place < self.count]

    @cached_property
    def listed(self) -> list[int]:
        """The numbers of the adversaries, ascending; the first :data:`MOST_LISTED` if there are more."""
        numbers, block = list[int](), 10_000
        for begin in range(0, self.clients, block):
            numbers += self.among(range(begin, min(begin + block, self.clients)))
            if len(numbers) >= min(MOST_LISTED, self.count):
                break
        return numbers[:MOST_LISTED]

    def trains(self, client: int) -> bool:
        """Whether adversaries train."""
        return self.kind.trains

    def claimed(self, client: int, samples: int) -> int:
        """Return how many samples ``client``, which has ``samples``, says it has."""
        count: object = self.kind.claimed(samples) if self.departs(client) else samples
        if not isinstance(count, int | np.integer) or count < 1:
            raise ConfigError(f"adversary {self.kind.name}: claimed returned {count!r} for {samples}, expected an integer from 1")
        return int(count)

    def samples(self, client: int, own: Split, classes: int) -> Split:
        """Return the samples that the adversary ``client`` trains on."""
        expected = _shapes(own)
        split: object = self.kind.poisoned(own, classes, generator(self.seed, client, "poisoned samples"))
        shapes = _shapes(split) if isinstance(split, Split) else type(split).__name__
        if not isinstance(split, Split) or shapes != expected:
            raise ConfigError(f"adversary {self.kind.name}: poisoned returned {shapes}, expected {expected}")
        return split

    def sent(self, round_: int, client: int, start: Tensors, trained: Tensors) -> dict[str, Tensor]:
        """Return what the adversary ``client`` sends."""
        key = (round_, "adversaries") if self.kind.together else (round_, client, "adversary")
        return self.kind.upload(start, trained, generator(self.seed, *key))

    def _places(self, clients: list[int]) -> np.ndarray:
        return shuffled(self.seed, self.clients, np.array(clients, np.int64), "adversaries")


def _shapes(split: Split) -> str:
    return f"a Split of {each(np.shape, split.x)} and {split.y.shape}"


def lacks_of(data: Dataset, permute_labels: bool, method: Method) -> dict[Need, str]:
    """Return what an attack may need → why it is not there: of a run's data set and its labels, and of the method.

    >>> from edgefl.methods.create import create
    >>> heights = Dataset.from_arrays(np.ones((20, 2), np.float32), np.linspace(-1, 1, 20, dtype=np.float32), name="heights")
    >>> lacks_of(heights, True, create("heterofl"))["images"]
    'a sample of heights is no image'
    """
    lacks: dict[Need, str] = dict(method.lacks)
    if not data.classes:
        lacks["labels"] = f"{data.name} has float32 targets, no labels"
    shape = data.input_shape
    if isinstance(shape, Mapping) or len(shape) != 3 or data.vocabulary:
        lacks["images"] = f"a sample of {data.name} is no image"
    if permute_labels:
        lacks["common_labels"] = "permute_labels gives every client its own order of labels"
    if not method.weighs_samples:
        lacks["weighed_samples"] = f"{type(method).title} weighs no client by the samples that it claims"
    return lacks


def scaled(rng: np.random.Generator, like: Tensor, size: Tensor) -> Tensor:
    """Return normal draws of the shape of ``like``, float32, times the root mean square of ``size``."""
    drawn = torch.from_numpy(rng.standard_normal(tuple(like.shape), dtype=np.float32))
    return drawn * (size.square().mean().sqrt() if size.numel() else 0.0)
