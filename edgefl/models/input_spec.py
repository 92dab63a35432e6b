"""One sample of an input: its shape, dtype and, for ids, how many there are."""

import re
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor

from edgefl.errors import ConfigError, nearest

DTYPES = {
    name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
}
_SPEC = re.compile(r"^(?:(?P<name>[^=:]+)=)?(?:(?P<dtype>\w+):)?(?P<shape>\d+(?:x\d+)*)?$")


@dataclass(frozen=True)
class InputSpec:
    """One input of a network.

    Attributes:
        shape: of one sample, without the batch.
        dtype: its type.
        below: a number that its ids are below; 0: not known.
        span: the smallest and the largest id at each position of a sample: columns of a table have ids of their own. None: ids are alike.

    >>> InputSpec.parse("ids=int64:80")
    ('ids', InputSpec(shape=(80,), dtype=torch.int64))
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    below: int = field(default=0, compare=False, repr=False)
    span: tuple[np.ndarray, np.ndarray] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> tuple[str, Self]:
        """Return name ("" if none) and specification of ``[NAME=][DTYPE:]SHAPE``; ConfigError for other forms, sizes below 1 or types."""
        match = _SPEC.match(text.strip())
        if not match or not (match["shape"] or match["dtype"]):
            raise ConfigError(f"input: {text!r} is not of the form [NAME=][DTYPE:]SHAPE, such as 3x32x32 or ids=int64:80")
        dtype = match["dtype"] or "float32"
        if dtype not in DTYPES:
            raise ConfigError(f"input: {text!r} has unknown type {dtype!r};{nearest(dtype, DTYPES)} known: {', '.join(DTYPES)}")
        shape = tuple(int(size) for size in match["shape"].split("x")) if match["shape"] else ()
        if any(size < 1 for size in shape):
            raise ConfigError(f"input: {text!r} has a size below 1")
        return match["name"] or "", cls(shape, DTYPES[dtype])

    def __str__(self) -> str:
        """Return the form that :meth:`parse` reads."""
        kind = "" if self.dtype is torch.float32 else f"{self.kind}:"
        return kind + "x".join(map(str, self.shape))

    @property
    def kind(self) -> str:
        """The name of the type, such as ``float32``."""
        return str(self.dtype).removeprefix("torch.")

    def batch(self, samples: int) -> Tensor:
        """Return a batch (samples, …): uninitialised floating-point values, or zeros of an integer type, which are valid ids."""
        make = torch.empty if self.dtype.is_floating_point else torch.zeros
        return make(samples, *self.shape, dtype=self.dtype)
