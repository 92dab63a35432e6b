"""The codecs, which pack the values of a tensor: fp32, fp16, int8 and sparse."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from edgefl.registry import codec
from edgefl.wire.codec import TYPES, Codec, Part, Shape

LARGEST = 65504.0  # the largest finite half


@codec("fp32")
class FP32(Codec):
    """Tensors travel unchanged, whatever their dtype."""

    raw: ClassVar[bool] = True

    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        return (Part(name, "F32", shape),)


@codec("fp16", needs=("uploads",))
class FP16(Codec):
    """Half precision (IEEE 754); values beyond ±65504 become ±65504."""

    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        return (Part(name, "F16", shape),)

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        """Return ``w`` in float16.

        >>> import torch
        >>> FP16().pack(torch.tensor([0.5, -1e6]), None)[0].tolist()
        [0.5, -65504.0]
        """
        return (w.clamp(-LARGEST, LARGEST).half(),)

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        return values[0].float()


# With a larger scale, 127 steps would overflow float32.
_LARGEST_SCALE = np.nextafter(np.float32(np.finfo(np.float32).max / 127), np.float32(0))


@codec("int8", needs=("uploads",))
class Int8(Codec):
    """Multiples of max|w| / 127 of the output channel, rounded at random so that the expected value equals the value.

    A channel is an entry of dimension 0; a tensor of fewer than two dimensions is one channel.

    Differs from QSGD (Alistarh et al. 2017, arXiv:1610.02132), which rounds at random too: here the unit is the largest magnitude of a
    channel, not the norm of the tensor. Steps are not entropy-coded.
    """

    suffix: ClassVar[str] = "#scale"
    draws: ClassVar[bool] = True

    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        """Return the steps, of the tensor's shape, and a float32 scale per channel."""
        return Part(name, "I8", shape), Part(name + self.suffix, "F32", (_rows(shape)[0],))

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        """Return steps and scales with E[steps · scale] = w: w / scale is rounded up with the probability of its fractional part.

        >>> [part.tolist() for part in Int8().pack(torch.tensor([[0.0, 0.0], [-254.0, 2.0]]), np.random.default_rng(0))]
        [[[0, 0], [-127, 1]], [0.0, 2.0]]
        """
        if rng is None:
            raise ValueError("int8 rounds at random: pass the generator that draws it as rng")
        values = w.numpy().astype(np.float64).reshape(_rows(tuple(w.shape)))
        exact = np.abs(values).max(axis=1, initial=0.0) / 127
        scale = exact.astype(np.float32)
        # Scales are rounded up: rounded down, the largest value would exceed 127 steps, and the scale of a denormal would be zero.
        scale = np.where(scale < exact, np.nextafter(scale, np.float32(np.inf)), scale)
        scale = np.minimum(scale, _LARGEST_SCALE)
        # A channel of zeros is divided by 1 and stays exact.
        steps = np.clip(values / np.where(scale > 0, scale, 1).astype(np.float64)[:, None], -127, 127)
        below = np.floor(steps)
        rounded = below + (rng.random(steps.shape) < steps - below)
        return torch.from_numpy(rounded.astype(np.int8)).reshape(w.shape), torch.from_numpy(scale)

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        steps, scale = values
        if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
            raise ValueError("holds a scale that is negative, NaN or infinite")
        return (steps.float().reshape(_rows(shape)) * scale[:, None]).reshape(shape)


def _rows(shape: Shape) -> tuple[int, int]:
    """Return (channels, values of a channel)."""
    channels = shape[0] if len(shape) >= 2 else 1
    return channels, math.prod(shape) // max(channels, 1)


@codec("sparse", needs=("uploads",))
class Sparse(Codec):
    """The nonzero values and their flat indices, in rising order; −0 counts as zero."""

    suffix: ClassVar[str] = "#index"
    chooses: ClassVar[bool] = True

    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        """Return ``count`` float32 values and as many indices of the smallest dtype that can hold them; None: the dense tensor.

        >>> [[part.dtype for part in Sparse().parts("w", shape, 5)] for shape in ((16, 16), (257,))]
        [['F32', 'U8'], ['F32', 'U16']]
        """
        if count is None:
            return (Part(name, "F32", shape),)
        return Part(name, "F32", (count,)), Part(name + self.suffix, _index_type(shape), (count,))

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        flat = w.reshape(-1)
        index = flat.nonzero().squeeze(1)
        return flat[index], index.to(TYPES[_index_type(tuple(w.shape))])

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        sent, index, numel = values[0], values[1].to(torch.int64), math.prod(shape)
        if not bool((index[1:] > index[:-1]).all()):
            raise ValueError("is not strictly increasing")
        if len(index) and (int(index[0]) < 0 or int(index[-1]) >= numel):
            raise ValueError(f"points outside of the tensor's {numel} values")
        flat = torch.zeros(numel)
        flat[index] = sent
        return flat.reshape(shape)


def _index_type(shape: Shape) -> str:
    last = math.prod(shape) - 1
    return next(dtype for dtype in ("U8", "U16", "I32", "I64") if last <= torch.iinfo(TYPES[dtype]).max)
