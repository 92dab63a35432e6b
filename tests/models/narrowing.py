"""A user's networks and their narrow ones, for comparison with the wide network of which all else is zero."""

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec

IMAGE = {"": InputSpec((3, 16, 16))}
TOKENS = {"": InputSpec((7, 5))}


def architecture(factory: Callable[[], nn.Module], inputs: Mapping[str, InputSpec] = IMAGE) -> CustomArchitecture:
    """Return a user's network, as ``--model`` takes it."""
    return CustomArchitecture(model="mine", factory=factory, inputs=inputs)


def first(network: nn.Module, x: Tensor) -> Tensor:
    """Return the outputs of a network in evaluation."""
    with torch.no_grad():
        found: Tensor = network.eval()(x)
    return found


def silenced(network: nn.Module, source: CustomArchitecture, width: float) -> nn.Module:
    """Return the wide network with almost zero wherever the narrow one has no entry; norms of zeros would be NaN."""
    network = copy.deepcopy(network)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            mask = torch.full_like(parameter, 1e-12)
            if parameter.dim():
                mask[torch.meshgrid(*source.channels.kept(name, width), indexing="ij")] = 1
                parameter.mul_(mask)
    return network
