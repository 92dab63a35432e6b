"""Derivatives inside a loss. Autograd computes them; exported graphs have placeholders that :mod:`edgefl.onnxgrad.autodiff` replaces."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch import Tensor, nn

from edgefl.errors import ConfigError
from edgefl.onnxgrad.stateless import called, carry


def gradients(value: Tensor, tensors: Sequence[Tensor], constant: bool = True, keep: bool = False) -> tuple[Tensor, ...]:
    """Return ∂``value``/∂t for each t of ``tensors``, in t's shape and dtype; zeros if the scalar ``value`` does not depend on t.

    ``constant``: whether further differentiation treats the result as a constant. ``keep``: whether ``value`` will be differentiated again.

    >>> w = torch.tensor([1.0, -2.0], requires_grad=True)
    >>> gradients(w.square().sum(), [w])
    (tensor([ 2., -4.]),)
    """
    if torch.compiler.is_exporting():
        types, shapes = [t.dtype for t in tensors], [t.shape for t in tensors]
        outputs = torch.onnx.ops.symbolic_multi_out(
            "edgefl::Gradient", (value, *tensors), {"constant": int(constant)}, dtypes=types, shapes=shapes, version=1
        )
        return tuple(outputs)
    return torch.autograd.grad(
        value, tensors, retain_graph=keep or not constant, create_graph=not constant, materialize_grads=True
    )


def held(tensor: Tensor) -> Tensor:
    """Return ``tensor`` as a constant for differentiation.

    >>> held(torch.ones(1, requires_grad=True)).requires_grad
    False
    """
    if torch.compiler.is_exporting():
        constant: Tensor = torch.onnx.ops.symbolic("edgefl::Held", (tensor,), dtype=tensor.dtype, shape=tensor.shape, version=1)
        return constant
    return tensor.detach()


def called_with(module: nn.Module, tensors: Mapping[str, Tensor], x: Any) -> Tensor:
    """Return what ``module`` computes for ``x`` with ``tensors`` in place of its own; ConfigError if it uses gradient checkpointing.

    Checkpointing runs layers again in the backward pass, where they would read the module's own tensors: the gradient would be wrong.
    """
    refused = (
        f"model {type(module).__name__} uses gradient checkpointing (torch.utils.checkpoint), which cannot find the weights that this "
        "method computes with; leave it out, or choose another method"
    )
    with ExitStack() as refusing:
        with suppress(RuntimeError):  # the forward pass of recomputation has hooks already; its costs were traced without them
            refusing.enter_context(torch.autograd.graph.disable_saved_tensors_hooks(refused))
        try:
            after = {**dict(module.named_buffers()), **tensors}
            before = dict(after)
            result: Tensor = called(module, after, (x,))
            carry(before, after)
        except RuntimeError as error:
            if str(error) == refused:
                raise ConfigError(refused) from None
            raise
        return result
