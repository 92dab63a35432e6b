"""Tensors with several names: tied weights, and layers that a network has under two names. They are sent, stored and counted once."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import Tensor, nn


def tied(network: nn.Module) -> list[set[str]]:
    """Return the sets of names of parameters and buffers of ``network`` that are one tensor.

    >>> first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> second.weight = first.weight
    >>> [sorted(names) for names in tied(nn.Sequential(first, second))]
    [['0.weight', '1.weight']]
    """
    names: dict[int, set[str]] = {}
    for name, tensor in _named(network):
        names.setdefault(id(tensor), set()).add(name)
    return [same for same in names.values() if len(same) > 1]


def second_names(network: nn.Module) -> dict[str, str]:
    """Return name → first name, of every further name of a parameter or buffer of ``network``.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> second_names(nn.Sequential(layer, nn.ReLU(), layer))
    {'2.weight': '0.weight'}
    """
    first: dict[int, str] = {}
    return {name: known for name, tensor in _named(network) if (known := first.setdefault(id(tensor), name)) != name}


def named_once(network: nn.Module) -> nn.Module:
    """Return ``network``, whose ``state_dict`` from now on has each tensor under its first name only; it is loaded as well.

    Everything that is sent, stored, averaged and counted has the names of a ``state_dict``.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> network = named_once(nn.Sequential(layer, nn.ReLU(), layer))
    >>> list(network.state_dict()), network.load_state_dict({"0.weight": layer.weight.detach()})
    (['0.weight'], <All keys matched successfully>)
    """
    if second_names(network):
        network.register_state_dict_post_hook(_without_second_names)
        network.register_load_state_dict_pre_hook(_with_second_names)
    return network


def named_fully(network: nn.Module) -> nn.Module:
    """Return ``network`` with all names in its ``state_dict``, as its author knows it: the opposite of :func:`named_once`."""
    for module in network.modules():
        for hooks in (module._state_dict_hooks, module._load_state_dict_pre_hooks):
            for key in [key for key, hook in hooks.items() if getattr(hook, "__module__", "") == __name__]:
                del hooks[key]
    return network


def _named(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return chain(network.named_parameters(remove_duplicate=False), network.named_buffers(remove_duplicate=False))


def _without_second_names(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    for name in second_names(module):
        state.pop(prefix + name, None)


def _with_second_names(module: nn.Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    for name, first in second_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])
