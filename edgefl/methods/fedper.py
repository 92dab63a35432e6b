"""FedPer: the first layers are averaged, and every client has last layers of its own."""

from pydantic import Field
from torch import nn

from edgefl.errors import ConfigError
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.options import MethodConfig
from edgefl.methods.personal import Personal
from edgefl.models.base import Architecture, weighted_layers
from edgefl.models.ties import tied
from edgefl.records import Tier
from edgefl.registry import method


class FedPerConfig(MethodConfig):
    """Options of FedPer.

    Attributes:
        layers: how many of the last convolutions and linear layers are personal.
    """

    layers: int = Field(1, ge=1)


@method("fedper")
class FedPer(Personal, FedAvg):
    """The base layers are averaged by samples; every client has its own last ``layers`` layers (Algorithms 1 and 2).

    The client stores its personal layers, and receives and sends all others. Modules that are defined after the first personal layer, such
    as normalisation, are personal too.

    Differs from the paper: its clients draw their initial personal layers at random. Here all clients have the same initial ones, shipped
    with the application.
    """

    config: FedPerConfig
    title = "FedPer"
    paper = "Arivazhagan et al., Federated Learning with Personalization Layers, 2019"
    travels = "every weight before the personal layers, both ways"
    personalised = True
    stays = "the last layers: the classifier, or as many as the option layers says"

    def check(self, architecture: Architecture, tiers: tuple[Tier, ...], clients: int) -> None:
        """Raise :class:`ConfigError` if no layer is left to average."""
        network = architecture.skeleton(tiers[0].ratio)
        layers = [name for name, _ in weighted_layers(network)]
        if self.config.layers > len(layers) or self.personal(network) >= network.state_dict().keys():
            raise ConfigError(
                f"method_options.layers: {self.config.layers} personal layers leave none to average, {architecture.model} has "
                f"{len(layers)}: {', '.join(layers)}; give at most {len(layers) - 1}"
            )

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names of the first personal layer's tensors and of all that are defined after them."""
        return last_layers(network, self.config.layers)


def last_layers(network: nn.Module, count: int = 1) -> frozenset[str]:
    """Return the names of the tensors of the last ``count`` weighted layers, and of all that are defined after the first of them.

    ConfigError: a layer before them uses one of these tensors too.

    >>> sorted(last_layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))))
    ['2.bias', '2.weight']
    """
    layers = [name for name, _ in weighted_layers(network)]
    last = layers[-min(count, len(layers)) :]
    first, names = last[0], list(network.state_dict())
    personal = [network.get_submodule(name) for name in last]
    for same in tied(network):
        own = sorted(name for name in same if network.get_submodule(name.rpartition(".")[0]) in personal)
        if own and (others := sorted(same.difference(own))):
            raise ConfigError(
                f"{own[0]} is also {others[0]}, so that it cannot be personal where that is averaged; choose another method, or a network "
                "whose last layers have weights of their own"
            )
    return frozenset(names[next(i for i, name in enumerate(names) if name.startswith(f"{first}.")) :])
