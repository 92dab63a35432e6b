"""Graphs that a bundle must not hold: greedy, endless, foreign or malformed ones."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from small_bundle import model, value


def of(nodes, *initializers):
    """A graph of ``nodes`` from x (batch, 6) to logits (batch, 3), with the weight of the sound one."""
    sound = model()
    return model([*nodes], initializers=[*sound.graph.initializer, *initializers])


def number(name, value, dtype=np.int64):
    return numpy_helper.from_array(np.array(value, dtype), name)


FINISH = [
    helper.make_node("ReduceSum", ["much"], ["sum"], keepdims=0), helper.make_node("MatMul", ["x", "weight"], ["y"]),
    helper.make_node("Add", ["y", "sum"], ["logits"]),
]  # fmt: skip


def loop(trips, body, value_info):
    """Return a loop over ``body`` that carries ``much``."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), *body], "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("old", value_info)],
        [value("on", [], TensorProto.BOOL), value("new", value_info)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "yes", "first"], ["much"], body=graph)
    return of([node, *FINISH], number("trips", trips), number("yes", True, np.bool_), number("first", [1.0], np.float32))


GREEDY = {
    "constant": of([helper.make_node("ConstantOfShape", ["size"], ["much"]), *FINISH], number("size", [1 << 35])),
    "expand": of(
        [
            helper.make_node("ReduceSum", ["x"], ["one"], keepdims=0),
            helper.make_node("Expand", ["one", "size"], ["much"]),
            *FINISH,
        ],
        number("size", [1 << 33, 4]),
    ),
    "loop": loop(60, [helper.make_node("Concat", ["old", "old"], ["new"], axis=0)], [None]),
}
ENDLESS = loop(1 << 60, [helper.make_node("Add", ["old", "old"], ["new"])], [1])


def nested(node):
    """``node`` in a branch of an If in a branch of an If."""
    graph = helper.make_graph([node], "inner", [], [value("out", None)])
    for name in ("middle", "outer"):
        branch = helper.make_node("If", ["yes"], ["out"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([branch], name, [], [value("out", None)])
    inner = graph.node[0]
    inner.output[0] = "logits"
    return of([inner], number("yes", True, np.bool_))


def with_function():
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    own = helper.make_function("", "Relu", ["a", "b"], ["c"], body, [helper.make_opsetid("", 23)])
    return model(functions=[own])


def declared(*dims, raw=None, floats=None, kind=TensorProto.FLOAT):
    tensor = TensorProto(name="weight", dims=dims, data_type=kind, float_data=floats or [])
    if raw is not None:
        tensor.raw_data = raw
    return model(initializers=[tensor])


def with_training():
    result = model()
    result.training_info.add().algorithm.node.append(helper.make_node("RandomNormal", [], ["r"], shape=[1]))
    return result


def sparse():
    result = model()
    values, places = numpy_helper.from_array(np.ones(1, np.float32), "weight"), number("places", [0])
    result.graph.ClearField("initializer")
    result.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [6, 3]))
    return result


def default_input():
    result = model()
    result.graph.initializer.append(numpy_helper.from_array(np.ones((1, 6), np.float32), "x"))
    return result


def misnamed():
    return model().SerializeToString().replace(b"MatMul", b"Mat\xfful")


def spoken():
    return model().SerializeToString().replace(b"MatMul", b"\x1b[2J\nX")


GRAPHS = {
    "random in a branch": (nested(helper.make_node("RandomNormal", [], ["out"], shape=[1, 3])), r"operators that a .* hold: RandomNormal"),
    "foreign in a branch": (nested(helper.make_node("Do", [], ["out"], domain="com.x")), "operators outside ai.onnx: com.x"),
    "sequence": (of([helper.make_node("SequenceConstruct", ["x"], ["logits"])]), "operators that a bundle may not hold: SequenceConstruct"),
    "picture": (of([helper.make_node("ImageDecoder", ["x"], ["logits"])]), "operators that a bundle may not hold: ImageDecoder"),
    "function": (with_function(), "operators outside ai.onnx: a function of its own"),
    "training": (with_training(), "holds functions or training information"),
    "huge": (declared(1 << 40, 3, raw=b"12345678"), r"not a valid ONNX model \(tensor 'weight' holds 2 of 3298534883328 values\)"),
    "huge floats": (declared(6, 1 << 60, floats=[1.0]), r"not a valid ONNX model \(tensor 'weight' holds 1 of"),
    "negative": (declared(-6, -3, floats=[1.0] * 18), "not a valid ONNX model"),
    "words": (declared(6, 3, kind=TensorProto.STRING), "tensor 'weight' of type STRING, expected numbers"),
    "no type": (declared(6, 3, kind=999), "tensor 'weight' of type unknown, expected numbers"),
    "sparse": (sparse(), "holds a sparse tensor"),
    "input with a value": (default_input(), "input x has a value inside the file"),
    "no text": (misnamed(), r"not a valid ONNX model \(a name that is not UTF-8\)"),
    "terminal codes": (spoken(), r"operators that a bundle may not hold: \\x1b\[2J\\nX$"),
}  # fmt: skip
