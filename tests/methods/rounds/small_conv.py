"""The network of small_conv_by_hand.py in torch, as an architecture of any width, and one client's steps of plain SGD."""

import numpy as np
import torch
import torch.nn.functional as F
from small_conv_by_hand import LABELS, data
from torch import nn

from edgefl.methods.personal import received
from edgefl.models.base import Architecture
from edgefl.records import Batch, Update


class SmallConv(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 2, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 2)
        self.fc = nn.Linear(4 * channels, LABELS)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc(x.flatten(1))


class SmallArchitecture(Architecture):
    """Four channels at width 1."""

    def build(self, width: float = 1.0) -> nn.Module:
        return SmallConv(int(4 * width))


ARCHITECTURE = SmallArchitecture("cnn-digits", (1, 4, 4), LABELS)


def state_of(method, tiers, tensors):
    """Return a state that holds ``tensors`` (NumPy), which must be just the names and shapes of the method's own."""
    state = method.init(ARCHITECTURE, tiers, np.random.default_rng(0))
    assert {n: tuple(t.shape) for n, t in state.tensors.items()} == {n: t.shape for n, t in tensors.items()}
    return state.replace({name: torch.from_numpy(tensor).float() for name, tensor in tensors.items()})


def trained(method, state, client, tier, start, samples, lr, draws=(None,), rng=None) -> Update:
    """Play a client: receive, one step of SGD for each of ``draws`` on all of its samples, upload."""
    method.check(ARCHITECTURE, state.tiers, 2)
    submodel = method.submodel(state, tier, rng or np.random.default_rng(0), client)
    module = method.network(ARCHITECTURE, tier).train()
    x, y = data(samples, start)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    received(method, module, submodel.tensors, {}, (x, y))
    optimizer = torch.optim.SGD(module.parameters(), lr=lr)
    for draw in draws:
        optimizer.zero_grad()
        method.local_loss(module, Batch(x, y, None, draw)).backward()
        optimizer.step()
    return Update(client, tier, method.upload(module), submodel.places, samples)


def assert_tensors(found, expected):
    """Compare a state with NumPy tensors, which float32 cannot match beyond some 1e-6."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_allclose(found[name].numpy(), tensor, rtol=2e-5, atol=2e-6, err_msg=name)
