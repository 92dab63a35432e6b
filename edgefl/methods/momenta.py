"""Momentum that clients hand on: they send that of their optimizer with their weights, and begin the next round with the server's.

It is a buffer of the network for each parameter, so that it travels, is averaged, stored and counted as other tensors are. The optimizer
of a client has these buffers as its state (:class:`edgefl.client.optimizer.FusedOptimizer`).
"""

import torch
from torch import Tensor, nn

_NAME = "momenta"
_DOT = "/"
"""Stands for the dots of a parameter's name, which a buffer's name must not have."""


def momentum_name(parameter: str) -> str:
    """Return the name of the momentum of a parameter in the network's state_dict.

    >>> momentum_name("conv2.u.weight")
    'momenta.conv2/u/weight'
    """
    return f"{_NAME}.{parameter.replace('.', _DOT)}"


def parameter_of(name: str) -> str:
    """Return the parameter whose momentum has this name in the state_dict; ``name`` itself if it is no momentum's.

    >>> parameter_of("momenta.conv2/u/weight"), parameter_of("conv2.bias")
    ('conv2.u.weight', 'conv2.bias')
    """
    buffer = name.removeprefix(f"{_NAME}.")
    return name if buffer == name else buffer.replace(_DOT, ".")


def with_momenta(network: nn.Module) -> nn.Module:
    """Return ``network`` with a momentum of 0 for each of its parameters.

    >>> list(with_momenta(nn.Sequential(nn.Linear(2, 1))).state_dict())
    ['0.weight', '0.bias', 'momenta.0/weight', 'momenta.0/bias']
    """
    momenta = nn.Module()
    for name, parameter in network.named_parameters():
        momenta.register_buffer(name.replace(".", _DOT), torch.zeros_like(parameter, requires_grad=False))
    network.add_module(_NAME, momenta)
    return network


def momenta_of(network: nn.Module) -> dict[str, Tensor]:
    """Return parameter → its momentum, those of :func:`with_momenta`; empty if clients begin every round without momentum."""
    momenta = getattr(network, _NAME, None)
    buffers = momenta.named_buffers() if isinstance(momenta, nn.Module) else ()
    return {name.replace(_DOT, "."): momentum for name, momentum in buffers}
