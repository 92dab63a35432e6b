"""Every rule of an ONNX operator computes what onnxruntime computes, trains, and runs on fake tensors."""

from collections import defaultdict

import onnx
import pytest
import rule_cases_layers
import rule_cases_maps
import rule_cases_places
import rule_cases_values
import torch
from graph_case import compare, computed, fake

from edgefl.onnxgrad.rules import ATTRIBUTES, NEWEST_OPSET, RULES
from edgefl.onnxgrad.rules.common import Operator
from edgefl.onnxgrad.to_torch import module_of

CASES = {**rule_cases_layers.CASES, **rule_cases_maps.CASES, **rule_cases_values.CASES, **rule_cases_places.CASES}


@pytest.mark.parametrize("case", CASES)
def test_a_rule_computes_what_onnxruntime_computes_also_on_fake_tensors(case):
    model, inputs = CASES[case]()
    module = compare(model, inputs)
    expected = [array.shape for array in computed(model, inputs)]
    assert fake(module, inputs) == expected


def test_every_rule_has_a_case():
    assert set(RULES) == {node.op_type for make in CASES.values() for node in make()[0].graph.node}


def test_every_attribute_that_a_rule_reads_is_declared(monkeypatch):
    read, get = defaultdict(set), Operator.get
    monkeypatch.setattr(Operator, "get", lambda node, name, default=None: (read[node.op].add(name), get(node, name, default))[1])
    for make in CASES.values():
        model, inputs = make()
        module_of(model)[0](*(torch.from_numpy(array) for array in inputs.values()))
    defined = {op: {"axis", "axes", *onnx.defs.get_schema(op, NEWEST_OPSET).attributes} for op in read}
    missing = {op: names & defined[op] - ATTRIBUTES.get(op, frozenset()) for op, names in read.items()}
    assert {op: names for op, names in missing.items() if names} == {}
    assert set(ATTRIBUTES) - set(read) == {"CastLike", "Dropout"}  # whose attributes change nothing here


WEIGHTED = ["conv1", "conv2 grouped and dilated", "conv3", "transposed2", "gemm", "matmul", "batch norm", "group norm by channel",
            "layer norm",
            "rms norm", "instance norm", "prelu", "gather rows", "lstm both ways", "gru", "gru late reset", "rnn"]  # fmt: skip


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("case", WEIGHTED)
def test_every_weight_is_a_parameter_of_its_layer_and_gets_a_gradient(case, training):
    model, inputs = CASES[case]()
    module, _ = module_of(model)
    (layer,) = module.children()
    statistics = {"m", "v"} if case == "batch norm" else set()
    stored = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer if tensor.name not in statistics}
    assert [list(parameter.shape) for parameter in layer.parameters()] == list(stored.values())
    module.train(training)
    found = module(*(torch.from_numpy(array) for array in inputs.values()))
    found = found if isinstance(found, tuple) else (found,)
    sum((tensor * torch.arange(tensor.numel()).reshape(tensor.shape)).sum() for tensor in found).backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in layer.parameters())


def test_training_normalises_by_the_batch_and_moves_the_statistics():
    model, inputs = CASES["batch norm"]()
    module, _ = module_of(model)
    x = torch.from_numpy(inputs["x"])
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train()
    (layer,) = module.children()
    y = module(x)
    expected = torch.nn.functional.batch_norm(x, None, None, layer.scale, layer.B, True, eps=1e-3)
    assert torch.allclose(y, expected, atol=1e-5)
    mean = dict(module.named_buffers())["BatchNormalization.input_mean"]
    assert torch.allclose(mean, 0.9 * before["BatchNormalization.input_mean"] + 0.1 * x.mean((0, 2, 3)), atol=1e-6)
