"""The files that a graph would read, however a hostile graph names them, and however deep it hides the tensor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgefl_graph import GraphError, external_files
from onnx import TensorProto, helper, numpy_helper

SECRET = "../../.ssh/id_ed25519"


def outside(location: str = SECRET) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def graph(nodes=(), tensors=(), sparse=()) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "g", [], [], list(tensors), sparse_initializer=list(sparse))


def constant(tensor: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["w"], value=tensor)


def sparse() -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(outside(), numpy_helper.from_array(np.arange(2)), [4])


def function() -> onnx.FunctionProto:
    return helper.make_function("d", "f", [], ["w"], [constant(outside())], [helper.make_opsetid("", 20)])


def deep(levels: int) -> onnx.GraphProto:
    found = graph([constant(outside())])
    for _ in range(levels):
        found = graph([helper.make_node("If", ["c"], ["w"], then_branch=found, else_branch=graph())])
    return found


PLACES = {
    "initializer": lambda: helper.make_model(graph(tensors=[outside()])),
    "constant": lambda: helper.make_model(graph([constant(outside())])),
    "list of constants": lambda: helper.make_model(graph([helper.make_node("X", [], ["w"], values=[outside(), outside()])])),
    "branch in a branch": lambda: helper.make_model(deep(2)),
    "list of graphs": lambda: helper.make_model(graph([helper.make_node("X", [], ["w"], bodies=[deep(0)])])),
    "sparse": lambda: helper.make_model(graph(sparse=[sparse()])),
    "sparse constant": lambda: helper.make_model(graph([helper.make_node("Constant", [], ["w"], sparse_value=sparse())])),
    "function": lambda: helper.make_model(graph(), functions=[function()]),
    "training": lambda: onnx.ModelProto(graph=graph(), training_info=[onnx.TrainingInfoProto(algorithm=deep(0))]),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_location_is_found_in_every_place(place):
    assert external_files(PLACES[place]().SerializeToString()) == {SECRET}


def test_a_long_location_is_found():
    assert external_files(helper.make_model(graph(tensors=[outside("a/" * 100)])).SerializeToString()) == {"a/" * 100}


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


@pytest.mark.parametrize(
    "entry",
    [
        field(2, b"secret") + field(1, b"location"),  # the value first
        field(1, b"length") + field(1, b"location") + field(2, b"other") + field(2, b"secret"),  # of each the last counts
        field(1, b"location") + b"\x98\x06\x01" + field(2, b"secret"),  # an unknown field in between
    ],
    ids=["value first", "twice", "unknown field"],
)
def test_an_unusual_encoding_is_read_as_protobuf_reads_it(entry):
    tensor = TensorProto(name="w", data_type=1, dims=[2], data_location=1).SerializeToString() + field(13, entry)
    known = TensorProto.FromString(tensor).external_data[0]
    assert (known.key, known.value) == ("location", "secret")
    content = field(7, field(5, tensor))
    assert external_files(content) == {"secret"}


def test_a_graph_in_two_parts_is_read_whole():
    part = helper.make_model(graph(tensors=[outside()])).SerializeToString()
    assert external_files(part + helper.make_model(graph()).SerializeToString()) == {SECRET}


def field_of_bytes(location: bytes) -> bytes:
    """Return a model with a weight in the file ``location``, which may be any bytes."""
    tensor = TensorProto(name="w", data_type=1, dims=[2], data_location=1).SerializeToString()
    return field(7, field(5, tensor + field(13, field(1, b"location") + field(2, location))))


def broken() -> list[bytes]:
    """Contents that are no protobuf, or name files in ways that onnxruntime reads otherwise.

    One has a tag whose bits above 32 protobuf drops: for onnxruntime it is a graph.
    """
    whole = PLACES["initializer"]().SerializeToString()
    part = helper.make_model(graph(tensors=[outside()])).graph.SerializeToString()
    aliased = b"\xba\x80\x80\x80\x10" + _length(len(part)) + part
    not_utf8 = [field_of_bytes(location) for location in (b"a\xffb", b"\xed\xa0\x80", b"\xc0\xaf")]
    address = field_of_bytes(b"*/_ORT_MEM_ADDR_/*")
    own_format = b"\x0a\x80\x01\x00ORTM" + bytes(127)  # a field of 128 bytes to protobuf
    return [whole[:-3], b"\xff" * 11, b"\x3b\x00", b"\x3a\xff\xff\xff\xff\x7f", aliased, *not_utf8, address, own_format]


def test_what_is_no_protobuf_or_too_deep_is_refused():
    for content in broken():
        with pytest.raises(GraphError):
            external_files(content)
    nested = b""
    for _ in range(60):  # a graph in an attribute in a node
        inner = b""
        for number in (6, 5, 1):
            size = len(nested if number == 6 else inner)
            inner = bytes([number << 3 | 2]) + _length(size) + (nested if number == 6 else inner)
        nested = inner
    with pytest.raises(GraphError, match="deep"):
        external_files(b"\x3a" + _length(len(nested)) + nested)


def _length(value: int) -> bytes:
    return bytes([value & 127 | 128, value >> 7]) if value > 127 else bytes([value])


def test_a_graph_without_files_has_none():
    assert (
        external_files(helper.make_model(graph(tensors=[numpy_helper.from_array(np.ones(3), "location")])).SerializeToString())
        == set()
    )
