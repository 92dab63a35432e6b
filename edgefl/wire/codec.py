"""The contract of a codec: how the values of one float32 tensor travel.

:mod:`edgefl.wire.payload` makes payloads of what a codec packs. Codecs know tensors and numbers only, no files and no senders. Adding one
is adding a file in ``edgefl/wire/codecs/`` with a class decorated ``@codec("name")``. Codecs that change the values, or leave some out,
declare ``needs=("uploads",)``.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from functools import cache
from typing import ClassVar

import numpy as np
from torch import Tensor

from edgefl.registry import codecs
from edgefl.wire.layout import Part

Shape = tuple[int, ...]


class Codec(abc.ABC):
    """How one float32 tensor travels: as a part of the tensor's name, and perhaps a second one called ``name + suffix``.

    Attributes:
        suffix: what the second part's name ends with; empty if there is never a second part.
        raw: whether tensors travel as they are, of any type.
        draws: whether packing rounds at random, so that it needs a generator.
        chooses: whether a tensor that packing would not shorten travels as float32. The receiver sees it from the parts that arrived.
    """

    suffix: ClassVar[str] = ""
    raw: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    chooses: ClassVar[bool] = False

    @abc.abstractmethod
    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        """Return the parts of a tensor of this shape.

        ``count`` is how many values are sent, for a codec that :attr:`chooses`; None stands for the largest parts there can be.
        """

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        """Return the tensors of the parts that carry ``w``, which is finite, contiguous and float32."""
        return (w,)

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        """Return the float32 tensor of this shape from the tensors of its parts, whose shapes and types are those of :meth:`parts`.

        Raises:
            ValueError: the last part holds what :meth:`pack` never writes; the message goes on after the part's name.
        """
        return values[0]

    def bytes(self, shape: Shape) -> int:
        """Return how many bytes the values of a tensor of this shape take as they are sent, at most."""
        return sum(part.data_bytes for part in self.parts("", shape))


@cache
def codec_named(name: str) -> Codec:
    """Return the codec ``name``.

    Raises:
        UnknownNameError: there is none.

    >>> codec_named("int8").bytes((8, 3)), codec_named("fp32").bytes((8, 3))
    (56, 96)
    """
    found: Codec = codecs.load(name)()
    return found
