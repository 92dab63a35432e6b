"""Layers and functions of torch with options that their ONNX operators lack; used while a module is traced."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from edgefl.onnxgrad.errors import EdgeflError


def _transposed(function: Callable[..., Tensor], axes: int) -> Callable[..., Tensor | None]:
    def transposed(
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
        strides, pads, behind = (
            [v] * axes if isinstance(v, int) else list(v) * (axes // len(v)) for v in (stride, padding, output_padding)
        )
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

    return transposed


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


LAYERS: dict[Any, Callable[..., Tensor | None]] = {
    **{
        function: _transposed(function, axes)
        for axes, function in enumerate((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), 1)
    },
    F.instance_norm: _normalised_by_instance,
    F.pad: _padded,
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _of_data("masked_select", "use torch.where")),
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), _of_data("tensor_split", "give its sections as whole numbers")),
    **dict.fromkeys((torch.narrow, Tensor.narrow), _moved_window),
}
"""Function of torch → the function here."""
