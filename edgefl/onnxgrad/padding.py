"""Embeddings with a padding row in training graphs: torch reads that row, and never trains it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edgefl.onnxgrad.detached import held
from edgefl.onnxgrad.errors import EdgeflError


class UntrainedPadding(TorchFunctionMode):
    """Within this context, while a loss is exported, embeddings read their row ``padding_idx`` as a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``, or read an embedding whose padding is a constant."""
        if func is F.embedding and torch.compiler.is_exporting():
            return _embedding(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if max_norm is not None:
        raise EdgeflError("an embedding with max_norm changes its weights whenever it is called; set max_norm=None")
    if scale_grad_by_freq:
        raise EdgeflError("scale_grad_by_freq of an embedding divides its gradients, and no ONNX graph does; set it to False")
    rows = F.embedding(input, weight)
    if padding_idx is None:
        return rows
    return torch.where((input == padding_idx % weight.shape[0]).unsqueeze(-1), held(rows), rows)
