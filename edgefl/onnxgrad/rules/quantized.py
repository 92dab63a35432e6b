"""Numbers as integers with a scale and a zero point, and products of such integers."""

import torch
from torch import Tensor

from edgefl.onnxgrad.rules.common import DTYPES, Choices, Operator, Rule, spread
from edgefl.onnxgrad.rules.windows import CONV_ATTRIBUTES, PADDING, convolve


def _along_blocks(node: Operator, x: Tensor, values: Tensor) -> Tensor:
    """Return scales or zero points in the shape of x: one number, one for each index of the axis, or one for each block."""
    axis, block = node.get("axis", 1), node.get("block_size", 0)
    if block and values.dim() == x.dim():
        return values.repeat_interleave(block, axis).narrow(axis, 0, x.shape[axis])
    return values.reshape(()) if values.numel() == 1 else spread(values, axis, x.dim())


def _as_integers(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Round to the nearest integer, halves to the even one, and clip to the range of a type."""
    limits = torch.iinfo(dtype)
    return torch.round(x).clamp(limits.min, limits.max).to(dtype)


def _quantize(node: Operator, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    dtype = DTYPES[node.get("output_dtype", 0) or 2] if zero is None else zero.dtype
    precise = DTYPES[node.get("precision", 0) or 1]
    values = torch.round(x.to(precise) / _along_blocks(node, x, scale).to(precise))
    return _as_integers(values if zero is None else values + _along_blocks(node, x, zero).to(precise), dtype)


def _dequantize(node: Operator, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    values = x.to(torch.float32)
    if zero is not None:
        values = values - _along_blocks(node, x, zero).to(torch.float32)
    dtype = DTYPES[node.get("output_dtype")] if node.get("output_dtype", 0) else scale.dtype
    return (values * _along_blocks(node, x, scale)).to(dtype)


def _dynamic(node: Operator, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.min().clamp(max=0), x.max().clamp(min=0)
    scale = torch.where(high == low, 1.0, high - low) / 255
    zero = torch.round((-low / scale).clamp(0, 255))
    return (torch.round(x / scale) + zero).clamp(0, 255).to(torch.uint8), scale, zero.to(torch.uint8)


def _centred(x: Tensor, zero: Tensor | None, axis: int = 0) -> Tensor:
    """Return integers less their zero point as float64, which holds sums of their products exactly."""
    return x.double() if zero is None else x.double() - spread(zero.double(), axis, x.dim())


def _quantized_matmul(
    node: Operator, a: Tensor, scale_a: Tensor, zero_a: Tensor, b: Tensor, scale_b: Tensor, zero_b: Tensor, scale: Tensor,
    zero: Tensor,
) -> Tensor:  # fmt: skip
    sums = _centred(a, zero_a, -2) @ _centred(b, zero_b, -1)
    factor = spread(scale_a, -2, a.dim()) * spread(scale_b, -1, b.dim()) / spread(scale, -2, a.dim())
    return _as_integers(torch.round(sums * factor) + spread(zero, -2, a.dim()), zero.dtype)


def _quantized_conv(
    node: Operator, x: Tensor, scale_x: Tensor, zero_x: Tensor, w: Tensor, scale_w: Tensor, zero_w: Tensor, scale: Tensor,
    zero: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    sums = convolve(node, _centred(x, zero_x), _centred(w, zero_w), None if bias is None else bias.double())
    factor = scale_x * spread(scale_w, 1, x.dim()) / scale
    return _as_integers(torch.round(sums * factor) + zero, zero.dtype)


RULES: dict[str, Rule] = {
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize, "DynamicQuantizeLinear": _dynamic,
    "MatMulInteger": lambda node, a, b, zero_a=None, zero_b=None: (
        (_centred(a, zero_a, -2) @ _centred(b, zero_b, -1)).to(torch.int32)
    ),
    "ConvInteger": lambda node, x, w, zero_x=None, zero_w=None: (
        convolve(node, _centred(x, zero_x), _centred(w, zero_w), None).to(torch.int32)
    ),
    "QLinearMatMul": _quantized_matmul, "QLinearConv": _quantized_conv,
}  # fmt: skip
ATTRIBUTES = {
    "QuantizeLinear": "axis block_size output_dtype precision saturate", "DequantizeLinear": "axis block_size output_dtype",
    "ConvInteger": CONV_ATTRIBUTES, "QLinearConv": CONV_ATTRIBUTES,
}  # fmt: skip
UNTRAINED: dict[str, tuple[int, ...]] = {
    "QuantizeLinear": (1, 2), "DequantizeLinear": (1, 2), "QLinearMatMul": (1, 4, 6), "QLinearConv": (1, 4, 6),
}  # fmt: skip
_TYPES = {"output_dtype": (0, *DTYPES), "precision": (0, *DTYPES)}
CHOICES: dict[str, Choices] = {
    "QuantizeLinear": _TYPES, "DequantizeLinear": _TYPES, "ConvInteger": PADDING, "QLinearConv": PADDING,
}  # fmt: skip
