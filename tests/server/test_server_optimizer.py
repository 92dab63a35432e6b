"""Server optimizers against NumPy (Reddi et al. 2021, Algorithm 2; Hsu et al. 2019), three rounds with mixed signs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgefl.client.stages.coded import PLAIN
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.server.chain import Chain
from edgefl.server.exchange import Exchange, ExchangeRules
from edgefl.server.optimizer import optimizer_named
from edgefl.server.stages.optimizer import Optimized
from edgefl.server.state import ServerState

ROUNDS = [np.array([0.5, -1.0, 0.0]), np.array([-2.0, 0.25, 1.0]), np.array([0.1, 0.1, -0.3])]


def by_hand(name, lr, beta1=0.9, beta2=0.99, tau=1e-3):
    w, m, v = np.array([1.0, -1.0, 0.5]), np.zeros(3), np.zeros(3)
    for delta in ROUNDS:
        if name == "avg":
            w = w + lr * delta
        elif name == "avgm":
            m = beta1 * m + delta
            w = w + lr * m
        else:
            m = beta1 * m + (1 - beta1) * delta
            square = delta * delta
            v = beta2 * v + (1 - beta2) * square if name == "adam" else v - (1 - beta2) * square * np.sign(v - square)
            w = w + lr * m / (np.sqrt(v) + tau)
    return w


@pytest.mark.parametrize(("name", "lr"), [("avg", 1.0), ("avg", 0.5), ("avgm", 0.7), ("adam", 0.01), ("yogi", 0.02)])
def test_three_rounds(name, lr):
    optimizer, tensors, slots = optimizer_named(name, lr), {"w": torch.tensor([1.0, -1.0, 0.5])}, {}
    for delta in ROUNDS:
        aggregated = {"w": tensors["w"] + torch.from_numpy(delta).float()}
        tensors, slots = optimizer.step(tensors, aggregated, slots)
    np.testing.assert_allclose(tensors["w"].numpy(), by_hand(name, lr), rtol=1e-4, atol=1e-5)


def test_plain_averaging_gives_the_aggregate_itself_to_the_bit():
    aggregated = {"w": torch.rand(5)}
    tensors, slots = optimizer_named("avg").step({"w": torch.rand(5)}, aggregated, {})
    assert tensors["w"] is aggregated["w"]
    assert not slots


def test_the_memory_of_single_clients_is_no_weight():
    tier = Tier(1.0)
    before = GlobalState(Architecture("mlp", (4,), 2), (tier,), {"w": torch.zeros(2)}, clients={3: {"u": torch.zeros(2)}})
    remembered = {client: {"u": torch.ones(2)} for client in (3, 4)}

    class Remembering(FedAvg):
        def aggregate(self, state, updates):
            return state.replace({"w": torch.ones(2)}, clients=remembered)

    rules = ExchangeRules(0, Chain.of((PLAIN, Optimized(optimizer_named("adam")))))
    exchange = Exchange(Remembering(MethodConfig()), ServerState(before), rules, 5)
    after = exchange.aggregated(iter([Update(3, tier, {}, {}, 1)]))
    assert after.model.clients is remembered
    assert after.memory.keys() == {"optimizer:m/w", "optimizer:v/w"}
    assert not torch.equal(after.model.tensors["w"], torch.ones(2))
