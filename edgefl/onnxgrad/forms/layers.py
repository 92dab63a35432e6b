"""Layers of torch for one sample without a batch, or with options that their ONNX operators lack; used while a module is traced."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def _single(function: Callable[..., Tensor], axes: int) -> Callable[..., Tensor | None]:
    """Return a transposed convolution of one map without a batch, as that of a batch of one."""

    def transposed(input: Tensor, *args: Any, **options: Any) -> Tensor | None:
        return function(input.unsqueeze(0), *args, **options).squeeze(0) if input.dim() == axes + 1 else None

    return transposed


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


LAYERS: dict[Any, Callable[..., Tensor | None]] = {
    **{
        function: _single(function, axes)
        for axes, function in enumerate((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), 1)
    },
    F.instance_norm: _normalised_by_instance,
}
"""Function of torch → the function here."""
