"""FedPer: the last layers stay on their clients; all others are averaged."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import nn

from edgefl.errors import ConfigError
from edgefl.methods.base import MethodConfig
from edgefl.methods.fedavg import FedAvg
from edgefl.models.base import Architecture, weighted_layers
from edgefl.records import Tier
from edgefl.registry import method


class FedPerConfig(MethodConfig):
    """Options of FedPer.

    Attributes:
        layers: how many of the last convolutions and linear layers are personal.
    """

    layers: int = Field(1, ge=1)


@method("fedper")
class FedPer(FedAvg):
    """Base layers are averaged by sample counts; the last ``layers`` layers are each client's own (Algorithms 1 and 2).

    Modules defined after the first personal layer, such as normalisation, are personal too.

    Differs from the paper: its clients draw their first personal layers; here the application ships the same ones to all.
    """

    config: FedPerConfig
    title: ClassVar[str] = "FedPer"
    paper: ClassVar[str] = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    tier_meaning: ClassVar[str] = "one tier only: the width of the network that everyone trains"
    travels: ClassVar[str] = "every weight before the personal layers, both ways"
    personalised: ClassVar[bool] = True
    stays: ClassVar[str] = "the last layers: the classifier, or as many as the option layers says"

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer is left to average."""
        network = architecture.skeleton(tiers[0].ratio)
        found = [name for name, _ in weighted_layers(network)]
        if self.config.layers > len(found) or self.personal(network) >= network.state_dict().keys():
            raise ConfigError(
                f"method_options.layers: {self.config.layers} personal layers leave none to average, {architecture.model} has "
                f"{len(found)}: {', '.join(found)}; give at most {len(found) - 1}"
            )

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the tensors from the first personal layer on, in the order of definition."""
        layers = [name for name, _ in weighted_layers(network)]
        first = layers[-min(self.config.layers, len(layers))]
        names = list(network.state_dict())
        return frozenset(names[next(i for i, name in enumerate(names) if name.startswith(f"{first}.")) :])
