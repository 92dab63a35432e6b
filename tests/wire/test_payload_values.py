"""What comes back of a payload, by codec, and where its values lie."""

import math

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from payload_files import bits, file, returned

from edgefl.errors import WireError
from edgefl.testing.rules_of_codecs import ARRAYS, FINITE, SEEDS, TENSORS, rng, shapes_of
from edgefl.wire.payload import decode, encode

# By codec.


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


# The file, and where it is.


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
