"""Payloads: what comes back, how long they are, and what a receiver refuses."""

import json
import math
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edgefl.errors import UnknownNameError, WireError
from edgefl.registry import codecs
from edgefl.testing.rules_of_codecs import ARRAYS, FINITE, NAMES, SEEDS, SHAPES, TENSORS, few, rng, shapes_of
from edgefl.wire.codec import Codec, Part
from edgefl.wire.payload import decode, encode, header_bytes, payload_bytes, tensor_bytes

CODECS = codecs.names()


def returned(tensors, codec, seed=0):
    return decode(encode(tensors, codec, rng(seed)), shapes_of(tensors), "client 7", codec)


def bits(tensor):
    return tensor.numpy().tobytes()


def file(header, data=b""):
    """A safetensors file written by hand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


# What comes back


@given(TENSORS)
def test_fp32_returns_every_bit_and_is_plain_safetensors(tensors):
    assert encode(tensors) == encode(tensors, "fp32", rng()) == safetensors.torch.save(tensors)
    assert all(bits(t) == bits(tensors[name]) for name, t in returned(tensors, "fp32").items())


@given(TENSORS)
def test_sparse_returns_every_value(tensors):
    assert all(torch.equal(t, tensors[name]) for name, t in returned(tensors, "sparse").items())


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 40)), elements=FINITE, fill=st.just(0.0)), SEEDS)
def test_sparse_returns_the_values_of_a_pruned_matrix(w, seed):
    w[rng(seed).random(w.shape) < 0.9] = 0
    assert torch.equal(returned({"w": torch.from_numpy(w)}, "sparse")["w"], torch.from_numpy(w))


@given(ARRAYS)
def test_fp16_is_the_nearest_half_and_saturates(w):
    with np.errstate(over="ignore"):
        nearest = w.astype(np.float16).astype(np.float32)
    expected = np.where(np.isinf(nearest), np.copysign(np.float32(65504), w), nearest)
    assert bits(returned({"w": torch.from_numpy(w)}, "fp16")["w"]) == np.asarray(expected, np.float32).tobytes()


@given(ARRAYS, SEEDS)
def test_int8_errs_by_less_than_a_step_of_its_channel(w, seed):
    decoded = returned({"w": torch.from_numpy(w)}, "int8", seed)["w"].numpy().astype(np.float64)
    rows = w.reshape(w.shape[0] if w.ndim >= 2 else 1, -1) if w.size else w.reshape(1, 0)
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0).astype(np.float64)
    # The scale is max|w| / 127 rounded up to float32 (at most 2^-23 of it, or the smallest denormal); so are 127 decoded steps.
    slack = 2.0**-22 * largest + 128 * 2.0**-149
    assert (np.abs(decoded.reshape(rows.shape) - rows) <= largest / 127 + slack).all()
    assert (decoded.reshape(rows.shape)[largest[:, 0] == 0] == 0).all()


def test_int8_has_a_scale_for_each_output_channel_and_one_for_a_vector():
    w = torch.tensor([[127.0, -1.0], [0.0, 0.0], [-254.0, 2.0]])
    entries = safetensors.torch.load(encode({"w": w, "b": torch.tensor([1.0, -12.7]), "s": torch.tensor(-3.0)}, "int8", rng()))
    assert entries["w#scale"].tolist() == [1.0, 0.0, 2.0]
    assert entries["w"].tolist() == [[127, -1], [0, 0], [-127, 1]]
    assert entries["b#scale"].tolist() == pytest.approx([0.1])
    assert entries["s"].item() == -127
    assert entries["s#scale"].shape == (1,)


@pytest.mark.parametrize("value", [1e-45, -3e-44, 1.1e-38, 3.4028235e38, -3.4028235e38])
def test_int8_takes_denormals_and_the_largest_float(value):
    decoded = returned({"w": torch.tensor([value, 0.0])}, "int8")["w"]
    assert decoded.tolist() == pytest.approx([value, 0.0], rel=1 / 127, abs=1e-45)


def test_int8_is_unbiased():
    draws, shape = 4000, (4, 6)
    w = torch.from_numpy(np.float32([[1e-3], [1.0], [50.0], [1e30]]) * rng(1).uniform(-1, 1, shape).astype(np.float32))
    source = rng(2)
    payloads = (encode({"w": w}, "int8", source) for _ in range(draws))
    values = torch.stack([decode(p, {"w": shape}, "client 7", "int8")["w"] for p in payloads]).double()
    scale = w.double().abs().amax(dim=1, keepdim=True) / 127
    # Hoeffding: each draw lies within one step, so P(|mean - w| ≥ t) ≤ 2 exp(-2 n t² / step²); over all values it is 1e-9 at this t.
    # Rounding to the nearest step would be off by up to scale / 2, ten times as much.
    t = math.sqrt(math.log(2 * w.numel() / 1e-9) / (2 * draws))
    assert t < 0.06
    # Decoded values are rounded to float32 once more.
    assert bool(((values.mean(0) - w.double()).abs() <= (t + 127 * 2.0**-23) * scale).all())
    assert values.unique(dim=0).shape[0] > draws / 2  # the draws differ


def test_int8_is_the_same_for_the_same_generator():
    tensors = {"w": torch.linspace(-1, 1, 50).reshape(5, 10)}
    assert encode(tensors, "int8", rng(3)) == encode(tensors, "int8", rng(3)) != encode(tensors, "int8", rng(4))


# The file, and where it is


def test_types_that_nobody_decodes_are_written_too():
    tensors = {"w": torch.ones(3, dtype=torch.bfloat16), "n": torch.ones((), dtype=torch.int64)}
    assert encode(tensors) == safetensors.torch.save(tensors)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("held", [bytes, bytearray, memoryview])
def test_without_a_copy_it_is_the_payloads_own_memory(held):
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(5.0)}
    payload = held(bytearray(encode(tensors)))
    decoded = decode(payload, shapes_of(tensors), "client 7", copy=False)
    begin = np.frombuffer(payload, np.uint8).ctypes.data
    for name, tensor in decoded.items():
        assert torch.equal(tensor, tensors[name])
        assert begin < tensor.data_ptr() < begin + len(payload)
    del payload  # bytes live as long as what views them
    assert decoded["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("copy", [True, False])
def test_values_whose_sum_is_infinite_are_finite(copy):
    tensors = {"a": torch.full((5,), 3e38), "b": torch.tensor([3e38, 3e38, -3e38])}
    decoded = decode(encode(tensors), shapes_of(tensors), "client 7", copy=copy)
    assert all(torch.equal(decoded[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 77, 999])
@pytest.mark.parametrize("copy", [True, False])
def test_one_value_that_is_not_finite_is_found(value, place, copy):
    tensors = {"a": torch.randn(7), "b": torch.randn(1000), "c": torch.tensor(3e38)}
    tensors["b"][place] = value
    with pytest.raises(WireError, match="^client 7: b holds NaN or infinity, expected finite values$"):
        decode(encode(tensors), shapes_of(tensors), "client 7", copy=copy)


def test_a_payload_laid_out_otherwise_is_read_too():
    one, two = np.float32([1, 2]), np.float32([3])
    entries = {
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
    }
    payload = file(entries, two.tobytes() + one.tobytes())
    for held in (bytes, bytearray, memoryview):
        decoded = decode(held(payload), {"a": (2,), "b": (1,)}, "client 7", copy=False)
        assert {name: tensor.tolist() for name, tensor in decoded.items()} == {"a": [1.0, 2.0], "b": [3.0]}
    with pytest.raises(WireError, match="valid safetensors"):
        decode(memoryview(payload)[:-1], {"a": (2,), "b": (1,)}, "client 7")


# How long it is


@given(st.dictionaries(NAMES, SHAPES, max_size=6))
def test_the_length_of_sparse_is_reached_by_tensors_without_zeros(shapes):
    assert len(encode({name: torch.ones(s) for name, s in shapes.items()}, "sparse")) == payload_bytes(shapes, "sparse")


@given(st.dictionaries(NAMES, st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=6), SEEDS)
def test_sparse_is_never_longer_than_dense(sizes, seed):
    draw = rng(seed)
    tensors = {name: few(max(size), min(size))[torch.from_numpy(draw.permutation(max(size)))] for name, size in sizes.items()}
    assert len(encode(tensors, "sparse")) <= payload_bytes(shapes_of(tensors), "sparse")


@pytest.mark.parametrize("codec", CODECS)
def test_lengths_of_a_network(codec):
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64, track_running_stats=False), torch.nn.Linear(512, 100)
    )
    tensors = {name: t.detach() for name, t in net.state_dict().items()}
    # BatchNorm's zeros are too few to be worth an entry in the header.
    assert len(encode(tensors, codec, rng())) <= payload_bytes(shapes_of(tensors), codec)
    assert payload_bytes({}, codec) == len(encode({}, codec, rng()))


def test_lengths_need_no_memory():
    assert tensor_bytes({"w": (2**40, 2**10)}) == {"w": 2**52}
    assert payload_bytes({"w": (2**40, 2**10)}, "fp16") > 2**51


def test_bytes_of_each_tensor():
    shapes = {"w": (8, 3), "b": (8,), "s": (), "none": (4, 0)}
    assert tensor_bytes(shapes) == tensor_bytes(shapes, "sparse") == {"w": 96, "b": 32, "s": 4, "none": 0}
    assert tensor_bytes(shapes, "fp16") == {"w": 48, "b": 16, "s": 2, "none": 0}
    assert tensor_bytes(shapes, "int8") == {"w": 24 + 32, "b": 8 + 4, "s": 1 + 4, "none": 16}


# The entry of the indices of 256 values, `,"w#index":{"dtype":"U8","shape":[190],"data_offsets":[1024,1024]}`, has 66 characters, 72
# padded, and each value sent takes 5 bytes: 5 · 190 + 72 < 1024. The last column says by how much one value more is longer than dense.
CROSSOVERS = [
    (256, torch.uint8, 5, 66, 190, 3),
    (246, torch.uint8, 5, 64, 183, 0),
    (257, torch.uint16, 6, 67, 159, 4),
    (264, torch.uint16, 6, 67, 163, 0),
    (65536, torch.uint16, 6, 73, 43677, 4),
    (65537, torch.int32, 8, 73, 32758, 4),
    (65538, torch.int32, 8, 73, 32758, 0),
]


@pytest.mark.parametrize(("numel", "dtype", "each", "entry", "nonzero", "excess"), CROSSOVERS)
def test_sparse_falls_back_to_dense_where_it_is_no_shorter(numel, dtype, each, entry, nonzero, excess):
    assert each * (nonzero + 1) + math.ceil(entry / 8) * 8 - 4 * numel == excess
    below, above = (encode({"w": few(numel, k)}, "sparse") for k in (nonzero, nonzero + 1))
    assert safetensors.torch.load(below)["w#index"].dtype == dtype
    assert list(safetensors.torch.load(above)) == ["w"]
    assert len(above) == payload_bytes({"w": (numel,)}, "sparse") >= len(below)
    for payload, k in ((below, nonzero), (above, nonzero + 1)):
        assert torch.equal(decode(payload, {"w": (numel,)}, "client 7", "sparse")["w"], few(numel, k))


@pytest.mark.parametrize("numel", [100, 256, 1000])
def test_sparse_chooses_what_is_shorter_but_for_a_few_bytes(numel):
    for k in range(numel + 1):
        w = few(numel, k)
        index = w.nonzero().squeeze(1).to(torch.uint8 if numel <= 256 else torch.uint16)
        metadata = {"codec": "sparse"}
        sparse = len(safetensors.torch.save({"w": w[index.long()], "w#index": index}, metadata))
        dense = len(safetensors.torch.save({"w": w}, metadata))
        length = len(encode({"w": w}, "sparse"))
        assert length in (sparse, dense)
        assert length <= min(sparse, dense) + 16


def test_a_tensor_of_zeros_is_nothing_but_a_header():
    payload = encode({"w": torch.zeros(70000)}, "sparse")
    assert len(payload) == 8 + int.from_bytes(payload[:8], "little")


# What is refused


@pytest.mark.parametrize("codec", ["fp16", "int8", "sparse"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_not_encoded(codec, value):
    with pytest.raises(WireError, match=f"^b holds NaN or infinity, which {codec} does not carry; send finite tensors$"):
        encode({"a": torch.zeros(2), "b": torch.tensor([0.0, value])}, codec, rng())


def test_int8_needs_a_generator():
    with pytest.raises(ValueError, match="^int8 rounds at random: pass the generator that draws it as rng$"):
        encode({"w": torch.zeros(2)}, "int8")


@pytest.mark.parametrize(("codec", "suffix"), [("int8", "#scale"), ("sparse", "#index")])
def test_a_name_that_the_codec_needs_is_refused(codec, suffix):
    tensors = {"w": torch.zeros(2), f"w{suffix}": torch.zeros(1)}
    message = f"^w{suffix} is the name that {codec} gives to a part of w; rename the tensor$"
    for call in (
        lambda: encode(tensors, codec, rng()),
        lambda: decode(encode(tensors), shapes_of(tensors), "client 7", codec),
        lambda: payload_bytes(shapes_of(tensors), codec),
        lambda: header_bytes(shapes_of(tensors), codec),
        lambda: tensor_bytes(shapes_of(tensors), codec),
    ):
        with pytest.raises(WireError, match=message):
            call()
    assert returned(tensors, "fp32").keys() == tensors.keys()


def test_the_name_of_the_metadata_is_refused():
    message = "^__metadata__ is safetensors' own entry, no name for a tensor; rename the tensor$"
    for call in (lambda: encode({"__metadata__": torch.zeros(2)}), lambda: payload_bytes({"__metadata__": (2,)})):
        with pytest.raises(WireError, match=message):
            call()


def test_an_unknown_codec_is_named():
    message = "unknown codec 'int9'; did you mean 'int8'? Known: fp16, fp32, int8, sparse"
    for call in (lambda: encode({}, "int9"), lambda: decode(b"", {}, "client 7", "int9"), lambda: payload_bytes({}, "int9")):
        with pytest.raises(UnknownNameError, match=re.escape(message)):
            call()


W16, SCALE = torch.zeros(2, 3, dtype=torch.int8), torch.ones(2)
U8 = torch.uint8
BAD = {
    "missing": ("fp32", {}, "tensors missing or not expected: w"),
    "extra": ("fp16", {"w": torch.zeros(2, 3).half(), "v": torch.zeros(1).half()}, "tensors missing or not expected: v"),
    "no scale": ("int8", {"w": W16}, "tensors missing or not expected: w#scale"),
    "no steps": ("int8", {"w#scale": SCALE}, "tensors missing or not expected: w"),
    "an index in fp32": ("fp32", {"w": torch.zeros(1), "w#index": torch.zeros(1)}, "tensors missing or not expected: w#index"),
    "no values": ("sparse", {"w#index": torch.zeros(1, dtype=U8)}, "tensors missing or not expected: w, w#index"),
    "shape": ("fp32", {"w": torch.zeros(3, 2)}, "w is (3, 2) torch.float32, expected (2, 3) torch.float32"),
    "type": ("fp32", {"w": torch.zeros(2, 3).half()}, "w is (2, 3) torch.float16, expected (2, 3) torch.float32"),
    "type of fp16": ("fp16", {"w": torch.zeros(2, 3)}, "w is (2, 3) torch.float32, expected (2, 3) torch.float16"),
    "another type": ("fp16", {"w": torch.zeros(2, 3).bfloat16()}, "w is (2, 3) BF16, expected (2, 3) torch.float16"),
    "shape of steps": ("int8", {"w": W16.T.contiguous(), "w#scale": SCALE}, "w is (3, 2) torch.int8, expected (2, 3) torch.int8"),
    "shape of scale": (
        "int8",
        {"w": W16, "w#scale": torch.ones(1)},
        "w#scale is (1,) torch.float32, expected (2,) torch.float32",
    ),
    "type of scale": ("int8", {"w": W16, "w#scale": SCALE.double()}, "w#scale is (2,) F64, expected (2,) torch.float32"),
    "NaN scale": ("int8", {"w": W16, "w#scale": SCALE * math.nan}, "w#scale holds a scale that is negative, NaN or infinite"),
    "infinite scale": (
        "int8",
        {"w": W16, "w#scale": SCALE * math.inf},
        "w#scale holds a scale that is negative, NaN or infinite",
    ),
    "negative scale": ("int8", {"w": W16, "w#scale": -SCALE}, "w#scale holds a scale that is negative, NaN or infinite"),
    "overflow": ("int8", {"w": W16 + 2, "w#scale": SCALE * 3e38}, "w holds NaN or infinity, expected finite values"),
    "NaN": ("fp32", {"w": torch.full((2, 3), math.nan)}, "w holds NaN or infinity, expected finite values"),
    "infinite half": ("fp16", {"w": torch.full((2, 3), math.inf).half()}, "w holds NaN or infinity, expected finite values"),
    "dense NaN": ("sparse", {"w": torch.full((2, 3), math.nan)}, "w holds NaN or infinity, expected finite values"),
    "sparse NaN": (
        "sparse",
        {"w": torch.full((1,), math.nan), "w#index": torch.zeros(1, dtype=U8)},
        "w holds NaN or infinity, expected finite values",
    ),
    "dense shape": ("sparse", {"w": torch.zeros(6)}, "w is (6,) torch.float32, expected (2, 3) torch.float32"),
    "type of index": (
        "sparse",
        {"w": torch.zeros(1), "w#index": torch.zeros(1, dtype=torch.int64)},
        "w#index is (1,) torch.int64, expected (1,) torch.uint8",
    ),
    "too few indices": (
        "sparse",
        {"w": torch.zeros(2), "w#index": torch.zeros(1, dtype=U8)},
        "w#index is (1,) torch.uint8, expected (2,) torch.uint8",
    ),
    "shape of values": (
        "sparse",
        {"w": torch.zeros(2, 3), "w#index": torch.arange(6, dtype=U8)},
        "w is (2, 3) torch.float32, expected (6,) torch.float32",
    ),
    "an index past the end": (
        "sparse",
        {"w": torch.ones(2), "w#index": torch.tensor([0, 6], dtype=U8)},
        "w#index points outside of the tensor's 6 values",
    ),
    "the same index twice": (
        "sparse",
        {"w": torch.ones(2), "w#index": torch.tensor([1, 1], dtype=U8)},
        "w#index is not strictly increasing",
    ),
    "falling indices": (
        "sparse",
        {"w": torch.ones(2), "w#index": torch.tensor([1, 0], dtype=U8)},
        "w#index is not strictly increasing",
    ),
}


@pytest.mark.parametrize(("codec", "tensors", "message"), BAD.values(), ids=BAD)
def test_other_tensors_are_refused(codec, tensors, message):
    payload = safetensors.torch.save(tensors, None if codec == "fp32" else {"codec": codec})
    with pytest.raises(WireError, match=f"^{re.escape(f'client 7: {message}')}$"):
        decode(payload, {"w": (2, 3)}, "client 7", codec)


def test_a_negative_index_is_refused():
    payload = safetensors.torch.save({"w": torch.ones(1), "w#index": torch.tensor([-1], dtype=torch.int32)}, {"codec": "sparse"})
    with pytest.raises(WireError, match="^client 7: w#index points outside of the tensor's 70000 values$"):
        decode(payload, {"w": (70000,)}, "client 7", "sparse")


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
DAMAGED = {
    "empty": b"",
    "cut": encode({"w": torch.ones(1)})[:-1],
    "longer": encode({"w": torch.ones(1)}) + b"\0",
    "not JSON": file(b"{w}"),
    "a list": file([]),
    "a number no one can read": file(
        b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":' + b"1" * 5000 + b"}}", b"\0" * 4
    ),
    "metadata that is not text": file({"__metadata__": {"codec": 1}, "w": ENTRY}, b"\0" * 4),
}


@pytest.mark.parametrize("payload", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused(payload):
    with pytest.raises(WireError, match=r"^client 7: the payload is not a valid safetensors file \(.+\)$"):
        decode(payload, {"w": (1,)}, "client 7")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F8_E8M0", "shape": [4], "data_offsets": [0, 4]}, "w is (4,) F8_E8M0, expected (1,) torch.float32"),
        ({"dtype": "F32", "shape": [0, 2**63, 4], "data_offsets": [0, 0]}, f"w is (0, {2**63}, 4) torch.float32, expected (1,)"),
    ],
)
def test_entries_that_torch_cannot_hold_are_refused(entry, message):
    with pytest.raises(WireError, match=re.escape(message)):
        decode(file({"w": entry}, bytes(entry["data_offsets"][1])), {"w": (1,)}, "client 7")


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"codec": "fp32"}])
def test_other_metadata_do_not_matter(metadata):
    payload = file({"__metadata__": metadata, "w": ENTRY}, b"\0" * 4)
    assert decode(payload, {"w": (1,)}, "client 7")["w"].tolist() == [0.0]


class Halves(Codec):
    """Half of the bytes, unpacked as a test says."""

    def parts(self, name, shape, count=None):
        return (Part(name, "F16", shape),)

    def pack(self, w, rng):
        return (w.half(),)


@pytest.mark.parametrize(
    ("unpack", "message"),
    [
        (lambda values, shape: values[0].float()[:1], r"to \(1,\) torch.float32, expected \(4,\) torch.float32"),
        (lambda values, shape: values[0], r"to \(4,\) torch.float16, expected \(4,\) torch.float32"),
        (lambda values, shape: None, r"to NoneType, expected \(4,\) torch.float32"),
    ],
)
def test_what_a_codec_unpacks_is_checked(unpack, message, monkeypatch):
    monkeypatch.setattr(Halves, "unpack", lambda self, values, shape: unpack(values, shape))
    monkeypatch.setattr("edgefl.wire.payload.codec_named", lambda name: Halves())
    with pytest.raises(WireError, match=f"^client 7: w was unpacked by codec halves {message}$"):
        returned({"w": torch.ones(4)}, "halves")
