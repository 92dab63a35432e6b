"""int8: values are rounded at random to 255 steps of their output channel."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from edgefl.registry import codec
from edgefl.wire.codec import Codec, Part, Shape

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
