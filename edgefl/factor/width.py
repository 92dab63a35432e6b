"""Width slicing: the tensors of a narrow network are leading slices of the wide network's tensors."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from edgefl.records import Place

Shape = tuple[int, ...]


def leading(name: str, shape: Shape, wide: Shape = (), blocks: int = 1) -> Place:
    """Return the place in ``name`` of a narrow tensor: the first ``shape[d]`` entries of each dimension d (HeteroFL, section 3.1).

    If the tensor stacks ``blocks`` equal blocks along its rows, like the gates of an LSTM, its rows are the first rows of each block.
    ``wide``, the shape of the wide tensor, is then needed.

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


def nested(
    narrow: Mapping[str, Shape],
    wide: Mapping[str, Shape],
    stacked: Mapping[str, int],
    entries: Callable[[str], Sequence[Tensor] | None] = lambda name: None,
) -> dict[str, Place]:
    """Return name → place in the wide network, from name → shape of both networks.

    ``stacked`` is the result of :func:`stacked_in`. ``entries`` maps a name to the positions of the narrow tensor's entries along each
    dimension of the wide one; None: the leading ones.
    """
    places = {}
    for name, shape in narrow.items():
        numbers = entries(name) if shape != wide[name] else None
        places[name] = leading(name, shape, wide[name], stacked.get(name, 1)) if numbers is None else listed(name, numbers)
    return places


def listed(name: str, numbers: Sequence[Tensor]) -> Place:
    """Return the place in ``name`` of the entries ``numbers`` along each dimension, as slices where they are leading ones.

    >>> listed("w", (torch.tensor([0, 1]), torch.tensor([0, 1, 2]))).index
    (slice(0, 2, None), slice(0, 3, None))
    >>> listed("w", (torch.tensor([0, 4]), torch.tensor([0, 1, 2]))).index
    (tensor([[0],
            [4]]), tensor([[0, 1, 2]]))
    """
    if all(len(along) == 0 or int(along[-1]) == len(along) - 1 for along in numbers):
        return Place(name, tuple(slice(0, len(along)) for along in numbers))
    rank = range(len(numbers))
    # Each vector along its own dimension: together they index a block.
    return Place(name, tuple(along.view([-1 if dim == place else 1 for dim in rank]) for place, along in enumerate(numbers)))


def stacked_in(network: nn.Module) -> dict[str, int]:
    """Return name → number of blocks of the tensors that stack several equal blocks: the gates of recurrent layers.

    >>> stacked_in(nn.LSTM(2, 3))
    {'weight_ih_l0': 4, 'weight_hh_l0': 4, 'bias_ih_l0': 4, 'bias_hh_l0': 4}
    """
    counts: dict[str, int] = {}
    for path, layer in network.named_modules():
        if isinstance(layer, nn.RNNBase):
            for name, parameter in layer.named_parameters():
                if name.startswith(("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
                    counts[f"{path}.{name}".lstrip(".")] = parameter.shape[0] // layer.hidden_size
    return {name: blocks for name, blocks in counts.items() if blocks > 1}


def cut(tensors: Mapping[str, Tensor], places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Return name → copy of the entries of ``tensors`` at the place, in the narrow shapes.

    >>> cut({"w": torch.arange(6.0).view(2, 3)}, {"w": leading("w", (1, 2))})
    {'w': tensor([[0., 1.]])}
    """
    return {name: tensors[place.target][place.index].clone() for name, place in places.items()}
