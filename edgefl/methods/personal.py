"""Capabilities of methods whose clients have tensors of their own, or receive others than they send; and what all methods do instead."""

import abc
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from edgefl.methods.base import Method
from edgefl.methods.networks import cut_out, filled, skeleton, slices, upload_shapes
from edgefl.methods.state import GlobalState, Shape, Tensors, copied
from edgefl.models.base import Architecture, load, once_per_network
from edgefl.records import Submodel, Tier
from edgefl.rng import torch_seeded

Samples = tuple[Any, Tensor]
"""A client's samples (n, …), or name → samples for several inputs, and its labels (n,)."""


class Personal(Method):
    """Some tensors stay on the client, or it adapts the deployed network to its own samples.

    Attributes:
        stored: whether clients store these tensors. Otherwise they never change, and are part of the application.
    """

    stored: ClassVar[bool] = True

    def personal(self, network: nn.Module) -> frozenset[str]:
        """Return the names in ``network``'s state_dict that stay on the client: by default none."""
        return frozenset()

    def first_personal(self, architecture: Architecture, tier: Tier, rng: np.random.Generator) -> dict[str, Tensor]:
        """Return the personal tensors of a client that never trained; with the ``rng`` of :meth:`init`, those of the server's network."""
        if not (names := self.personal(skeleton(self, architecture, tier))):
            return {}
        with torch_seeded(rng):
            network = self.network(architecture, tier)
        return {name: tensor for name, tensor in copied(network).items() if name in names}

    def keep(self, module: nn.Module) -> dict[str, Tensor]:
        """Return copies of the tensors that the client stores until its next round: by default the personal ones."""
        names = self.personal(module) if self.stored else frozenset()
        return {name: tensor.detach().clone() for name, tensor in module.state_dict().items() if name in names}

    def upload(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the tensors that the client sends back: by default those of floating point that are not personal."""
        personal = self.personal(module)
        return {name: tensor for name, tensor in super().upload(module).items() if name not in personal}

    def adapt(self, module: nn.Module, x: Any, y: Tensor) -> nn.Module:
        """Return the deployed network, adapted by the client to its own samples ``x`` (n, …) and labels ``y`` (n,) before use."""
        return module


class Receives(Method, abc.ABC):
    """A client receives other tensors than it sends."""

    @abc.abstractmethod
    def received_shapes(self, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
        """Return name → shape of the tensors that a client of ``tier`` receives; payloads are checked against it."""

    def submodel(self, state: GlobalState, tier: Tier, rng: np.random.Generator, client: int | None = None) -> Submodel:
        """Return the sub-model: by default leading slices of the shapes that are received."""
        return cut_out(self, state, tier, slices(self, state, tier, self.received_shapes))

    def receive(self, module: nn.Module, received: Tensors, personal: Tensors, batches: Samples) -> None:
        """Make the client's network ``module`` of received and stored tensors: by default they are loaded into it."""
        load(module, {**received, **personal})

    def evaluated(self, samples: int) -> int:
        """Return how often a client with ``samples`` samples computes one of them when it receives: by default never."""
        return 0

    def trained_network(
        self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
    ) -> nn.Module:
        """Return the network that ``client`` trains, without samples to receive by; see :func:`trained_network`."""
        return filled(self, state, tier, personal, client)

    def deploy(self, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None) -> nn.Module:
        """Return the tier's network as a device runs it: by default the one that ``client`` trains."""
        return self.trained_network(state, tier, personal, client)


def download_shapes(method: Method, architecture: Architecture, tier: Tier) -> dict[str, Shape]:
    """Return name → shape of the tensors that a client of ``tier`` receives: those that it sends, unless the method :class:`Receives`."""
    if isinstance(method, Receives):
        return method.received_shapes(architecture, tier)
    return upload_shapes(method, architecture, tier)


def personal_names(method: Method, network: nn.Module) -> frozenset[str]:
    """Return the names in ``network``'s state_dict that stay on the client."""
    return method.personal(network) if isinstance(method, Personal) else frozenset()


def kept(method: Method, module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the tensors that a client stores until its next round."""
    return method.keep(module) if isinstance(method, Personal) else {}


def stored(method: Method, architecture: Architecture, tier: Tier) -> frozenset[str]:
    """Return the names of the tensors that a client of ``tier`` stores between rounds."""
    return _stored(architecture, tier, method) if isinstance(method, Personal) else frozenset()


@once_per_network
def _stored(architecture: Architecture, tier: Tier, method: Personal) -> frozenset[str]:
    return frozenset(method.keep(skeleton(method, architecture, tier)))


def received(method: Method, module: nn.Module, tensors: Tensors, personal: Tensors, batches: Samples) -> None:
    """Make a client's network ``module`` of the ``tensors`` that it received and of ``personal`` ones."""
    if isinstance(method, Receives):
        method.receive(module, tensors, personal, batches)
    else:
        load(module, {**tensors, **personal})


def evaluated(method: Method, samples: int) -> int:
    """Return how often a client with ``samples`` samples computes one of them in a round without training."""
    return method.evaluated(samples) if isinstance(method, Receives) else 0


def trained_network(
    method: Method, state: GlobalState, tier: Tier, personal: Tensors | None = None, client: int | None = None
) -> nn.Module:
    """Return the network that ``client`` (None: no particular one) trains, in evaluation mode.

    ``personal`` has the tensors that the client stored. Tensors that are neither sent nor stored have their initial values.
    """
    if isinstance(method, Receives):
        return method.trained_network(state, tier, personal, client)
    return filled(method, state, tier, personal, client)


def adapted(method: Method, module: nn.Module, x: Any, y: Tensor) -> nn.Module:
    """Return the deployed network ``module``, adapted to a client's samples ``x`` (n, …) and labels ``y`` (n,) if the method does so."""
    return method.adapt(module, x, y) if isinstance(method, Personal) else module
