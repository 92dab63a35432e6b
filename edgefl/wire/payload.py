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
import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from edgefl.errors import UnknownNameError, WireError
from edgefl.util.finite import is_finite
from edgefl.wire.codecs import (
    CODECS,
    SUFFIX,
    TYPES,
    Part,
    from_int8,
    from_sparse,
    parts_of,
    sparse_parts,
    to_half,
    to_int8,
    to_sparse,
)

Shapes = Mapping[str, tuple[int, ...]]
Payload = bytes | bytearray | memoryview

_NAMES = {dtype: name for name, dtype in TYPES.items()}
_ORDER = list(TYPES)
with warnings.catch_warnings():
    # Once per process torch warns that it cannot be kept from writing to bytes; what decode promises of its views says so.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class _Layout(NamedTuple):
    """A file: its header, which part comes first and so on, how many values each has in that order, where each begins, its length."""

    header: bytes
    order: tuple[int, ...]
    counts: tuple[int, ...]
    begins: tuple[int, ...]
    length: int


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
    return b"".join(_pieces(tensors, codec, rng))


def encode_into(
    buffer: bytearray | memoryview, tensors: Mapping[str, Tensor], codec: str = "fp32", rng: np.random.Generator | None = None
) -> int:
    """Write what :func:`encode` returns to the beginning of ``buffer``, memory of the caller's; return how many bytes it is.

    Raises:
        WireError: as :func:`encode`.
        ValueError: ``buffer`` is too short, or cannot be written to; ``int8`` without ``rng``.

    >>> buffer = bytearray(200)
    >>> bytes(buffer[: encode_into(buffer, {"w": torch.ones(2)})]) == encode({"w": torch.ones(2)})
    True
    """
    pieces = _pieces(tensors, codec, rng)
    length = sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)
    target, end = np.frombuffer(buffer, np.uint8), 0
    if length > len(target):
        raise ValueError(f"the payload has {length} bytes, the buffer {len(target)}; payload_bytes says how many there can be")
    for piece in pieces:
        values = np.frombuffer(piece, np.uint8) if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8)
        begin, end = end, end + len(values)
        target[begin:end] = values
    return length


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
    return len(_layout(_dense(shapes, codec), codec).header)


def decode(payload: Payload, expected: Shapes, sender: str, codec: str = "fp32", copy: bool = True) -> dict[str, Tensor]:
    """Return the tensors of ``payload``, encoded by ``codec``: float32, of the shapes and in the order of ``expected``.

    With ``copy`` nothing is kept of ``payload``. Without, tensors that travelled as float32 may be views of it: nobody may write to
    them, and if ``payload`` is memory that someone else gives back, it has to outlive them.

    Raises:
        WireError: the payload is damaged or of another codec, a tensor is missing, extra, of another shape or type, or its values
            are not finite, or its indices or scales are not what the codec writes; names ``sender`` and the tensor.

    >>> decode(encode({"w": torch.tensor([0.1, 1e9])}, "fp16"), {"w": (2,)}, "client 7", "fp16")["w"].tolist()
    [0.0999755859375, 65504.0]
    """
    _check_names(expected, codec)
    found, finite = _predicted(payload, _dense(expected, codec), codec)
    if found is not None and finite:  # float32, each name one part
        return {name: found[name].clone() if copy else found[name] for name in expected}
    layout = {name: parts_of(name, shape, codec) for name, shape in expected.items()}
    if found is None:
        received = _read(payload, sender, codec)
        layout = {name: _expected_parts(name, shape, codec, received) for name, shape in expected.items()}
        if different := received.keys() ^ {part.name for parts in layout.values() for part in parts}:
            raise WireError(f"{sender}: tensors missing or not expected: {', '.join(sorted(different))}")
        found = {part.name: _values(part, received[part.name], sender) for parts in layout.values() for part in parts}
    tensors = {}
    for name, parts in layout.items():
        tensors[name] = _unpack([found[part.name] for part in parts], name, expected[name], sender, codec, copy)
        if not is_finite(tensors[name]):
            raise WireError(f"{sender}: {name} holds NaN or infinity, expected finite values")
    return tensors


def stored_tensors(payload: bytes, sender: str) -> dict[str, Tensor]:
    """Return the float32 tensors of a payload that carries its own shapes: what a client keeps, which nobody else declares.

    Raises:
        WireError: the payload is damaged, or its values are not finite.
    """
    shapes = {name: tuple(entry["shape"]) for name, entry in _read(payload, sender, "fp32").items()}
    return decode(payload, shapes, sender)


def _pieces(tensors: Mapping[str, Tensor], codec: str, rng: np.random.Generator | None) -> list[Any]:
    """Return the header of a payload and arrays of its values, one behind the other; the arrays are the tensors' own memory."""
    _check_names(tensors, codec)
    if codec == "int8" and rng is None:
        raise ValueError("int8 rounds at random: pass the generator that draws it as rng")
    packed = tensors
    if codec != "fp32":
        dense_bytes = 4 * sum(tensor.numel() for tensor in tensors.values())
        packed = {}
        for name, tensor in tensors.items():
            w = tensor.detach().contiguous()
            if w.dtype != torch.float32:
                raise WireError(f"{name} is {w.dtype}, expected torch.float32: {codec} encodes nothing else")
            if not is_finite(w):
                raise WireError(f"{name} holds NaN or infinity, which {codec} does not carry; send finite tensors")
            packed |= _pack(name, w, codec, rng, dense_bytes)
    elif any(tensor.dtype not in _NAMES for tensor in tensors.values()):
        return [safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})]
    parts = tuple(Part(name, _NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in packed.items())
    # The parts of a sparse payload are never the same twice: nothing to keep.
    layout = (_layout.__wrapped__ if codec == "sparse" else _layout)(parts, codec)
    arrays = [tensor.detach().contiguous().numpy() for tensor in packed.values()]
    return [layout.header, *(arrays[place] for place in layout.order)]


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


def _predicted(payload: Payload, parts: tuple[Part, ...], codec: str) -> tuple[dict[str, Tensor] | None, bool]:
    """Return views of the parts, and whether all are known to be finite, if ``payload`` has the very header that they predict.

    There is nothing left to compare then but values. Any other payload, right or wrong, is (None, False).
    """
    layout = _layout(parts, codec)
    if len(payload) != layout.length or bytes(payload[: len(layout.header)]) != layout.header:
        return None, False
    if codec != "fp32" or layout.length == len(layout.header):
        return {part.name: _view(payload, part, begin) for part, begin in zip(parts, layout.begins, strict=True)}, False
    flat = torch.frombuffer(payload, dtype=torch.float32, offset=len(layout.header))
    split = zip(layout.order, flat.split_with_sizes(layout.counts), strict=True)
    return {parts[place].name: values.view(parts[place].shape) for place, values in split}, is_finite(flat)


def _view(buffer: Payload, part: Part, begin: int = 0) -> Tensor:
    """Return the tensor of ``part`` that is the memory of ``buffer`` from ``begin`` on."""
    count, dtype = math.prod(part.shape), TYPES[part.dtype]
    # frombuffer takes no empty buffer.
    flat = torch.frombuffer(buffer, dtype=dtype, count=count, offset=begin) if count else torch.empty(0, dtype=dtype)
    return flat.view(part.shape)


def _read(payload: Payload, sender: str, codec: str) -> dict[str, Any]:
    """Return safetensors' entries by name: shape, dtype and data of each, not yet compared with anything."""
    payload = bytes(payload)
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
    return _view(entry["data"], part)


def _unpack(values: list[Tensor], name: str, shape: tuple[int, ...], sender: str, codec: str, copy: bool) -> Tensor:
    """Return the float32 tensor of one name from the values of its parts, whose shapes and types are the declared ones.

    Without ``copy`` it may be the values themselves.
    """
    if len(values) == 1:
        return values[0].to(torch.float32, copy=copy)
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


def _dense(shapes: Shapes, codec: str) -> tuple[Part, ...]:
    """Return the parts of tensors of these shapes; under ``sparse`` those of tensors that stay dense."""
    return _dense_of(tuple(shapes.items()), codec)


@lru_cache(maxsize=64)
def _dense_of(shapes: tuple[tuple[str, tuple[int, ...]], ...], codec: str) -> tuple[Part, ...]:
    return tuple(part for name, shape in shapes for part in parts_of(name, shape, codec))


@lru_cache(maxsize=64)
def _layout(parts: tuple[Part, ...], codec: str) -> _Layout:
    """Return how safetensors lays out a file of these parts."""
    order = tuple(sorted(range(len(parts)), key=lambda place: (_ORDER.index(parts[place].dtype), parts[place].name)))
    entries = [] if codec == "fp32" else [f'"__metadata__":{{"codec":"{codec}"}}']
    begins, end = [0] * len(parts), 0
    for place in order:
        begins[place], end = end, end + parts[place].data_bytes
        entries.append(_entry(parts[place], begins[place], end))
    text = f"{{{','.join(entries)}}}".encode()
    header = _padded(len(text)).to_bytes(8, "little") + text.ljust(_padded(len(text)))
    counts = tuple(math.prod(parts[place].shape) for place in order)
    return _Layout(header, order, counts, tuple(len(header) + begin for begin in begins), len(header) + end)


def _check_names(names: Mapping[str, Any], codec: str) -> None:
    if codec not in CODECS:
        raise UnknownNameError("codec", codec, CODECS)
    if "__metadata__" in names:
        raise WireError("__metadata__ is safetensors' own entry, no name for a tensor; rename the tensor")
    if (suffix := SUFFIX.get(codec)) is None:
        return
    for name in sorted(names):
        if name + suffix in names:
            raise WireError(f"{name}{suffix} is the name that {codec} gives to a part of {name}; rename the tensor")
