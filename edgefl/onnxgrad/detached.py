"""Constants of the backward pass, while a loss is traced: torch's exporter leaves ``detach`` and ``no_grad`` out."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from edgefl.onnxgrad.errors import EdgeflError
from edgefl.onnxgrad.graphs import OPSET

DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # a property of C
"""What reads the attribute ``data`` of a tensor."""
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]  # as above
_IN_PLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__")


class Detached(TorchFunctionMode):
    """Marks what is computed by ``detach``, or inside ``torch.no_grad``, as constant for :mod:`edgefl.onnxgrad.autodiff`.

    Code that writes over one of the ``parameters`` by such a constant raises an EdgeflError: the step would start from the old values.
    """

    def __init__(self, parameters: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._differentiates = True
        self._parameters = list(parameters)
        self._shared: list[Tensor] = []
        """Constants that share the memory of a parameter."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; a constant is its result or, if it changes its first argument, what the other arguments bring there."""
        # Inside the forward pass of an autograd.Function gradients are off, too, and yet they pass.
        if func is torch._C._set_grad_enabled:  # noqa: SLF001 - what no_grad calls
            self._differentiates = bool(args[0])
        if not torch.compiler.is_exporting():
            return func(*args, **(kwargs or {}))
        if func is Tensor.detach_:
            raise EdgeflError("detach_ makes a constant of a tensor that was used before; write x = x.detach()")
        if func is Tensor.item:  # a number, through which no gradient flows
            return func(held(args[0]))
        if (self._shared and _writes(func) and _holds(self._shared, args[0])) or (
            func in (_SET_DATA,) and _holds(self._parameters, args[0])
        ):
            raise EdgeflError(
                "forward writes over a parameter, by .data or detach(); compute a new tensor, such as weight.clamp(-1, 1)"
            )
        detaches = func in (torch.detach, Tensor.detach, DATA) and torch.is_grad_enabled()
        # The compiler, which traces in strict mode, cannot tell.
        inference = not torch.compiler.is_dynamo_compiling() and torch.is_inference_mode_enabled()
        if self._differentiates and not detaches and not inference:
            return func(*args, **(kwargs or {}))
        if kwargs and kwargs.get("out") is not None:  # it returns that tensor
            return func(*map(held, args), **kwargs)
        if _writes(func):
            return func(args[0], *map(held, args[1:]), **(kwargs or {}))
        found = held(func(*args, **(kwargs or {})))
        if detaches and _holds(self._parameters, args[0]):
            self._shared.append(found)
        return found


def _writes(func: Any) -> bool:
    """Whether a function of torch writes over its first argument."""
    name = getattr(func, "__name__", "")
    return name in _IN_PLACE or (name.endswith("_") and not name.startswith("_"))


def _holds(tensors: Iterable[Tensor], value: Any) -> bool:
    return any(value is tensor for tensor in tensors)


def held(value: Any) -> Any:
    """Return a tensor of real numbers, or several, as constants of the backward pass, while a module is traced; anything else as it is."""
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map(held, value))
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return onnx_node("edgefl::Held", (value,), value.shape)


def onnx_node(operator: str, inputs: Sequence[Tensor], shape: Sequence[Any], **attributes: Any) -> Tensor:
    """Return the result of an operator of ONNX, or of the domain ``edgefl``, in a traced graph; it has the type of the first input."""
    version = 1 if operator.startswith("edgefl::") else OPSET
    return torch.onnx.ops.symbolic(operator, inputs, attributes, dtype=inputs[0].dtype, shape=shape, version=version)


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
