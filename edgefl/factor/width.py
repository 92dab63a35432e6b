"""Width slicing: a narrow network's tensors are the leading corner of the wide network's."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from edgefl.records import Place

Shape = tuple[int, ...]


def leading(name: str, shape: Shape, wide: Shape = (), blocks: int = 1) -> Place:
    """Return the place of a narrow tensor: the first ``shape[d]`` entries of dimension d, for every d (HeteroFL, section 3.1).

    A tensor of ``blocks`` equal blocks, one below the other like the gates of an LSTM, has the first rows of each block; ``wide`` is then
    the shape of the wide tensor.

    >>> leading("fc.weight", (10, 16)).index
    (slice(0, 10, None), slice(0, 16, None))
    >>> leading("lstm.bias_hh_l0", (4,), (12,), blocks=4).index
    (tensor([0, 3, 6, 9]),)
    """
    slices = tuple(slice(0, size) for size in shape)
    if blocks == 1 or shape[:1] == wide[:1]:
        return Place(name, slices)
    starts, rows = torch.arange(blocks) * (wide[0] // blocks), torch.arange(shape[0] // blocks)
    return Place(name, ((starts[:, None] + rows).flatten(), *slices[1:]))


def nested(narrow: Mapping[str, Shape], wide: Mapping[str, Shape], stacked: Mapping[str, int]) -> dict[str, Place]:
    """Return the place of every tensor of a narrow network in the wide one; ``stacked``: :func:`stacked_in`."""
    return {name: leading(name, shape, wide[name], stacked.get(name, 1)) for name, shape in narrow.items()}


def stacked_in(network: nn.Module) -> dict[str, int]:
    """Return the tensors of ``network`` that consist of several equal blocks (the gates of recurrent layers), and the number of blocks.

    >>> stacked_in(nn.LSTM(2, 3))
    {'weight_ih_l0': 4, 'weight_hh_l0': 4, 'bias_ih_l0': 4, 'bias_hh_l0': 4}
    """
    found: dict[str, int] = {}
    for path, layer in network.named_modules():
        if isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                if name.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
                    found[f"{path}.{name}".lstrip(".")] = parameter.shape[0] // layer.hidden_size
    return {name: blocks for name, blocks in found.items() if blocks > 1}


def cut(tensors: Mapping[str, Tensor], places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Return a copy of every placed entry, in the small shapes."""
    return {name: tensors[place.target][place.index].clone() for name, place in places.items()}
