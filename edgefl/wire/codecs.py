"""How one tensor is carried under each codec: which parts a payload holds for it, and the arithmetic both ways.

``edgefl.wire.payload`` is what the rest of the package calls; here are no files and no senders, only tensors and numbers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

CODECS = ("fp32", "fp16", "int8", "sparse")
SUFFIX = {"int8": "#scale", "sparse": "#index"}

# The types that codecs write, in the order in which safetensors lays them out in a file (within a type: by name).
TYPES = {
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
}

LARGEST_HALF = 65504.0
# Above this scale 127 steps are no float32 any more.
_LARGEST_SCALE = np.nextafter(np.float32(np.finfo(np.float32).max / 127), np.float32(0))


class Part(NamedTuple):
    """One entry of a payload: a name, one of ``TYPES`` and a shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        """Length of the values, without their entry in the header."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


def parts_of(name: str, shape: tuple[int, ...], codec: str) -> tuple[Part, ...]:
    """Return the parts that carry a tensor of this shape; under ``sparse`` those of a tensor that stays dense.

    >>> parts_of("w", (8, 3), "int8")
    (Part(name='w', dtype='I8', shape=(8, 3)), Part(name='w#scale', dtype='F32', shape=(8,)))
    """
    if codec == "fp16":
        return (Part(name, "F16", shape),)
    if codec == "int8":
        return Part(name, "I8", shape), Part(name + SUFFIX["int8"], "F32", (_rows(shape)[0],))
    return (Part(name, "F32", shape),)


def sparse_parts(name: str, shape: tuple[int, ...], nonzero: int) -> tuple[Part, Part]:
    """Return the parts of a tensor of this shape of which ``nonzero`` values are sent: the values and their flat indices.

    >>> [part.dtype for part in sparse_parts("w", (16, 16), 5)], [part.dtype for part in sparse_parts("w", (257,), 5)]
    (['F32', 'U8'], ['F32', 'U16'])
    """
    last = math.prod(shape) - 1
    dtype = next(dtype for dtype in ("U8", "U16", "I32", "I64") if last <= torch.iinfo(TYPES[dtype]).max)
    return Part(name, "F32", (nonzero,)), Part(name + SUFFIX["sparse"], dtype, (nonzero,))


def to_half(w: Tensor) -> Tensor:
    """Return ``w`` in float16; what lies beyond ±65504 becomes ±65504, the largest finite half.

    >>> to_half(torch.tensor([0.5, -1e6])).tolist()
    [0.5, -65504.0]
    """
    return w.clamp(-LARGEST_HALF, LARGEST_HALF).half()


def to_int8(w: Tensor, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return ``(steps, scale)``: int8 of the shape of ``w``, and float32 of one value per output channel.

    scale = max|w| / 127 over a channel (dimension 0; a tensor of fewer than two dimensions is one channel), rounded up to the next
    float32, and w / scale is rounded up with the probability of its fractional part, down otherwise: E[steps · scale] = w.

    >>> [part.tolist() for part in to_int8(torch.tensor([[0.0, 0.0], [-254.0, 2.0]]), np.random.default_rng(0))]
    [[[0, 0], [-127, 1]], [0.0, 2.0]]
    """
    values = w.numpy().astype(np.float64).reshape(_rows(tuple(w.shape)))
    exact = np.abs(values).max(axis=1, initial=0.0) / 127
    scale = exact.astype(np.float32)
    # Rounded up: a scale rounded down would leave the largest value beyond 127 steps, and a denormal's would be zero.
    scale = np.where(scale < exact, np.nextafter(scale, np.float32(np.inf)), scale)
    scale = np.minimum(scale, _LARGEST_SCALE)
    # A channel of zeros is divided by 1: it stays exact.
    steps = np.clip(values / np.where(scale > 0, scale, 1).astype(np.float64)[:, None], -127, 127)
    below = np.floor(steps)
    rounded = below + (rng.random(steps.shape) < steps - below)
    return torch.from_numpy(rounded.astype(np.int8)).reshape(w.shape), torch.from_numpy(scale)


def from_int8(steps: Tensor, scale: Tensor) -> Tensor:
    """Return ``steps · scale`` in float32, channel by channel."""
    return (steps.float().reshape(_rows(tuple(steps.shape))) * scale[:, None]).reshape(steps.shape)


def to_sparse(w: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values of ``w`` that are not zero and their flat indices (int64), in rising order; −0 counts as zero."""
    flat = w.reshape(-1)
    index = flat.nonzero().squeeze(1)
    return flat[index], index


def from_sparse(values: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the float32 tensor of this shape that holds ``values`` at the flat ``index`` and zeros elsewhere."""
    flat = torch.zeros(math.prod(shape))
    flat[index] = values
    return flat.reshape(shape)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (channels, values of a channel)."""
    channels = shape[0] if len(shape) >= 2 else 1
    return channels, math.prod(shape) // max(channels, 1)
