"""Tensors ↔ bytes: the only place where transferred bytes are counted. A payload is a safetensors file; nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.errors import WireError


def encode(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the payload of ``tensors``; its length is what a link carries, header included.

    >>> len(encode({"w": torch.zeros(10)})) - 4 * 10
    64
    """
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def payload_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the length of the payload of float32 tensors of these shapes, header included."""
    return len(encode({name: torch.zeros(shape) for name, shape in shapes.items()}))


def decode(payload: bytes, expected: Mapping[str, tuple[int, ...]], sender: str) -> dict[str, Tensor]:
    """Return the tensors of ``payload``, which must be float32 and exactly those ``expected``.

    Raises:
        WireError: the payload is damaged, or a tensor is missing, extra, of another shape or type; names ``sender`` and the tensor.
    """
    try:
        tensors = safetensors.torch.load(payload)
    except (SafetensorError, ValueError) as error:
        raise WireError(f"{sender}: the payload is not a valid safetensors file ({error})") from None
    if different := tensors.keys() ^ expected.keys():
        raise WireError(f"{sender}: tensors missing or not expected: {', '.join(sorted(different))}")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != expected[name] or tensor.dtype != torch.float32:
            got = f"{tuple(tensor.shape)} {tensor.dtype}"
            raise WireError(f"{sender}: {name} is {got}, expected {expected[name]} torch.float32")
    return tensors
