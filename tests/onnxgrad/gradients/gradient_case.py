"""One operator, its attributes and inputs, and what torch computes for the same: what every test of a gradient rule is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx.numpy_helper import from_array
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from torch import nn

from edgefl.onnxgrad.autodiff import append_gradients, as_model, tape_of

Array = np.ndarray[Any, Any]
STEP = 1e-5


@dataclass(frozen=True)
class Case:
    """An operator in one of its forms.

    Attributes:
        kind: the operator.
        inputs: name → float64 array (its gradient is checked) or array of another type (a constant of the graph), in the node's order;
            None: the input is left out.
        torch: the same in torch, of the float64 tensors alone.
        attributes: the node's.
        batch: the inputs whose first axis is the batch, which is free in the graph; the case is tried with one sample too.
        outputs: how many the node has; all float ones count in the loss.
        constants: float inputs that are constants of the graph.
        reference: whether onnx's own evaluator computes the operator as the standard says; else onnxruntime's float32 is all.
        exact: whether the operator is smooth where it is tried, so that finite differences tell its slope.
        tolerance: how near onnx's evaluator comes to float64, relative to a tensor's largest entry.
    """

    kind: str
    inputs: Mapping[str, Any]
    torch: Callable[..., Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    batch: tuple[str, ...] = ("x",)
    outputs: int = 1
    constants: tuple[str, ...] = ()
    reference: bool = True
    exact: bool = True
    tolerance: float = 1e-8

    @property
    def name(self) -> str:
        """What the test is called."""
        texts = (f"{k}={v}".replace(" ", "") for k, v in self.attributes.items())
        shapes = ",".join("x".join(map(str, v.shape)) for v in self.inputs.values() if v is not None)
        return "-".join([self.kind, *texts, shapes])

    @property
    def by(self) -> list[str]:
        """The inputs whose gradients are checked."""
        floats = [name for name, value in self.inputs.items() if value is not None and value.dtype == np.float64]
        return [name for name in floats if name not in self.constants]

    def values(self, samples: int | None) -> dict[str, Array]:
        """Return what the graph reads, cut to so many samples."""
        return {n: v[:samples] if n in self.batch else v for n, v in self.inputs.items() if v is not None}

    def fed(self, samples: int | None) -> dict[str, Array]:
        """Return the graph's inputs without its constants."""
        return {n: v for n, v in self.values(samples).items() if n in self.by or n in self.batch}


def weights_of(shape: tuple[int, ...]) -> Array:
    """Return numbers of both signs, by which results are weighted in a loss."""
    return np.random.default_rng(3).standard_normal(shape)


def graph(case: Case, results: list[Array], real: int) -> onnx.ModelProto:
    """Return the loss Σ weights ∘ result over the case's results of floats; free is the batch."""
    kind = np.float64 if real == TensorProto.DOUBLE else np.float32
    names = [n if v is not None else "" for n, v in case.inputs.items()]
    outputs = [f"y{i}" for i in range(case.outputs)]
    nodes, inputs, constants, parts = [make_node(case.kind, names, outputs, name="tried", **case.attributes)], [], [], []
    for name, value in case.values(None).items():
        own = value.astype(kind) if value.dtype == np.float64 else value
        if name in case.fed(None):
            shape = ["n", *value.shape[1:]] if name in case.batch else value.shape
            inputs.append(make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(own.dtype), shape))
        else:
            constants.append(from_array(own, name))
    for i, result in enumerate(results):
        if result.dtype == np.float64:
            free = case.batch and result.ndim and result.shape[0] == case.values(None)[case.batch[0]].shape[0]
            inputs.append(make_tensor_value_info(f"k{i}", real, ["n", *result.shape[1:]] if free else result.shape))
            nodes += [make_node("Mul", [f"y{i}", f"k{i}"], [f"p{i}"]), make_node("ReduceSum", [f"p{i}"], [f"s{i}"], keepdims=0)]
            parts.append(f"s{i}")
    nodes.append(make_node("Sum", parts, ["loss"]))
    body = make_graph(nodes, "g", inputs, [make_tensor_value_info("loss", real, [])], constants)
    if "domain" not in case.attributes:
        return make_model(body, opset_imports=[make_opsetid("", 20)], ir_version=10)
    # As torch's exporter does for the operators of the domain edgefl: shape inference does not know them.
    for i, result in enumerate(results):
        free = case.batch and result.ndim and result.shape[0] == case.values(None)[case.batch[0]].shape[0]
        if result.dtype == np.float64:
            body.value_info.append(make_tensor_value_info(f"y{i}", real, ["n", *result.shape[1:]] if free else result.shape))
    return make_model(body, opset_imports=[make_opsetid("", 20), make_opsetid("edgefl", 1)], ir_version=10)


def with_gradients(case: Case, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with an output ``d.<input>`` for each gradient, checked."""
    tape = tape_of(model)
    found = append_gradients(tape, "loss", case.by)
    shapes = {value.name: value.type.tensor_type for value in model.graph.input}
    outputs = [model.graph.output[0]]
    for name in case.by:
        node = ("Identity", found[name]) if name in found else ("Sub", name, name)  # the loss does not depend on it
        tape.op(*node, out=f"d.{name}")
        dims = [d.dim_value or d.dim_param for d in shapes[name].shape.dim]
        outputs.append(make_tensor_value_info(f"d.{name}", shapes[name].elem_type, dims))
    result = as_model(tape, model.graph.input, outputs, "gradients")
    onnx.checker.check_model(result, full_check=True)
    return result


def of_torch(case: Case, samples: int | None) -> tuple[list[Array], dict[str, Array]]:
    """Return results and, of their weighted sum, loss and gradients, in float64."""
    leaves = [n for n, v in case.inputs.items() if v is not None and v.dtype == np.float64]
    tensors = {n: torch.tensor(v, requires_grad=n in case.by) for n, v in case.values(samples).items() if n in leaves}
    found = case.torch(*tensors.values())
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    loss = sum((r * torch.tensor(weights_of(tuple(r.shape)))).sum() for r in results if r.dtype == torch.float64)
    loss.backward()
    gradients = {f"d.{n}": t.grad.numpy() for n, t in tensors.items() if t.grad is not None}
    return [r.detach().numpy() for r in results], {"loss": loss.detach().numpy(), **gradients}


def check(case: Case) -> None:
    """Compare gradients with torch's in float64, with finite differences, and as onnxruntime computes them in float32."""
    results = of_torch(case, None)[0]
    check_model(case, *(graph(case, results, real) for real in (TensorProto.DOUBLE, TensorProto.FLOAT)))


def check_model(case: Case, double: onnx.ModelProto, single: onnx.ModelProto) -> None:
    """The same for graphs of the case in float64 and float32."""
    models = with_gradients(case, double) if case.reference else None, with_gradients(case, single)
    session = session_of(models[1])
    for samples in (None, 1) if case.batch else (None,):
        results, expected = of_torch(case, samples)
        weights = {f"k{i}": weights_of(r.shape) for i, r in enumerate(results) if r.dtype == np.float64}
        fed = case.fed(samples) | weights
        if models[0] is not None:
            compare(run(models[0], fed), expected, case.tolerance)
            if case.exact and samples is None:
                along_a_line(case, double, fed, expected)
        read = {value.name for value in session.get_inputs()}
        rounded = {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in fed.items() if n in read}
        values = session.run(None, rounded)
        compare(dict(zip((o.name for o in session.get_outputs()), values, strict=True)), expected, 2e-4)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return the graph in onnxruntime, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class ConvTranspose(OpRun):
    """The transposed convolution by torch, as the gradient of a convolution: onnx's own evaluator cannot do groups."""

    op_domain = ""

    def _run(
        self, x: Array, w: Array, b: Any = None, *, auto_pad: Any, dilations: Any, group: Any, kernel_shape: Any, output_padding: Any,
        output_shape: Any, pads: Any, strides: Any
    ) -> tuple[Array]:  # fmt: skip
        assert auto_pad in (None, "NOTSET"), "the case needs another evaluator"
        rank = w.ndim - 2
        steps, apart, behind = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
        given, spans = pads or [0] * 2 * rank, [(k - 1) * d + 1 for k, d in zip(w.shape[2:], apart or [], strict=True)]
        whole = [(n - 1) * s + k + o for n, s, k, o in zip(x.shape[2:], steps, spans, behind, strict=True)]
        zeros = torch.zeros(x.shape[0], w.shape[1] * (group or 1), *whole, dtype=torch.float64, requires_grad=True)
        options = (steps, 0, apart, group or 1)
        forward = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}[rank]
        (found,) = torch.autograd.grad(forward(zeros, torch.tensor(w), None, *options), zeros, torch.tensor(x))
        ends = [size - end for size, end in zip(whole, given[rank:], strict=True)]
        inside: tuple[Any, ...] = tuple(slice(begin, end) for begin, end in zip(given[:rank], ends, strict=True))
        cut = found[(..., *inside)]
        return ((cut if b is None else cut + torch.tensor(b).view(-1, *[1] * rank)).numpy(),)


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return onnx's evaluator, put right where it is wrong."""
    return ReferenceEvaluator(model, new_ops=[ConvTranspose])


def run(model: onnx.ModelProto, values: Mapping[str, Array]) -> dict[str, Array]:
    """Compute a graph in float64."""
    names = [value.name for value in model.graph.output]
    with np.errstate(all="ignore"):  # 0/0 that a Where then leaves out
        return dict(zip(names, evaluator(model).run(None, dict(values)), strict=True))


def compare(found: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float) -> None:
    """Compare with a tolerance relative to each tensor's largest entry."""
    assert set(found) == set(expected)
    for name, value in found.items():
        scale = max(1e-3, float(np.abs(expected[name]).max(initial=0)))
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=tolerance * scale, err_msg=name)


def along_a_line(case: Case, model: onnx.ModelProto, fed: Mapping[str, Array], gradients: Mapping[str, Array]) -> None:
    """Compare the slope of the loss along a random direction, by central differences, with that of the gradients."""
    rng = np.random.default_rng(5)
    directions = {name: rng.standard_normal(fed[name].shape) for name in case.by}
    own = evaluator(model)
    results: Any = [own.run(None, {**fed, **{n: fed[n] + s * d for n, d in directions.items()}}) for s in (STEP, -STEP)]
    ends = [loss for loss, *_ in results]
    expected = sum(float((gradients[f"d.{n}"] * d).sum()) for n, d in directions.items())
    assert abs((ends[0] - ends[1]) / (2 * STEP) - expected) < 1e-6 * max(1.0, abs(expected), float(abs(ends[0])))


def draw(*shape: int, seed: int = 0) -> Array:
    """Return numbers of both signs."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def positive(*shape: int, seed: int = 0) -> Array:
    """Return numbers between .5 and 2."""
    return np.random.default_rng((seed, *shape)).uniform(0.5, 2.0, shape)


def integers(*values: int) -> Array:
    """Return a vector of int64: axes, sizes, pads."""
    return np.array(values, np.int64)
