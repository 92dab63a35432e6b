"""Rules of codecs: what comes back, how long payloads are, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from edgefl.errors import WireError
from edgefl.registry import codecs
from edgefl.wire.codec import codec_named
from edgefl.wire.payload import decode, encode, header_bytes, payload_bytes, tensor_bytes

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from(
    [0.0, -0.0, 1e-45, -1e-45, 3.4e38, 65504.0, 65520.0]
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)
ARRAYS = SHAPES.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=FINITE))
RESERVED = ("#scale", "#index", "__metadata__")
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40).filter(lambda name: not name.endswith(RESERVED)),
    st.sampled_from(["é" * 200, 'a\n"\\\x01\x7f\u2028', "w#", "😀"]),
)
TENSORS = st.dictionaries(NAMES, ARRAYS.map(torch.from_numpy), max_size=5)
SEEDS = st.integers(0, 2**32 - 1)
_drawn = settings(deadline=None, max_examples=40)


def rng(seed: int = 0) -> np.random.Generator:
    """Return the generator that rounds."""
    return np.random.default_rng(seed)


def shapes_of(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return name → shape."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def few(numel: int, nonzero: int) -> Tensor:
    """Return ``numel`` values of which the first ``nonzero`` are not zero."""
    return torch.cat([torch.arange(1.0, nonzero + 1), torch.zeros(numel - nonzero)])


@_drawn
@given(tensors=TENSORS, seed=SEEDS)
def test_the_receiver_gets_float32_of_the_expected_shapes_in_the_expected_order(
    codec: str, tensors: dict[str, Tensor], seed: int
) -> None:
    """Every finite tensor comes back as finite float32 of its shape."""
    backwards = dict(reversed(tensors.items()))
    decoded = decode(encode(tensors, codec, rng(seed)), shapes_of(backwards), "client 7", codec)
    assert list(decoded) == list(backwards)
    assert shapes_of(decoded) == shapes_of(backwards)
    for name, tensor in decoded.items():
        assert tensor.dtype == torch.float32, f"{name} comes back as {tensor.dtype}"
        assert bool(torch.isfinite(tensor).all()), f"{name} comes back with NaN or infinity, from {tensors[name].tolist()}"


def test_values_come_back(codec: str) -> None:
    """What comes back points the way of what was sent."""
    w = torch.from_numpy(rng(1).standard_normal((8, 40))).float()
    decoded = decode(encode({"w": w}, codec, rng()), {"w": (8, 40)}, "client 7", codec)["w"]
    assert float((w * decoded).sum()) > 0, "decoded values have nothing in common with those that were encoded"


@_drawn
@given(tensors=TENSORS, seed=SEEDS)
def test_a_payload_is_the_file_that_safetensors_writes(codec: str, tensors: dict[str, Tensor], seed: int) -> None:
    """A payload is a safetensors file, and its metadata name the codec."""
    payload = encode(tensors, codec, rng(seed))
    assert payload == safetensors.torch.save(safetensors.torch.load(payload), None if codec == "fp32" else {"codec": codec})


@_drawn
@given(tensors=TENSORS, seed=SEEDS)
def test_lengths_are_known_without_the_values(codec: str, tensors: dict[str, Tensor], seed: int) -> None:
    """``parts`` declares the bytes of a payload exactly, or their maximum if the codec ``chooses``."""
    shapes, length = shapes_of(tensors), len(encode(tensors, codec, rng(seed)))
    assert payload_bytes(shapes, codec) == header_bytes(shapes, codec) + sum(tensor_bytes(shapes, codec).values())
    assert length <= payload_bytes(shapes, codec)
    if not codec_named(codec).chooses:
        assert length == payload_bytes(shapes, codec)


def test_views_that_train_are_encoded_by_their_values(codec: str) -> None:
    """Tensors that are views, or that need gradients, are encoded as their values."""
    w = torch.arange(12.0).reshape(3, 4).t().detach().requires_grad_()
    assert encode({"w": w}, codec, rng()) == encode({"w": w.detach().clone().contiguous()}, codec, rng())


def test_the_same_generator_gives_the_same_bytes(codec: str) -> None:
    """The same values and the same generator give the same bytes, and what is encoded does not change."""
    w = torch.linspace(-1, 1, 50).reshape(5, 10)
    assert encode({"w": w}, codec, rng(3)) == encode({"w": w}, codec, rng(3)), "packing draws from elsewhere than from rng"
    assert torch.equal(w, torch.linspace(-1, 1, 50).reshape(5, 10)), "packing changes the tensor that it gets"


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_what_is_decoded_has_nothing_to_do_with_the_payload(codec: str, buffer: type) -> None:
    """Decoded tensors are no views of the payload."""
    tensors = {"w": few(30, 20).reshape(5, 6), "none": torch.zeros(0, 3), "b": torch.arange(3.0)}
    memory = bytearray(encode(tensors, codec, rng()))
    decoded = decode(buffer(memory), shapes_of(tensors), "client 7", codec)
    expected = decode(bytes(memory), shapes_of(tensors), "client 7", codec)
    memory[:] = bytes(len(memory))
    memory.clear()  # an error while anything is a view of it
    for name, tensor in decoded.items():
        assert torch.equal(tensor, expected[name])
        tensor.add_(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_do_not_pass(codec: str, value: float) -> None:
    """NaN and infinity are refused, by the sender or by the receiver."""
    tensors = {"a": torch.zeros(2), "b": torch.tensor([0.0, value])}
    with pytest.raises(WireError, match="b holds NaN or infinity"):
        decode(encode(tensors, codec, rng()), shapes_of(tensors), "client 7", codec)


def test_only_float32_is_encoded(codec: str) -> None:
    """Only float32 is encoded, unless the codec is ``raw``."""
    if not codec_named(codec).raw:
        with pytest.raises(WireError, match=f"^w is torch.int64, expected torch.float32: {codec} encodes nothing else$"):
            encode({"w": torch.zeros(2, dtype=torch.int64)}, codec, rng())


def test_another_codec_is_refused(codec: str) -> None:
    """The payload of another codec is refused."""
    for sent in (name for name in codecs.names() if name != codec):
        with pytest.raises(WireError, match=f"^client 7: the payload is encoded as '{sent}', expected '{codec}'; both ends"):
            decode(encode({"w": torch.ones(2)}, sent, rng()), {"w": (2,)}, "client 7", codec)


@_drawn
@given(data=st.data())
def test_a_changed_byte_gives_finite_tensors_or_a_wire_error(codec: str, data: st.DataObject) -> None:
    """A damaged payload gives finite tensors or a WireError; ``unpack`` raises nothing but ValueError."""
    tensors = {"w": few(100, 9).reshape(10, 10), "b": torch.ones(3)}
    payload = bytearray(encode(tensors, codec, rng()))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(payload), shapes_of(tensors), "client 7", codec)
    except WireError:
        return
    assert shapes_of(decoded) == shapes_of(tensors)
    assert all(bool(torch.isfinite(t).all()) for t in decoded.values())
