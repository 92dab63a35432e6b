"""A second autodiff of ONNX graphs: gradients by onnxsim's ``graph_grad`` and by edgefl, both computed by onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, parser, shape_inference
from onnxsim import graph_grad, qat_graph

from edgefl.onnxgrad import differentiate
from edgefl.onnxgrad.session import computed, opened, options_for
from edgefl.rng import generator
from judges.verdict import EQUAL, Case, Judge, Verdict, reference

HEAD = '<ir_version: 9, opset_import: ["": 17]> '
GRAPHS = {
    "dense": "(float[4,6] x, float[6,5] w, float[5] b, float[5,3] v) => (float y) "
    "{ a = MatMul(x,w) c = Add(a,b) d = Tanh(c) e = MatMul(d,v) f = Mul(e,e) y = ReduceMean<keepdims=0>(f) }",
    "convolution and pooling": "(float[2,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float y) "
    "{ a = Conv<pads=[1,1,1,1]>(x,w,b) r = Relu(a) p = MaxPool<kernel_shape=[2,2],strides=[2,2]>(r) "
    "q = Mul(p,p) y = ReduceSum<keepdims=0>(q) }",
    "grouped convolution": "(float[2,4,9,9] x, float[6,2,3,3] w) => (float y) "
    "{ a = Conv<strides=[2,2],group=2,dilations=[2,2],pads=[2,1,2,1]>(x,w) s = Sigmoid(a) y = ReduceSum<keepdims=0>(s) }",
    "Gemm and Softmax": "(float[6,4] x, float[5,6] w, float[5] b) => (float y) "
    "{ a = Gemm<transA=1,transB=1,alpha=0.5,beta=2.0>(x,w,b) s = Softmax<axis=-1>(a) q = Mul(s,s) y = ReduceSum<keepdims=0>(q) }",
    "LayerNormalization": "(float[3,4,6] x, float[6] w, float[6] b) => (float y) "
    "{ a = LayerNormalization<axis=-1,epsilon=0.001>(x,w,b) t = Tanh(a) q = Mul(t,a) y = ReduceSum<keepdims=0>(q) }",
    "InstanceNormalization": "(float[3,4,6,5] x, float[4] w, float[4] b) => (float y) "
    "{ a = InstanceNormalization<epsilon=0.001>(x,w,b) t = Tanh(a) q = Mul(t,a) y = ReduceSum<keepdims=0>(q) }",
    "attention": "(float[2,4,6] x, float[6,6] wq, float[6,6] wk, float[6,6] wv) => (float y) "
    "{ q = MatMul(x,wq) k = MatMul(x,wk) v = MatMul(x,wv) t = Transpose<perm=[0,2,1]>(k) s = MatMul(q,t) p = Softmax<axis=-1>(s) "
    "o = MatMul(p,v) r = Add(o,x) z = Mul(r,r) y = ReduceMean<keepdims=0>(z) }",
    "broadcasts": "(float[2,3,4] x, float[1,3,1] w, float[4] b) => (float y) "
    "{ a = Mul(x,w) c = Add(a,b) d = Add(c,a) e = Sub(d,x) f = Neg(e) h = Mul(f,c) y = ReduceMean<keepdims=0>(h) }",
}


def _run(model: onnx.ModelProto, names: list[str], feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = computed(opened(model.SerializeToString(), options_for(1)), feed)
    return [found[name] for name in names]


def _by_onnxsim(model: onnx.ModelProto, inputs: list[str]) -> onnx.ModelProto:
    """Return the model with one more output for each input: ``NAME.second``."""
    inferred = shape_inference.infer_shapes(model, data_prop=True).graph
    values = (*inferred.input, *inferred.output, *inferred.value_info)
    shapes: dict[str, list[int]] = {v.name: [dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in values} | {
        "seed_": []
    }
    builder: Any = qat_graph.GraphBuilder("t_")
    found = graph_grad.build_backward(builder, list(model.graph.node), shapes, {"y": "seed_"}, inputs)
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    whole.graph.node.extend(builder.nodes)
    whole.functions.extend(builder.functions)
    whole.opset_import.extend(helper.make_opsetid(domain, 1) for domain in {f.domain for f in builder.functions})
    whole.graph.initializer.extend([onnx.numpy_helper.from_array(np.array(1.0, np.float32), "seed_"), *builder.initializer])
    for name in inputs:
        whole.graph.node.append(helper.make_node("Identity", [found[name]], [f"{name}.second"]))
        whole.graph.output.append(helper.make_tensor_value_info(f"{name}.second", TensorProto.FLOAT, shapes[name]))
    return whole


def _judged(subject: str) -> Verdict:
    model = parser.parse_model(f"{HEAD}g {GRAPHS[subject]}")
    inputs = [value.name for value in model.graph.input]
    rng = generator(0, subject)
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in model.graph.input}
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    with reference("onnxsim"):
        expected = _run(_by_onnxsim(model, inputs), [f"{name}.second" for name in inputs], feed)
    newer = onnx.version_converter.convert_version(model, 20)
    found = _run(differentiate(newer, "y", inputs), [f"{name}.gradient" for name in inputs], feed)
    for name, ours, theirs in zip(inputs, found, expected, strict=True):
        off, largest = float(np.abs(ours - theirs).max()), float(np.abs(theirs).max())
        if not off <= 1e-4 * largest + 1e-6:
            return Verdict("wrong", f"the gradient of {name} differs by {off:.2g}, its largest value is {largest:.2g}")
    return EQUAL


def cases(subject: str) -> Iterator[Case]:
    """Return the only case of a graph."""
    yield Case("gradients", partial(_judged, subject))


JUDGE = Judge(
    "A second autodiff",
    "Gradients of eight ONNX graphs by `graph_grad` of the package `onnxsim` and by `onnxgrad.differentiate`, both computed "
    "by onnxruntime.",
    ("onnxsim", "onnx"),
    lambda: list(GRAPHS),
    cases,
    every=3,
)
