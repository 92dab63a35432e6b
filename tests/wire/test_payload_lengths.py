"""How long a payload is, and where a sparse one is no shorter than a dense one."""

import math

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from payload_files import CODECS

from edgefl.testing.rules_of_codecs import NAMES, SEEDS, SHAPES, few, rng, shapes_of
from edgefl.wire.payload import decode, encode, payload_bytes, tensor_bytes


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
