"""The layout of a payload: a safetensors file whose header follows from the names, types and shapes of its parts alone."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from typing import NamedTuple

import torch

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
_ORDER = list(TYPES)


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
        header: the first bytes: length and JSON, padded.
        order, counts: the parts' positions and numbers of values, in the order of the file.
        begins: each part's offset in bytes, in the order of the parts.
        length: bytes of the file.
    """

    header: bytes
    order: tuple[int, ...]
    counts: tuple[int, ...]
    begins: tuple[int, ...]
    length: int


def layout_of(parts: tuple[Part, ...], codec: str) -> Layout:
    """Return how safetensors lays out a file of ``parts``; its metadata names ``codec``, unless that is fp32."""
    order = tuple(sorted(range(len(parts)), key=lambda place: (_ORDER.index(parts[place].dtype), parts[place].name)))
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
