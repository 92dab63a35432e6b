"""fp32: tensors travel unchanged. fp16: values are rounded to half precision."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from torch import Tensor

from edgefl.registry import codec
from edgefl.wire.codec import Codec, Part, Shape

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
