"""Exported graphs compute what torch computes, for any batch, and carry nothing but the graph."""

import functools
import logging
import os
import re
import subprocess
import sys

import exported
import numpy as np
import onnx
import onnx_ir
import onnxruntime as ort
import pytest
import torch
from exported import forward_graph
from onnxscript.rewriter import _DEFAULT_REWRITE_RULES
from torch import nn

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.exporter import export
from edgefl.onnxgrad.graphs import OPSET, graphs_in


class Residual(nn.Module):
    """A k×1 and a 1×k convolution with a stride, and a shortcut around them."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Conv2d(4, 3, (3, 1), (2, 1), (1, 0), bias=False)
        self.v = nn.Conv2d(3, 8, (1, 3), (1, 2), (0, 1))
        self.shortcut = nn.Conv2d(4, 8, 1, 2, bias=False)

    def forward(self, x):
        return torch.relu(self.v(self.u(x)) + self.shortcut(x))


class Affine(nn.Module):
    """Batch normalisation with fixed statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        self.mean = nn.Buffer(torch.from_numpy(rng.standard_normal(channels)).float())
        self.variance = nn.Buffer(torch.from_numpy(rng.uniform(0.5, 2, channels)).float())

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.variance)


def network(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "mlp":
        module = nn.Sequential(nn.Flatten(), nn.Linear(12, 4, bias=False), nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 5))
        shape: tuple[int, ...] = (12,)
    else:
        norm = nn.GroupNorm(2, 4) if kind == "group" else Affine(4)
        pool = nn.MaxPool2d(2) if kind == "group" else nn.AvgPool2d(2)
        head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))
        module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), norm, nn.ReLU(), pool, Residual(), *head)
        shape = (2, 8, 8)
    return fill(module, 3), shape


@functools.cache
def graph_of(kind: str) -> bytes:
    return forward_graph(*network(kind))


def fill(module: nn.Module, seed: int) -> nn.Module:
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.from_numpy(0.4 * rng.standard_normal(tuple(parameter.shape))).float())
    return module.eval()


@pytest.mark.parametrize("kind", ["group", "static", "mlp"])
def test_the_graph_computes_what_torch_computes_for_any_batch(kind):
    module, shape = network(kind)
    session = ort.InferenceSession(graph_of(kind))
    rng = np.random.default_rng(11)
    for batch in (1, 3, 32):
        x = rng.standard_normal((batch, *shape)).astype(np.float32)
        with torch.no_grad():
            expected = module(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(session.run(["logits"], {"x": x})[0], expected, atol=1e-5)


def test_names_shapes_and_opset_are_those_of_the_bundle():
    model = onnx.load_model_from_string(graph_of("mlp"))
    (x,), (logits,) = model.graph.input, model.graph.output
    shown = [(v.name, [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]) for v in (x, logits)]
    assert shown == [("x", ["batch", 12]), ("logits", ["batch", 5])]
    assert [(o.domain, o.version) for o in model.opset_import] == [("", OPSET)]
    assert not model.functions


def test_weights_are_in_the_file_and_stay_factored():
    model = onnx.load_model_from_string(graph_of("mlp"))
    shapes = {i.name: tuple(i.dims) for i in model.graph.initializer}
    assert shapes["1.weight"] == (4, 12)
    assert shapes["2.weight"] == (9, 4)
    assert not any(i.data_location == onnx.TensorProto.EXTERNAL for i in model.graph.initializer)


def test_nothing_of_this_computer_is_in_the_file():
    graph = graph_of("group")
    assert not re.search(rb"site-packages|test_export|Residual|File \"|pkg\.|stack_trace", graph)
    model = onnx.load_model_from_string(graph)
    for record in (model, model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        assert not record.doc_string
        assert not record.metadata_props


def test_same_module_same_bytes_and_other_weights_other_bytes():
    module, shape = network("mlp")
    assert forward_graph(module, shape) == graph_of("mlp")
    assert forward_graph(fill(module, 4), shape) != graph_of("mlp")


QUIET = """
import torch
from onnxscript.rewriter import _DEFAULT_REWRITE_RULES
from torch import nn
from edgefl.errors import EdgeflError
from exported import forward_graph
class Branches(nn.Module):
    def forward(self, x):
        return x.flatten(1) if x.sum() > 0 else -x.flatten(1)
for module in (nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), Branches(), nn.Sequential(nn.Flatten(), nn.Linear(99, 3))):
    try:
        forward_graph(module.eval(), (1, 4, 4))
    except EdgeflError:
        pass
"""


def test_exporting_prints_logs_and_warns_nothing_even_when_it_fails():
    beside = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [exported.__file__.rpartition(os.sep)[0], os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run([sys.executable, "-W", "default", "-c", QUIET], capture_output=True, text=True, check=True, env=beside)
    assert (done.stdout, done.stderr) == ("", "")


def test_exporting_leaves_the_module_and_logging_as_they_were():
    module, shape = network("mlp")
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    disabled = logging.root.manager.disable
    forward_graph(module, shape)
    with pytest.raises(EdgeflError):
        forward_graph(Broken().eval(), (1, 4, 4))
    assert logging.root.manager.disable == disabled
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(99, 3)

    def forward(self, x):
        return self.layer(x.flatten(1))


class Applied(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: torch.special.zeta(x.flatten(1), 2.0),
            r"Applied cannot be exported to ONNX: \w+\.zeta\.default has no ONNX form",
        ),
        (lambda x: x.reshape(2, -1), r"its output is \(2, .*\), expected \(batch, classes\)"),
        (lambda x: (x.flatten(1), x.flatten(1) * 2), r"expected x \('batch', 1, 4, 4\) and logits, of float32"),
        (lambda x: x.flatten(1).double(), "expected x .* and logits, of float32"),
    ],
    ids=["operation", "batch", "outputs", "type"],
)
def test_what_a_bundle_cannot_hold_is_refused_by_name(function, message):
    with pytest.raises(EdgeflError, match=message):
        forward_graph(Applied(function).eval(), (1, 4, 4))


def test_a_wrong_input_shape_says_what_does_not_fit():
    with pytest.raises(EdgeflError, match=r"Broken cannot be exported to ONNX: .*16.*99"):
        forward_graph(Broken().eval(), (1, 4, 4))


def test_training_mode_is_refused_even_in_a_part():
    module, shape = network("mlp")
    module[1].train()
    with pytest.raises(EdgeflError, match=r"Sequential: Linear is in training mode; .* call eval\(\) first"):
        forward_graph(module, shape)


def test_graphs_nested_in_nodes_are_found():
    leaf = onnx.helper.make_graph([], "leaf", [], [])
    branch = onnx.helper.make_graph(
        [onnx.helper.make_node("If", ["c"], [], then_branch=leaf, else_branch=leaf)], "branch", [], []
    )
    top = onnx.helper.make_graph([onnx.helper.make_node("Loop", ["n", "c"], [], body=branch)], "top", [], [])
    assert [graph.name for graph in graphs_in(top)] == ["top", "branch", "leaf", "leaf"]


class Normalised(nn.Module):
    """Rows of length 1; rows of zeros stay zeros."""

    def forward(self, x):
        return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt() * (1 + 1e-6)


def test_constants_close_to_zero_and_one_are_not_dropped():
    graph = export(Normalised().eval(), {"x": torch.zeros(2, 3)})
    operators = [node.op_type for node in graph.graph.node]
    assert operators.count("Add") == 1
    assert operators[-1] == "Mul"
    x = np.array([[0, 0, 0], [3, 0, -4], [1e-7, 0, 0]], np.float32)
    found = ort.InferenceSession(graph.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, Normalised()(torch.from_numpy(x)), rtol=1e-6, atol=0)


def test_rules_of_the_optimizer_are_tried_at_nodes_of_their_own_operator_only():
    export(nn.Linear(2, 3).eval(), {"x": torch.zeros(2, 2)})
    other = onnx_ir.node("AnotherOperator", inputs=[])
    named = [rule for rule in _DEFAULT_REWRITE_RULES if isinstance(rule._target_pattern.output_nodes[0].op_identifier(), tuple)]
    assert len(named) > 20
    assert not any(
        rule._matcher.match(None, None, other) for rule in named
    )  # without a graph, anything more than the name raises


def test_an_operator_that_is_registered_after_an_export_is_decomposed():
    """Torch lists the operators that it may decompose once, until one is registered."""
    export(nn.Linear(3, 2).eval(), {"x": torch.zeros(2, 3)})
    with torch.library._scoped_library("edgefl_test", "DEF") as library:
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: 3 * x, "CompositeImplicitAutograd")

        class Thrice(nn.Module):
            def forward(self, x):
                return torch.ops.edgefl_test.thrice(x)

        graph = export(Thrice().eval(), {"x": torch.zeros(2, 3)}).graph
        assert [node.op_type for node in graph.node] == ["Mul"]
    export(nn.Linear(3, 2).eval(), {"x": torch.zeros(2, 3)})
