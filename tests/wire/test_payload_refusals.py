"""What a sender and a receiver of payloads refuse, each with its message."""

import math
import re

import pytest
import safetensors.torch
import torch
from payload_files import file, returned

from edgefl.errors import ConfigError, UnknownNameError, WireError
from edgefl.registry import codecs
from edgefl.testing.rules_of_codecs import rng, shapes_of
from edgefl.wire.codec import Codec, Part, codec_named
from edgefl.wire.payload import decode, encode, header_bytes, payload_bytes, tensor_bytes


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


@pytest.mark.parametrize(
    ("packed", "got"),
    [
        (lambda w: None, "NoneType"),
        (lambda w: w.half(), "Tensor"),
        (lambda w: (w.bfloat16(),), r"\(torch.bfloat16\)"),
        (lambda w: (w.half(), w), r"\(torch.float16, torch.float32\)"),
        (lambda w: (w.numpy(),), r"\(ndarray\)"),
    ],
)
def test_what_a_codec_packs_is_checked(packed, got, monkeypatch):
    monkeypatch.setattr(Halves, "pack", lambda self, w, rng: packed(w))
    monkeypatch.setattr("edgefl.wire.payload.codec_named", lambda name: Halves())
    with pytest.raises(WireError, match=f"^w was packed by codec halves to {got}, expected a tuple of one tensor of type I64"):
        returned({"w": torch.ones(4)}, "halves")


@pytest.mark.parametrize("parts", [None, (), (("w", "F32", (2, 3)),), (Part("w", "BF16", (2, 3)),), (Part("v", "F32", (2, 3)),)])
def test_a_codec_declares_parts_with_the_name_of_the_tensor(parts, monkeypatch):
    monkeypatch.setattr(Halves, "parts", lambda self, name, shape, count=None: parts)
    monkeypatch.setattr(codecs, "load", lambda name: Halves)
    with pytest.raises(ConfigError, match=r'^codec bad-parts: parts\("w", \(2, 3\)\) returned .*, expected a tuple of Part'):
        codec_named.__wrapped__("bad-parts")


class Negated(Codec):
    """The same bytes as float32, of the opposite sign."""

    def parts(self, name, shape, count=None):
        return (Part(name, "F32", shape),)

    def pack(self, w, rng):
        return (-w,)

    def unpack(self, values, shape):
        return -values[0]


def test_a_codec_unpacks_what_it_has_packed_to_float32(monkeypatch):
    monkeypatch.setattr("edgefl.wire.payload.codec_named", lambda name: Negated())
    assert returned({"w": torch.arange(4.0)}, "negated")["w"].tolist() == [0, 1, 2, 3]
