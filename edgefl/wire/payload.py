"""Tensors ↔ bytes: the only place where transferred bytes are counted. A payload is a safetensors file, never a pickle.

A codec packs the values (:mod:`edgefl.wire.codec`). Both ends are configured with the same codec. The file's metadata names it, unless it
is fp32.
"""

import json
import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.errors import WireError
from edgefl.util.compute import is_finite
from edgefl.wire.codec import NAMES, TYPES, Codec, Part, cached_layout_of, codec_named, entry_of, layout_of, padded

Shapes = Mapping[str, tuple[int, ...]]
Payload = bytes | bytearray | memoryview

with warnings.catch_warnings():
    # torch warns once per process that it cannot prevent writes to bytes. The docstring of decode warns of it too.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def encode(tensors: Mapping[str, Tensor], codec: str = "fp32", rng: np.random.Generator | None = None) -> bytes:
    """Return the payload of ``tensors``; its length, header included, is what counts as transferred.

    ``rng`` is needed by codecs that round at random, such as ``int8``.

    Raises:
        UnknownNameError: there is no such codec.
        WireError: a tensor has a name that is reserved for the file or the codec. With a codec other than fp32: it is not float32, or it
            contains NaN or infinity.
        ValueError: the codec needs ``rng``.

    >>> len(encode({"w": torch.zeros(10)})) - 4 * 10
    64
    >>> {codec: len(encode({"w": torch.eye(30)}, codec, np.random.default_rng(0))) for codec in ("fp32", "fp16", "int8", "sparse")}
    {'fp32': 3672, 'fp16': 1904, 'int8': 1188, 'sparse': 348}
    """
    of = _checked(tensors, codec)
    if of.draws and rng is None:
        raise ValueError(f"{codec} rounds at random: pass the generator that draws it as rng")
    packed = tensors
    if not of.raw:
        dense_bytes = 4 * sum(tensor.numel() for tensor in tensors.values())
        packed = {}
        for name, tensor in tensors.items():
            w = tensor.detach().contiguous()
            if w.dtype != torch.float32:
                raise WireError(f"{name} is {w.dtype}, expected torch.float32: {codec} encodes nothing else")
            if not is_finite(w):
                raise WireError(f"{name} holds NaN or infinity, which {codec} does not carry; send finite tensors")
            packed |= _packed(of, codec, name, w, rng, dense_bytes)
    elif any(tensor.dtype not in NAMES for tensor in tensors.values()):
        return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    parts = tuple(_part(name, tensor) for name, tensor in packed.items())
    # If the codec chooses, the parts differ from payload to payload: a cache is of no use.
    layout = (layout_of if of.chooses else cached_layout_of)(parts, codec)
    arrays = [tensor.detach().contiguous().numpy() for tensor in packed.values()]
    pieces: list[Any] = [layout.header, *(arrays[place] for place in layout.order)]
    return b"".join(pieces)


def payload_bytes(shapes: Shapes, codec: str = "fp32") -> int:
    """Return the bytes of the payload of tensors of these shapes, header included; for ``sparse``, the most that it can have.

    >>> payload_bytes({"w": (10,)}), payload_bytes({"w": (10,)}, "int8")
    (104, 174)
    """
    return header_bytes(shapes, codec) + sum(tensor_bytes(shapes, codec).values())


def tensor_bytes(shapes: Shapes, codec: str = "fp32") -> dict[str, int]:
    """Return name → bytes of a tensor's packed values, with the scales of int8; for ``sparse``, those of the dense tensor.

    >>> tensor_bytes({"w": (8, 3), "b": (8,)}, "int8")
    {'w': 56, 'b': 12}
    """
    of = _checked(shapes, codec)
    return {name: of.bytes(shape) for name, shape in shapes.items()}


def header_bytes(shapes: Shapes, codec: str = "fp32") -> int:
    """Return the bytes of a payload that are not values: 8 for the length of the header, and the header, padded to a multiple of 8.

    >>> header_bytes({"w": (10,)}), header_bytes({})
    (64, 16)
    """
    _checked(shapes, codec)
    return len(cached_layout_of(_largest(tuple(shapes.items()), codec), codec).header)


def decode(payload: Payload, expected: Shapes, sender: str, codec: str = "fp32", copy: bool = True) -> dict[str, Tensor]:
    """Return the tensors of ``payload``, encoded by ``codec``: float32, of the shapes and in the order of ``expected``.

    ``sender`` is named in errors. Without ``copy``, tensors that travelled as float32 may be views of ``payload``. Do not write to them,
    and do not free the memory of ``payload`` while they are in use.

    Raises:
        WireError: the payload is damaged or of another codec; a tensor is missing, extra, of another shape or dtype, or not finite; or
            its indices or scales are not what the codec writes.

    >>> decode(encode({"w": torch.tensor([0.1, 1e9])}, "fp16"), {"w": (2,)}, "client 7", "fp16")["w"].tolist()
    [0.0999755859375, 65504.0]
    """
    of = _checked(expected, codec)
    stored, finite = _predicted(payload, _largest(tuple(expected.items()), codec), codec)
    if stored is not None and finite:  # float32, each name one part
        return {name: stored[name].clone() if copy else stored[name] for name in expected}
    layout = {name: of.parts(name, shape) for name, shape in expected.items()}
    if stored is None:
        received = _read(payload, sender, codec)
        layout = {name: _expected_parts(of, name, shape, received) for name, shape in expected.items()}
        if different := received.keys() ^ {part.name for parts in layout.values() for part in parts}:
            raise WireError(f"{sender}: tensors missing or not expected: {', '.join(sorted(different))}")
        stored = {part.name: _values(part, received[part.name], sender) for parts in layout.values() for part in parts}
    tensors = {}
    for name, parts in layout.items():
        values = [stored[part.name] for part in parts]
        try:
            dense = (of.raw or of.chooses) and len(parts) == 1 and parts[0].dtype == "F32"
            tensors[name] = values[0].to(torch.float32, copy=copy) if dense else _unpacked(of, codec, values, expected[name])
        except ValueError as error:
            raise WireError(f"{sender}: {parts[-1].name} {error}") from None
        if not is_finite(tensors[name]):
            raise WireError(f"{sender}: {name} holds NaN or infinity, expected finite values")
    return tensors


def _unpacked(of: Codec, codec: str, values: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return what a codec unpacks; ValueError if it does not return a float32 tensor of ``shape``, as a plug-in may."""
    unpacked: Any = of.unpack(values, shape)
    if not isinstance(unpacked, Tensor) or tuple(unpacked.shape) != shape or unpacked.dtype != torch.float32:
        form = f"{tuple(unpacked.shape)} {unpacked.dtype}" if isinstance(unpacked, Tensor) else type(unpacked).__name__
        raise ValueError(f"was unpacked by codec {codec} to {form}, expected {shape} {torch.float32}")
    return unpacked


def stored_tensors(payload: bytes, sender: str) -> dict[str, Tensor]:
    """Return the float32 tensors of a payload, of any shapes; raise :class:`WireError` if it is damaged or not finite."""
    shapes = {name: tuple(entry["shape"]) for name, entry in _read(payload, sender, "fp32").items()}
    return decode(payload, shapes, sender)


def _packed(of: Codec, codec: str, name: str, w: Tensor, rng: np.random.Generator | None, dense_bytes: int) -> dict[str, Tensor]:
    """Return the parts of one tensor, or the tensor itself if the codec chooses and the parts would take no less.

    WireError if the codec does not pack the tensor to parts, as a plug-in may.
    """
    made: Any = of.pack(w, rng)
    names = (name, name + of.suffix) if of.suffix else (name,)
    if not isinstance(made, (tuple, list)) or not 1 <= len(made) <= len(names) or any(_dtype(one) not in NAMES for one in made):
        form = f"({', '.join(str(_dtype(one)) for one in made)})" if isinstance(made, (tuple, list)) else type(made).__name__
        count = "one tensor" if len(names) == 1 else "one tensor or two"
        raise WireError(f"{name} was packed by codec {codec} to {form}, expected a tuple of {count} of type {', '.join(TYPES)}")
    packed = dict(zip(names, made, strict=False))
    if of.chooses:
        parts = [_part(part, tensor) for part, tensor in packed.items()]
        # Entries are counted at the most they can take, with offsets as long as the dense payload's: no payload is longer than that.
        entries = sum(padded(len(("," + entry_of(part, dense_bytes, dense_bytes)).encode())) for part in parts[1:])
        if entries + sum(part.data_bytes for part in parts) >= 4 * w.numel():
            return {name: w}
    return packed


def _dtype(value: Any) -> Any:
    """Return the type of the entries of a tensor; of anything else, the name of its own type."""
    return value.dtype if isinstance(value, Tensor) else type(value).__name__


def _part(name: str, tensor: Tensor) -> Part:
    return Part(name, NAMES[tensor.dtype], tuple(tensor.shape))


def _predicted(payload: Payload, parts: tuple[Part, ...], codec: str) -> tuple[dict[str, Tensor] | None, bool]:
    """Return views of ``parts``, and whether all are known to be finite; (None, False) if the header differs from the one of ``parts``."""
    layout = cached_layout_of(parts, codec)
    if len(payload) != layout.length or bytes(payload[: len(layout.header)]) != layout.header:
        return None, False
    if not codec_named(codec).raw or layout.length == len(layout.header):
        return {part.name: _view(payload, part, begin) for part, begin in zip(parts, layout.begins, strict=True)}, False
    flat = torch.frombuffer(payload, dtype=torch.float32, offset=len(layout.header))
    split = zip(layout.order, flat.split_with_sizes(layout.counts), strict=True)
    return {parts[place].name: values.view(parts[place].shape) for place, values in split}, is_finite(flat)


def _view(buffer: Payload, part: Part, begin: int = 0) -> Tensor:
    """Return the tensor of ``part`` as a view of the memory of ``buffer`` from ``begin`` on."""
    count, dtype = math.prod(part.shape), TYPES[part.dtype]
    # frombuffer refuses an empty buffer.
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=begin) if count else torch.empty(0, dtype=dtype)
    return flat.view(part.shape)


class _Entry(TypedDict):
    shape: list[int]
    dtype: str
    data: bytearray


def _read(payload: Payload, sender: str, codec: str) -> dict[str, _Entry]:
    """Return the file's entries by name, with shape, dtype and data, unchecked except for the codec."""
    payload = bytes(payload)
    try:
        # safetensors.torch.load hides the metadata, and raises a bare KeyError for a dtype that torch lacks.
        received = dict(safetensors.deserialize(payload))  # type: ignore[no-untyped-call]
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise WireError(f"{sender}: the payload is not a valid safetensors file ({error})") from None
    encoding = (header.get("__metadata__") or {}).get("codec", "fp32")
    if encoding != codec:
        raise WireError(
            f"{sender}: the payload is encoded as {encoding!r}, expected {codec!r}; both ends must use the same codec"
        )
    return received


def _expected_parts(codec: Codec, name: str, shape: tuple[int, ...], received: Mapping[str, _Entry]) -> tuple[Part, ...]:
    """Return the parts that must have arrived for one tensor. If the codec chooses, the parts that did arrive tell whether it is dense."""
    if codec.chooses and {name, name + codec.suffix} <= received.keys():
        return codec.parts(name, shape, math.prod(received[name]["shape"]))
    return codec.parts(name, shape)


def _values(part: Part, entry: _Entry, sender: str) -> Tensor:
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    if (shape, dtype) != (part.shape, part.dtype):
        raise WireError(f"{sender}: {part.name} is {shape} {TYPES.get(dtype, dtype)}, expected {part.shape} {TYPES[part.dtype]}")
    return _view(entry["data"], part)


@lru_cache(maxsize=64)
def _largest(shapes: tuple[tuple[str, tuple[int, ...]], ...], codec: str) -> tuple[Part, ...]:
    """Return the largest possible parts of tensors of these shapes."""
    return tuple(part for name, shape in shapes for part in codec_named(codec).parts(name, shape))


def _checked(names: Collection[str], codec: str) -> Codec:
    """Return the codec, after checking that no tensor has a name that is reserved for it or for safetensors."""
    of = codec_named(codec)
    if "__metadata__" in names:
        raise WireError("__metadata__ is safetensors' own entry, no name for a tensor; rename the tensor")
    if of.suffix:
        for name in sorted(names):
            if name + of.suffix in names:
                raise WireError(f"{name}{of.suffix} is the name that {codec} gives to a part of {name}; rename the tensor")
    return of
