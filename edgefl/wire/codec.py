"""The contract of a codec, how the values of one float32 tensor travel, and the layout of the parts in a safetensors file.

:mod:`edgefl.wire.payload` makes payloads of what a codec packs. Codecs know tensors and numbers only, no files and no senders. Adding one
is adding a file in ``edgefl/wire/codecs/`` with a class decorated ``@codec("name")``. Codecs that change the values, or leave some out,
declare ``needs=("uploads",)``.
"""

import abc
import json
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgefl.registry import codecs

Shape = tuple[int, ...]
# The types of parts, in the order in which safetensors lays them out in a file (within a type: by name).
TYPES = {
    "I64": torch.int64,
    "F32": torch.float32,
    "I32": torch.int32,
    "F16": torch.float16,
    "U16": torch.uint16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
NAMES = {dtype: name for name, dtype in TYPES.items()}


class Part(NamedTuple):
    """One entry of a payload; ``dtype`` is one of ``TYPES``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        """Length of the values, without their entry in the header."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


class Layout(NamedTuple):
    """Where everything lies in a file.

    Attributes:
        order, counts: the parts' positions and numbers of values, in the order of the file.
        begins: each part's offset in bytes, in the order of the parts.
    """

    header: bytes
    order: tuple[int, ...]
    counts: tuple[int, ...]
    begins: tuple[int, ...]
    length: int


def layout_of(parts: tuple[Part, ...], codec: str) -> Layout:
    """Return how safetensors lays out a file of ``parts``; its metadata names ``codec``, unless that is fp32."""
    types = list(TYPES)
    order = tuple(sorted(range(len(parts)), key=lambda place: (types.index(parts[place].dtype), parts[place].name)))
    entries = [] if codec == "fp32" else [f'"__metadata__":{{"codec":"{codec}"}}']
    begins, end = [0] * len(parts), 0
    for place in order:
        begins[place], end = end, end + parts[place].data_bytes
        entries.append(entry_of(parts[place], begins[place], end))
    text = f"{{{','.join(entries)}}}".encode()
    header = padded(len(text)).to_bytes(8, "little") + text.ljust(padded(len(text)))
    counts = tuple(math.prod(parts[place].shape) for place in order)
    return Layout(header, order, counts, tuple(len(header) + begin for begin in begins), len(header) + end)


cached_layout_of = lru_cache(maxsize=64)(layout_of)
"""The same, for parts that come again in every payload."""


def entry_of(part: Part, begin: int, end: int) -> str:
    """Return a part's entry in the JSON header as safetensors writes it."""
    name, shape = json.dumps(part.name, ensure_ascii=False), ",".join(map(str, part.shape))
    return f'{name}:{{"dtype":"{part.dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'


def padded(length: int) -> int:
    """Return ``length``, rounded up to a multiple of 8.

    >>> padded(8), padded(9)
    (8, 16)
    """
    return length + -length % 8


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
        """Return the parts of a tensor of this shape; ``count``: how many values a codec that :attr:`chooses` sends, None the most."""

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
    """Return the codec ``name``, or raise :class:`UnknownNameError`.

    >>> codec_named("int8").bytes((8, 3)), codec_named("fp32").bytes((8, 3))
    (56, 96)
    """
    return codecs.load(name)()
