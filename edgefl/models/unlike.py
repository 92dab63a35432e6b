"""Tiers with different networks, as one architecture: it builds another network for each tier, instead of one network at several widths."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import nn

from edgefl.errors import ConfigError
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.util.fields import Fields


@dataclass(frozen=True)
class Unlike(Architecture):
    """Networks that have only their samples and labels in common. ``width`` is the ratio of a tier here, and chooses its network.

    Samples are those of tier 1, the whole model.

    Attributes:
        model: the tiers with the names of their networks.
        networks: label of a tier → its network.

    >>> both = Unlike.of({"1": Architecture("cnn-digits", (1, 8, 8), 10), "0.25": Architecture("mlp", (1, 8, 8), 10)})
    >>> both.model, sum(p.numel() for p in both.build(0.25).parameters())
    ('1=cnn-digits, 0.25=mlp', 19210)
    """

    networks: Mapping[str, Architecture] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, networks: Mapping[str, Architecture]) -> Self:
        """Return the architecture of ``networks``, among them that of tier 1; ConfigError if their outputs have no common meaning."""
        whole = networks["1"]
        for label, network in networks.items():
            if network.labels != whole.labels:
                words = {1: "one label a sample"}
                counts = (network.labels, whole.labels)
                has, expected = (words.get(count, f"{count} labels a sample, one for each token") for count in counts)
                raise ConfigError(f"tier {label}: {network.model} predicts {has}, and {whole.model} of tier 1 {expected}")
        names = ", ".join(f"{label}={network.model}" for label, network in networks.items())
        return cls(names, whole.input_shape, whole.classes, whole.norm, networks=networks)

    def __post_init__(self) -> None:
        """Check nothing: each network has been checked."""

    def at(self, width: float) -> Architecture:
        """Return the network of the tier of ratio ``width``; ConfigError if it has none."""
        if (network := self.networks.get(f"{width:g}")) is None:
            raise ConfigError(f"tier {width:g}: has no network; there are {self.model}")
        return network

    @property
    def every(self) -> tuple[Architecture, ...]:
        """The networks, in the order of their tiers."""
        return tuple(self.networks.values())

    def build(self, width: float = 1.0) -> nn.Module:
        """Return the network of the tier of ratio ``width``, freshly initialised."""
        return self.at(width).build()

    def samples(self, count: int) -> Any:
        """Return a batch of ``count`` samples, which all networks take."""
        return self.at(1.0).samples(count)

    @property
    def vocabulary(self) -> int:
        """The number of different token ids, as tier 1's network says."""
        return self.at(1.0).vocabulary

    @property
    def below(self) -> Fields[int]:
        """See :attr:`Architecture.below`."""
        return self.at(1.0).below

    @property
    def specs(self) -> Fields[InputSpec]:
        """See :attr:`Architecture.specs`."""
        return self.at(1.0).specs

    @property
    def labels(self) -> int:
        """How many labels a sample has."""
        return self.at(1.0).labels

    def __str__(self) -> str:
        """Return the shape of a sample, or those of its inputs."""
        return str(self.at(1.0))

    def described(self) -> dict[str, Any]:
        """See :meth:`Architecture.described`."""
        return super().described() | {"tiers": {label: network.described() for label, network in self.networks.items()}}

    def fields(self) -> dict[str, Any]:
        """See :meth:`Architecture.fields`."""
        return {"networks": {label: network.fields() for label, network in self.networks.items()}}
