"""Discrete Fourier transforms, and the sum of overlapping blocks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from edgefl.onnxgrad.rules.common import Array, Operator, Rule, numbers
from edgefl.onnxgrad.rules.convolutions import symmetric


def _dft(node: Operator, x: Tensor, length: Array | None = None, axis: Array | None = None) -> Tensor:
    """Transform x (…, 1 or 2), whose last axis holds the real and the imaginary part."""
    given = node.get("axis", 1) if node.opset < 20 else -2
    where = (given if axis is None else int(axis.item())) % x.dim()
    size = None if length is None else int(length.item())
    values = x.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(x.contiguous())
    inverse, half = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))
    if inverse and half:
        return torch.fft.irfft(values, size, where).unsqueeze(-1)
    found = torch.fft.ifft(values, size, where) if inverse else torch.fft.fft(values, size, where)
    return torch.view_as_real(found.narrow(where, 0, found.shape[where] // 2 + 1) if half else found)


def _stft(node: Operator, x: Tensor, step: Array, window: Tensor | None = None, length: Array | None = None) -> Tensor:
    """Transform the frames of x (batch, values, 1 or 2)."""
    size = int(length.item()) if length is not None else x.shape[1] if window is None else window.shape[0]
    frames = x.unfold(1, size, int(step.item())).transpose(2, 3)  # (batch, frames, values, parts)
    frames = frames if window is None else frames * window[:, None]
    values = frames.squeeze(-1) if x.shape[-1] == 1 else torch.view_as_complex(frames.contiguous())
    found = torch.fft.fft(values, dim=2)
    return torch.view_as_real(found[:, :, : size // 2 + 1] if node.get("onesided", 1) else found)


def _col2im(node: Operator, x: Tensor, image: Array, block: Array) -> Tensor:
    sizes, kernel = tuple(numbers(image)), tuple(numbers(block))
    n = len(sizes)
    pads = node.get("pads", [0] * 2 * n)
    if n != 2 or not symmetric(pads):
        node.refuse(f"{n} axes with pads {pads}, expected 2 axes with equal pads")
    return F.fold(x, sizes, kernel, node.get("dilations", [1, 1]), pads[:2], node.get("strides", [1, 1]))


RULES: dict[str, Rule] = {"DFT": _dft, "STFT": _stft, "Col2Im": _col2im}
ATTRIBUTES = {"DFT": "axis inverse onesided", "STFT": "onesided", "Col2Im": "dilations pads strides"}
KNOWN = {"DFT": (1, 2), "STFT": (1, 3), "Col2Im": (1, 2)}
UNTRAINED = {"STFT": (2,)}
