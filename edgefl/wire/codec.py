"""The contract of a codec, which packs the values of one float32 tensor, and the layout of the parts in a safetensors file.

:mod:`edgefl.wire.payload` makes payloads of the packed parts: a codec deals with tensors only, not with files or senders. To add a codec,
add a file in ``edgefl/wire/codecs/`` with a class decorated ``@codec("name")``. Codecs that change values, or leave some out, declare
``needs=("uploads",)``.
"""

import abc
import json
import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgefl.errors import ConfigError
from edgefl.registry import codecs

Shape = tuple[int, ...]
# The dtypes of parts, in the order in which safetensors stores them in a file (within a dtype: by name).
TYPES = {
    "I64": torch.int64, "F32": torch.float32, "I32": torch.int32, "F16": torch.float16, "U16": torch.uint16, "I8": torch.int8,
    "U8": torch.uint8,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}


class Part(NamedTuple):
    """One entry of a payload; ``dtype`` is a key of ``TYPES``."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def data_bytes(self) -> int:
        """Bytes of the values, without the entry in the header."""
        return math.prod(self.shape) * TYPES[self.dtype].itemsize


class Layout(NamedTuple):
    """Where everything lies in a file of ``length`` bytes.

    Attributes:
        header: the first bytes: length and JSON, padded.
        order, counts: positions of the parts and their numbers of values, in the order of the file.
        begins: offset of each part in bytes, in the order of the parts.
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
"""The same with a cache, for parts that occur in every payload."""


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
    """How a float32 tensor is encoded for a message: as a part with the tensor's name, and for some codecs a second one, ``name + suffix``.

    Attributes:
        suffix: end of the second part's name; empty if there is never a second part.
        raw: whether tensors travel unchanged, whatever their dtype.
        draws: whether packing rounds at random and needs a generator.
        chooses: whether a tensor that packing would not shorten travels as float32. The parts that arrive tell the receiver which it was.
    """

    suffix: ClassVar[str] = ""
    raw: ClassVar[bool] = False
    draws: ClassVar[bool] = False
    chooses: ClassVar[bool] = False

    @abc.abstractmethod
    def parts(self, name: str, shape: Shape, count: int | None = None) -> tuple[Part, ...]:
        """Return the parts of a tensor of this shape. A codec that :attr:`chooses` sends ``count`` values; None: as many as it can."""

    def pack(self, w: Tensor, rng: np.random.Generator | None) -> tuple[Tensor, ...]:
        """Return the tensors of the parts that represent ``w``, which is finite, contiguous and float32; ``rng`` draws the rounding."""
        return (w,)

    def unpack(self, values: Sequence[Tensor], shape: Shape) -> Tensor:
        """Return the float32 tensor of this shape from the tensors of its parts. These have the shapes and types of :meth:`parts`.

        Raises:
            ValueError: the last part holds what :meth:`pack` never writes. The message continues a sentence that begins with its name.
        """
        return values[0]

    def bytes(self, shape: Shape) -> int:
        """Return the most bytes that the packed values of a tensor of this shape take."""
        return sum(part.data_bytes for part in self.parts("", shape))


@cache
def codec_named(name: str) -> Codec:
    """Return the codec ``name``.

    Raises:
        UnknownNameError: there is none.
        ConfigError: it declares no parts of a tensor.

    >>> codec_named("int8").bytes((8, 3)), codec_named("fp32").bytes((8, 3))
    (56, 96)
    """
    codec: Codec = codecs.load(name)()
    parts: Any = codec.parts("w", (2, 3))
    names = ["w", "w" + codec.suffix] if codec.suffix else ["w"]
    right = isinstance(parts, (tuple, list)) and all(isinstance(part, Part) and part.dtype in TYPES for part in parts)
    if not right or not parts or [part.name for part in parts] != names[: len(parts)]:
        form = f'Part("w", dtype, shape){f" and perhaps Part({names[1]!r}, …)" if codec.suffix else ""}'
        raise ConfigError(
            f'codec {name}: parts("w", (2, 3)) returned {parts!r}, expected a tuple of {form}, with a dtype of {", ".join(TYPES)}'
        )
    return codec
