"""Layers and functions of torch with options that their ONNX operators lack."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from edgefl.onnxgrad.decompositions.windows import each_axis
from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.errors import EdgeflError
from edgefl.onnxgrad.stand_ins import GROUP_NORM

_TRANSPOSED: Any = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d


def _transposed(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor | None:
    """Compute a single map as a batch of one, and ``output_padding`` of a stride or more, which onnxruntime refuses, as padding."""
    axes = weight.dim() - 2
    function = _TRANSPOSED[axes - 1]
    strides, pads, behind = zip(*each_axis(axes, stride, padding, output_padding), strict=True)
    wide = any(more >= step for more, step in zip(behind, strides, strict=True))
    single = input.dim() == axes + 1
    if not wide and not single:
        return None
    x = input.unsqueeze(0) if single else input
    if wide:
        found = function(x, weight, None, strides, 0, 0, groups, dilation)
        ends = [part for pad, more in zip(pads, behind, strict=True) for part in (more - pad, -pad)]
        found = F.pad(found, ends[::-1])
        found = found if bias is None else found + bias.reshape(-1, *[1] * axes)
    else:
        found = function(x, weight, bias, strides, pads, behind, groups, dilation)
    return found.squeeze(0) if single else found


def _padded(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor | None:
    """Select the entries that a padding with negative sizes repeats; onnxruntime first removes entries, and then repeats what is left."""
    if mode not in ("replicate", "reflect") or min(pad) >= 0:
        return None
    for number, (begin, end) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        size = input.shape[-number]
        if not isinstance(size, int):
            return None
        places = [place - begin for place in range(size + begin + end)]
        if mode == "replicate":
            index = [min(max(place, 0), size - 1) for place in places]
        else:
            index = [size - 1 - abs(size - 1 - abs(place)) for place in places]
        input = input.index_select(input.dim() - number, torch.tensor(index))
    return input


def _moved_window(input: Tensor, dim: int, start: Any, length: int) -> Tensor | None:
    """Select entries that begin at a computed place."""
    if not isinstance(start, Tensor):
        return None
    places = torch.arange(length) + torch.where(start < 0, start + input.shape[dim], start)
    return input.index_select(dim, places)


def _normalised_by_instance(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Normalise each map, and update running statistics by the means over the batch of the maps' means and variances."""
    if not isinstance(running_mean, FakeTensor) or running_var is None:  # none, or constants, which nobody reads again
        return None
    axes = tuple(range(2, input.dim()))
    if not use_input_stats:
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, 0.0, eps)
    variance, mean = torch.var_mean(input.detach(), axes)
    running_mean.copy_((1 - momentum) * running_mean + momentum * mean.mean(0))
    running_var.copy_((1 - momentum) * running_var + momentum * variance.mean(0))
    return F.instance_norm(input, None, None, weight, bias, True, 0.0, eps)


def _of_data(name: str, remedy: str) -> Callable[..., Tensor | None]:
    """Return the refusal of a function whose result has a size that depends on values."""

    def refused(*args: Any, **options: Any) -> Tensor | None:
        if name == "tensor_split" and not any(isinstance(part, Tensor) for part in (*args[1:], *options.values())):
            return None
        raise EdgeflError(f"{name} has no ONNX form here, the sizes of its result depend on values; {remedy}")

    return refused


def projected_lstm(
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    biased: bool,
    layers: int,
    dropout: float,
    train: bool,
    both: bool,
    first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``torch.lstm`` for states (layers · directions, batch, proj_size) and (layers · directions, batch, hidden_size)."""
    x = x.transpose(0, 1) if first else x
    if not isinstance(x.shape[0], int):
        raise EdgeflError("LSTM with proj_size has an ONNX form for a fixed number of steps; pad the sequences to one length")
    each, ends = len(weights) // (layers * (1 + both)), []
    for layer in range(layers):
        outputs = []
        for direction in range(1 + both):
            place = layer * (1 + both) + direction
            own = weights[place * each : (place + 1) * each]
            found, *end = _direction(x, states[0][place], states[1][place], own, biased, bool(direction))
            outputs.append(found)
            ends.append(end)
        x = torch.cat(outputs, 2)
    hidden, cell = (torch.stack(parts) for parts in zip(*ends, strict=True))
    return x.transpose(0, 1) if first else x, hidden, cell


def _direction(
    x: Tensor, hidden: Tensor, cell: Tensor, weights: Sequence[Tensor], biased: bool, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs (steps, batch, proj_size) of one direction, and its last states."""
    of_input, of_hidden, *biases, projection = weights
    gates = x @ of_input.T
    if biased:
        gates = gates + biases[0] + biases[1]
    outputs: list[Tensor] = []
    for step in sorted(range(x.shape[0]), reverse=backwards):
        enter, forget, candidate, leave = (gates[step] + hidden @ of_hidden.T).chunk(4, 1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(candidate)
        hidden = (torch.sigmoid(leave) * torch.tanh(cell)) @ projection.T
        outputs.append(hidden)
    return torch.stack(outputs[::-1] if backwards else outputs), hidden, cell


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **options: Any
) -> Tensor | None:
    """Compute attention of a single head, without an axis for heads, as that of one of several."""
    if query.dim() != 3:
        return None
    mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value, mask, *args, **options).squeeze(1)


def _of_bags(rows: Tensor, offsets: Tensor, mode: str, counts: Tensor | None) -> Tensor:
    """Return sum, mean or maximum of the rows from each offset to the next; ``counts`` tells which rows count."""
    places = torch.arange(rows.shape[0])
    ends = torch.cat([offsets[1:], torch.full_like(offsets[:1], rows.shape[0])])
    own = (places >= offsets.unsqueeze(1)) & (places < ends.unsqueeze(1))
    own = own if counts is None else own & counts
    if mode == "max":
        highest = torch.where(own.unsqueeze(-1), rows, -torch.inf).amax(1)
        return torch.where(own.any(1, keepdim=True), highest, 0)
    total = own.to(rows.dtype) @ rows
    return total / own.to(rows.dtype).sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total


def _bags(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Compute an embedding bag as an embedding and the sum, mean or maximum of the rows of each bag."""
    by_offsets = input.dim() == 1 and offsets is not None and include_last_offset in (False, 0)
    if max_norm is not None or scale_grad_by_freq or not (input.dim() == 2 or by_offsets):
        raise EdgeflError(
            "embedding_bag has an ONNX form for ids (samples, length) without max_norm and scale_grad_by_freq; pad bags with padding_idx"
        )
    rows = F.embedding(input, weight)
    rows = rows if per_sample_weights is None else rows * per_sample_weights.unsqueeze(-1)
    if by_offsets and offsets is not None:
        return _of_bags(rows, offsets, mode, None if padding_idx is None else input != padding_idx % weight.shape[0])
    if padding_idx is None:
        return rows.amax(1) if mode == "max" else rows.mean(1) if mode == "mean" else rows.sum(1)
    own = (input != padding_idx % weight.shape[0]).unsqueeze(-1)
    if mode == "max":
        highest = rows.masked_fill(~own, float("-inf")).amax(1)
        return torch.where(own.any(1), highest, torch.zeros_like(highest))
    total = torch.where(own, rows, torch.zeros_like(rows)).sum(1)
    return total / own.to(rows.dtype).sum(1).clamp(min=1) if mode == "mean" else total


def _distances(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: str | None = None) -> Tensor:
    """Compute the distances of all pairs of rows as norms of their differences; of equal largest ones each gets all of the gradient."""
    apart = x1.unsqueeze(-2) - x2.unsqueeze(-3)
    if p != math.inf:
        return torch.linalg.vector_norm(apart, p, -1)
    size = apart.abs()
    largest = held(size.amax(-1))
    hits = size == largest.unsqueeze(-1)
    return largest + torch.where(hits, size - held(size), torch.zeros_like(size)).sum(-1)


LAYERS: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys(_TRANSPOSED, _transposed),
    F.instance_norm: _normalised_by_instance,
    F.group_norm: lambda input, num_groups, weight=None, bias=None, eps=1e-5: GROUP_NORM(input, num_groups, weight, bias, eps),
    F.pad: _padded,
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _of_data("masked_select", "use torch.where")),
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), _of_data("tensor_split", "give its sections as whole numbers")),
    **dict.fromkeys((torch.narrow, Tensor.narrow), _moved_window),
    F.scaled_dot_product_attention: _attention,
    F.embedding_bag: _bags,
    # The exporter has no form for the extreme of one number.
    **dict.fromkeys(
        (torch.amax, Tensor.amax, torch.amin, Tensor.amin),
        lambda input, dim=(), keepdim=False: input.clone() if input.dim() == 0 else None,
    ),
    torch.cdist: _distances,
}
"""Function of torch → the function here."""
