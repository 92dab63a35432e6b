"""sparse: only nonzero values travel, with their indices."""

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from edgefl.registry import codec
from edgefl.wire.codec import TYPES, Codec, Part, Shape


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
