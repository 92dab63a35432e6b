"""The README's examples, with its network and with one of the test's own; and what importing the package costs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.parser import parse_model
from torch import nn

import edgefl.onnxgrad as onnxgrad
from edgefl.onnxgrad.gradients import RULES
from edgefl.rng import generator, torch_seeded

README = Path(onnxgrad.__file__).with_name("README.md").read_text(encoding="utf-8")
EXAMPLE, RULE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def convolutional() -> nn.Module:
    """Another network for inputs of two numbers: with statistics that are measured, and with a frozen layer."""
    network = nn.Sequential(
        nn.Unflatten(1, (1, 2)), nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)
    )
    network[5].bias.requires_grad_(False)
    return network


@pytest.mark.parametrize("build", [None, convolutional], ids=["its own network", "a network of the test"])
def test_the_example_trains_and_counts(build):
    code = EXAMPLE
    if build is not None:
        code = re.sub(r"^network = .*$", "network = build()", code, flags=re.MULTILINE)
        code = code.replace("step.roles.trained[name]", "step.roles.tensors[name]")
        code = code.replace("network.named_parameters()", "network.state_dict().items() if name in step.roles.tensors")
    found = {"build": build}
    with torch_seeded(generator(0, "readme")):
        exec(code, found)
    losses, network, stepper = found["losses"], found["network"], found["stepper"]
    assert losses[-1] < losses[0]
    assert found["macs"] == (2 * 16 + 16 * 3 if build is None else 2 * 4 + 8 * 3)
    assert [value.name for value in (*found["graph"].graph.input, *found["graph"].graph.output)] == ["x", "y"]
    onnx.checker.check_model(found["graph"], full_check=True)
    if build is None:  # the same steps in torch
        expected, optimizer = network.train(), torch.optim.SGD(network.parameters(), 0.5)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(expected(found["x"]), found["y"]).backward()
            optimizer.step()
        for name, parameter in expected.named_parameters():
            np.testing.assert_allclose(stepper.tensors()[f"p.{name}"], parameter.detach().numpy(), atol=1e-4)


def test_a_rule_of_ones_own_differentiates():
    try:
        exec(RULE, {})
        text = '<ir_version: 9, opset_import: ["": 20]> g (float[3] x) => (float y)'
        model = parse_model(text + "{ z = Softsign (x)  y = ReduceSum <keepdims = 0> (z) }")
        graph = onnxgrad.differentiate(model, "y", ["x"])
    finally:
        RULES.pop("Softsign", None)
    x = torch.tensor([-2.0, 0.5, 3.0], requires_grad=True)
    nn.functional.softsign(x).sum().backward()
    found = onnx.reference.ReferenceEvaluator(graph).run(None, {"x": x.detach().numpy()})
    np.testing.assert_allclose(found[1], x.grad, rtol=1e-6)
    assert [value.name for value in graph.graph.output] == ["y", "x.gradient"]


def test_importing_the_package_imports_neither_torch_nor_onnxruntime():
    code = "import sys, edgefl.onnxgrad; sys.exit(bool({'torch', 'onnx', 'onnxruntime'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_is_there():
    assert all(hasattr(onnxgrad, name) for name in onnxgrad.__all__)
