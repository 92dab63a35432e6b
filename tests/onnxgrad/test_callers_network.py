"""What is exported stays the caller's network: its parameters, buffers, attributes and mode."""

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgefl import onnxgrad
from edgefl.errors import EdgeflError
from tests.shared_networks import SHARED, Late, Remembering, samples, tensors_of


class Raising(Late):
    """It reads a value, which no graph can."""

    def forward(self, x):
        self.last = super().forward(x)
        return self.last * 2 if self.last.sum().item() > 0 else self.last


class Counting(nn.Module):
    """It asks for the length of a batch, so that its Python code is interpreted."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.same = self.layer

    def forward(self, x):
        return self.same(torch.relu(self.layer(x))).reshape(len(x), 2, 4).sum(1)


def step_of(network, x, y):
    return onnxgrad.training_step(network, lambda net, x, y: F.cross_entropy(net(x), y), {"x": x, "y": y})


@pytest.mark.parametrize("build", [*SHARED, Late, Raising, Counting], ids=lambda build: build.__name__)
def test_an_export_leaves_the_network_as_it_was(build):
    network = build().eval()
    before, attributes = tensors_of(network), [set(vars(part)) for part in network.modules()]
    values = {name: tensor.detach().clone() for name, tensor in before.items()}
    x, y = samples(network, 4)
    if build is Raising:
        with pytest.raises(EdgeflError, match="depends on the values of its input"):
            step_of(network, x, y)
    else:
        step_of(network, x, y)
        onnxgrad.export(network, {"x": x})
    after = tensors_of(network)
    assert after.keys() == before.keys()
    assert all(after[name] is tensor and torch.equal(tensor, values[name]) for name, tensor in before.items())
    assert [set(vars(part)) for part in network.modules()] == attributes
    assert not network.training


def test_a_buffer_that_input_decides_is_refused():
    network = Remembering()
    x, y = samples(network, 4)
    with pytest.raises(EdgeflError, match="Remembering cannot be trained in ONNX: forward sets its buffer mean, which is None"):
        step_of(network, x, y)
    with pytest.raises(EdgeflError, match="Remembering cannot be exported to ONNX: forward sets its buffer mean, which is None"):
        onnxgrad.export(network.eval(), {"x": x})
    assert network.mean is None


@pytest.mark.parametrize("build", [*SHARED, Counting], ids=lambda build: build.__name__)
def test_a_graph_trains_a_shared_tensor_as_torch_does(build):
    network = build().train()
    graphs = step_of(network, *samples(network, 4))
    session = onnxruntime.InferenceSession(graphs.steps[0])
    values = {role: tensors_of(network)[name].detach().numpy() for name, role in graphs.roles.tensors.items()}
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for seed in range(3):
        x, y = samples(network, 5, seed)
        given = {**values, "x": x.numpy(), "y": y.numpy(), "lr": np.array(0.1, np.float32)}
        read = [value.name for value in session.get_inputs()]
        found = dict(
            zip(
                [value.name for value in session.get_outputs()],
                session.run(None, {name: given[name] for name in read}),
                strict=True,
            )
        )
        values |= {name.removesuffix(".out"): value for name, value in found.items() if name.endswith(".out")}
        optimizer.zero_grad()
        F.cross_entropy(network(x), y).backward()
        optimizer.step()
    for name, role in graphs.roles.tensors.items():
        np.testing.assert_allclose(values[role], tensors_of(network)[name].detach().numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
