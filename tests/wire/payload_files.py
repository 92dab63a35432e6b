"""Payloads sent and received, and safetensors files written by hand."""

import json
from typing import Any

from torch import Tensor

from edgefl.registry import codecs
from edgefl.testing.rules_of_codecs import rng, shapes_of
from edgefl.wire.payload import decode, encode

CODECS = codecs.names()


def returned(tensors: dict[str, Tensor], codec: str, seed: int = 0) -> dict[str, Tensor]:
    """Return what a receiver makes of the payload of ``tensors``."""
    return decode(encode(tensors, codec, rng(seed)), shapes_of(tensors), "client 7", codec)


def bits(tensor: Tensor) -> bytes:
    return bytes(tensor.numpy().tobytes())


def file(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file written by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
