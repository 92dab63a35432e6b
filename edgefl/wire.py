"""Tensors ↔ bytes: the only place where transferred bytes are counted. A payload is a safetensors file; nothing is pickled.

A codec says how the values travel; both ends know it beforehand, and a payload that is not fp32 names it in its metadata:

- ``fp32``: as they are;
- ``fp16``: rounded to half precision, beyond ±65504 to ±65504;
- ``int8``: in steps of max|w| / 127 of the output channel, rounded at random so that the expected value is the value;
- ``sparse``: only the values that are not zero, with their indices; a tensor that this would not shorten stays dense.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.codecs import CODECS, SUFFIX, TYPES, Part, from_int8, from_sparse, parts_of, sparse_parts, to_half, to_int8, to_sparse
from edgefl.errors import UnknownNameError, WireError

Shapes = Mapping[str, tuple[int, ...]]


def encode(tensors: Mapping[str, Tensor], codec: str = "fp32", rng: np.random.Generator | None = None) -> bytes:
    """Return the payload of ``tensors``; its length is what a link carries, header included.

    ``rng`` draws the rounding of ``int8``. Differs from QSGD (Alistarh et al. 2017, arXiv:1610.02132), which rounds at random too:
    the unit is the largest magnitude of a channel instead of the norm of the tensor, and the steps are not entropy-coded.

    Raises:
        WireError: a tensor has a name that the file or the codec needs; under a codec other than fp32, it is not float32 or holds
            NaN or infinity.
        ValueError: ``int8`` without ``rng``.

    >>> len(encode({"w": torch.zeros(10)})) - 4 * 10
    64
    >>> [len(encode({"w": torch.eye(30)}, codec, np.random.default_rng(0))) for codec in CODECS]
    [3672, 1904, 1188, 348]
    """
    _check_names(tensors, codec)
    if codec == "fp32":
        return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})
    if codec == "int8" and rng is None:
        raise ValueError("int8 rounds at random: pass the generator that draws it as rng")
    dense_bytes = 4 * sum(tensor.numel() for tensor in tensors.values())
    packed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        w = tensor.detach().contiguous()
        if w.dtype != torch.float32:
            raise WireError(f"{name} is {w.dtype}, expected torch.float32: {codec} encodes nothing else")
        if not bool(torch.isfinite(w).all()):
            raise WireError(f"{name} holds NaN or infinity, which {codec} does not carry; send finite tensors")
        packed |= _pack(name, w, codec, rng, dense_bytes)
    return safetensors.torch.save(packed, metadata={"codec": codec})


def payload_bytes(shapes: Shapes, codec: str = "fp32") -> int:
    """Return the length of the payload of tensors of these shapes, header included; for ``sparse`` it is the most that it can be.

    >>> payload_bytes({"w": (10,)}), payload_bytes({"w": (10,)}, "int8")
    (104, 174)
    """
    return header_bytes(shapes, codec) + sum(tensor_bytes(shapes, codec).values())


def tensor_bytes(shapes: Shapes, codec: str = "fp32") -> dict[str, int]:
    """Return the bytes of each tensor's values, an int8 tensor's scales included; for ``sparse`` those of the dense tensor.

    >>> tensor_bytes({"w": (8, 3), "b": (8,)}, "int8")
    {'w': 56, 'b': 12}
    """
    _check_names(shapes, codec)
    return {name: sum(part.data_bytes for part in parts_of(name, shape, codec)) for name, shape in shapes.items()}


def header_bytes(shapes: Shapes, codec: str = "fp32") -> int:
    """Return the bytes of a payload that are not values: the length of the header, and the header padded to a multiple of 8.

    >>> header_bytes({"w": (10,)}), header_bytes({})
    (64, 16)
    """
    _check_names(shapes, codec)
    order = list(TYPES)
    parts = [part for name, shape in shapes.items() for part in parts_of(name, shape, codec)]
    entries = [] if codec == "fp32" else [f'"__metadata__":{{"codec":"{codec}"}}']
    begin = 0
    for part in sorted(parts, key=lambda part: (order.index(part.dtype), part.name)):
        entries.append(_entry(part, begin, begin + part.data_bytes))
        begin += part.data_bytes
    return 8 + _padded(len(f"{{{','.join(entries)}}}".encode()))


def decode(payload: bytes, expected: Shapes, sender: str, codec: str = "fp32") -> dict[str, Tensor]:
    """Return the tensors of ``payload``, encoded by ``codec``: float32, of the shapes and in the order of ``expected``.

    Raises:
        WireError: the payload is damaged or of another codec, a tensor is missing, extra, of another shape or type, or its values
            are not finite, or its indices or scales are not what the codec writes; names ``sender`` and the tensor.

    >>> decode(encode({"w": torch.tensor([0.1, 1e9])}, "fp16"), {"w": (2,)}, "client 7", "fp16")["w"].tolist()
    [0.0999755859375, 65504.0]
    """
    _check_names(expected, codec)
    received = _read(payload, sender, codec)
    layout = {name: _expected_parts(name, shape, codec, received) for name, shape in expected.items()}
    if different := received.keys() ^ {part.name for parts in layout.values() for part in parts}:
        raise WireError(f"{sender}: tensors missing or not expected: {', '.join(sorted(different))}")
    tensors = {}
    for name, parts in layout.items():
        values = [_values(part, received[part.name], sender) for part in parts]
        tensors[name] = _unpack(values, name, expected[name], sender, codec)
        if not bool(torch.isfinite(tensors[name]).all()):
            raise WireError(f"{sender}: {name} holds NaN or infinity, expected finite values")
    return tensors


def stored_tensors(payload: bytes, sender: str) -> dict[str, Tensor]:
    """Return the float32 tensors of a payload that carries its own shapes: what a client keeps, which nobody else declares.

    Raises:
        WireError: the payload is damaged, or its values are not finite.
    """
    shapes = {name: tuple(entry["shape"]) for name, entry in _read(payload, sender, "fp32").items()}
    return decode(payload, shapes, sender)


def _pack(name: str, w: Tensor, codec: str, rng: np.random.Generator | None, dense_bytes: int) -> dict[str, Tensor]:
    """Return what a payload holds for one finite float32 tensor under a codec other than fp32."""
    shape = tuple(w.shape)
    if codec == "fp16":
        return {name: to_half(w)}
    if codec == "int8" and rng is not None:
        return dict(zip((name, name + SUFFIX[codec]), to_int8(w, rng), strict=True))
    values, index = to_sparse(w)
    if not _sparse_is_shorter(name, shape, len(index), dense_bytes):
        return {name: w}
    part = sparse_parts(name, shape, len(index))[1]
    return {name: values, part.name: index.to(TYPES[part.dtype])}


def _read(payload: bytes, sender: str, codec: str) -> dict[str, Any]:
    """Return safetensors' entries by name: shape, dtype and data of each, not yet compared with anything."""
    try:
        # Not safetensors.torch.load: it hides the metadata, and a type that torch lacks is a bare KeyError.
        received = dict(safetensors.deserialize(payload))  # type: ignore[no-untyped-call]
        header = json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise WireError(f"{sender}: the payload is not a valid safetensors file ({error})") from None
    got = (header.get("__metadata__") or {}).get("codec", "fp32")
    if got != codec:
        raise WireError(f"{sender}: the payload is encoded as {got!r}, expected {codec!r}; both ends must use the same codec")
    return received


def _expected_parts(name: str, shape: tuple[int, ...], codec: str, received: Mapping[str, Any]) -> tuple[Part, ...]:
    """Return the parts that must have arrived for one tensor; under ``sparse`` the sender chose whether it is dense."""
    if codec == "sparse" and {name, name + SUFFIX[codec]} <= received.keys():
        return sparse_parts(name, shape, math.prod(received[name]["shape"]))
    return parts_of(name, shape, codec)


def _values(part: Part, entry: Mapping[str, Any], sender: str) -> Tensor:
    shape, dtype = tuple(entry["shape"]), entry["dtype"]
    if (shape, dtype) != (part.shape, part.dtype):
        got = f"{shape} {TYPES.get(dtype, dtype)}"
        raise WireError(f"{sender}: {part.name} is {got}, expected {part.shape} {TYPES[part.dtype]}")
    # frombuffer takes no empty buffer.
    flat = torch.frombuffer(entry["data"], dtype=TYPES[dtype]) if entry["data"] else torch.empty(0, dtype=TYPES[dtype])
    return flat.reshape(shape)


def _unpack(values: list[Tensor], name: str, shape: tuple[int, ...], sender: str, codec: str) -> Tensor:
    """Return the float32 tensor of one name from the values of its parts, whose shapes and types are the declared ones."""
    if len(values) == 1:
        return values[0].float()
    main, other = values
    if codec == "int8":
        if not bool((torch.isfinite(other) & (other >= 0)).all()):
            raise WireError(f"{sender}: {name}{SUFFIX[codec]} holds a scale that is negative, NaN or infinite")
        return from_int8(main, other)
    index, numel = other.to(torch.int64), math.prod(shape)
    if not bool((index[1:] > index[:-1]).all()):
        raise WireError(f"{sender}: {name}{SUFFIX[codec]} is not strictly increasing")
    if len(index) and (int(index[0]) < 0 or int(index[-1]) >= numel):
        raise WireError(f"{sender}: {name}{SUFFIX[codec]} points outside of the {numel} values of {name}")
    return from_sparse(main, index, shape)


def _sparse_is_shorter(name: str, shape: tuple[int, ...], nonzero: int, dense_bytes: int) -> bool:
    """Return whether sending ``nonzero`` values with indices is shorter than sending all, the entry of the indices included.

    The entry is counted at the most that it can take: its offsets as wide as ``dense_bytes``, the length of all values when
    nothing is sparse, and padded. So a sparse payload is never longer than the dense one.
    """
    sparse = sparse_parts(name, shape, nonzero)
    entry = len(("," + _entry(sparse[1], dense_bytes, dense_bytes)).encode())
    return _padded(entry) + sum(part.data_bytes for part in sparse) < 4 * math.prod(shape)


def _entry(part: Part, begin: int, end: int) -> str:
    """Return a part's entry in the JSON header as safetensors writes it."""
    name, shape = json.dumps(part.name, ensure_ascii=False), ",".join(map(str, part.shape))
    return f'{name}:{{"dtype":"{part.dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}'


def _padded(length: int) -> int:
    return length + -length % 8


def _check_names(names: Iterable[str], codec: str) -> None:
    if codec not in CODECS:
        raise UnknownNameError("codec", codec, CODECS)
    names = set(names)
    if "__metadata__" in names:
        raise WireError("__metadata__ is safetensors' own entry, no name for a tensor; rename the tensor")
    for name in sorted(names):
        if codec in SUFFIX and name + SUFFIX[codec] in names:
            raise WireError(f"{name}{SUFFIX[codec]} is the name that {codec} gives to a part of {name}; rename the tensor")
