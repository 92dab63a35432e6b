"""Plays rounds of a method as clients and server do, on the network that conv_net_by_hand computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from conv_net_by_hand import CLIENTS, RATE, samples
from torch import nn

from edgefl.methods.base import Method
from edgefl.methods.capabilities import advanced
from edgefl.methods.personal import kept as keep
from edgefl.methods.personal import received
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Batch, Tier, Update


class ConvNet(nn.Module):
    """Two 3×3 convolutions and a classifier."""

    def __init__(self, width: float) -> None:
        super().__init__()
        a, b = int(8 * width), int(4 * width)
        self.conv1, self.conv2, self.fc = nn.Conv2d(1, a, 3), nn.Conv2d(a, b, 3), nn.Linear(b, 3)

    def forward(self, x):
        return self.fc(self.conv2(self.conv1(x).relu()).relu().flatten(1))


@dataclass(frozen=True)
class ThreeLayers(Architecture):
    """The network as methods see it."""

    def build(self, width: float = 1.0) -> nn.Module:
        return ConvNet(width)


ARCHITECTURE = ThreeLayers("mlp", (1, 5, 5), 3)


def tensors(arrays):
    """Return float32 tensors of NumPy arrays."""
    return {name: torch.from_numpy(np.array(value)).float() for name, value in arrays.items()}


def first_state(method: Method, tier: Tier, arrays) -> GlobalState:
    """Return the method's first state with the values of ``arrays``, which must have the same names and shapes."""
    state = method.init(ARCHITECTURE, (tier,), np.random.default_rng(0))
    values = tensors(arrays)
    assert {n: t.shape for n, t in values.items()} == {n: t.shape for n, t in state.tensors.items()}
    return state.replace({name: values[name] for name in state.tensors})


def play(method: Method, state: GlobalState, tier: Tier, kept=None, rounds=1):
    """Return method, state and client → what it keeps, after ``rounds`` rounds of one step per client on all of its samples."""
    kept = dict(kept or {})
    for round_ in range(1, rounds + 1):
        method, state = advanced(method, state, round_, np.random.default_rng(round_))
        updates = []
        for client, count in CLIENTS:
            images, labels = samples(client, count)
            x, y = torch.from_numpy(images).float(), torch.from_numpy(labels)
            sent = method.submodel(state, tier, np.random.default_rng(0), client)
            module = sent.build().train()
            received(method, module, sent.tensors, kept.get(client, {}), (x, y))
            optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
            method.local_loss(module, Batch(x, y, torch.ones(3, dtype=torch.bool))).backward()
            optimizer.step()
            kept[client] = keep(method, module)
            updates.append(Update(client, tier, method.upload(module), sent.places, count))
        state = method.aggregate(state, updates)
    return method, state, kept


def assert_same(got, arrays, atol=2e-6):
    """Check names, order-free, and values."""
    assert set(got) == set(arrays)
    for name, value in arrays.items():
        np.testing.assert_allclose(got[name].detach().numpy(), value, rtol=2e-5, atol=atol, err_msg=name)
