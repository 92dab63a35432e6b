"""Server optimizers against NumPy (Reddi et al. 2021, Algorithm 2; Hsu et al. 2019), three rounds with mixed signs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from edgefl.client.stages.coded import PLAIN
from edgefl.config import RunConfig
from edgefl.errors import ConfigError
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.options import MethodConfig
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.run.prepare import prepare
from edgefl.server.chain import Chain
from edgefl.server.exchange import Exchange, ExchangeRules
from edgefl.server.optimizer import optimizer_named
from edgefl.server.stages import Optimized
from edgefl.server.state import ServerState

ROUNDS = [np.array([0.5, -1.0, 0.0]), np.array([-2.0, 0.25, 1.0]), np.array([0.1, 0.1, -0.3])]


def by_hand(spec, lr, size=1.0, beta1=0.9, beta2=0.99, tau=1e-3):
    """Algorithm 2 begins with v of at least τ²; Flower's strategies begin with 0."""
    name = spec.partition("(")[0]
    w, m, v = np.array([1.0, -1.0, 0.5]), np.zeros(3), np.full(3, 0.0 if "start=0" in spec else tau * tau)
    for delta in (size * change for change in ROUNDS):
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


@pytest.mark.parametrize(
    ("spec", "lr"),
    [("avg", 1.0), ("avg", 0.5), ("avgm", 0.7), ("adam", 0.01), ("yogi", 0.02), ("adam(start=0)", 0.01), ("yogi(start=0)", 0.02)],
)
@pytest.mark.parametrize("size", [1.0, 0.01])
def test_three_rounds(spec, lr, size):
    optimizer, tensors, slots = optimizer_named(spec, lr), {"w": torch.tensor([1.0, -1.0, 0.5])}, {}
    for delta in ROUNDS:
        aggregated = {"w": tensors["w"] + size * torch.from_numpy(delta).float()}
        tensors, slots = optimizer.step(tensors, aggregated, slots)
    np.testing.assert_allclose(tensors["w"].numpy(), by_hand(spec, lr, size), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "yogi"])
def test_the_first_v_decides_the_first_steps_where_changes_are_small(name):
    """Changes of about .01: after three rounds, the steps differ by a tenth and more from those that begin with 0."""
    start = np.array([1.0, -1.0, 0.5])
    paper, flower = (by_hand(spec, 0.01, 0.01) - start for spec in (name, f"{name}(start=0)"))
    assert np.abs(paper / flower - 1).max() > 0.1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("adam(first=0)", "server_optimizer: adam: 'first' is no option; known: beta1, beta2, tau, start"),
        ("adam(start=-1)", "server_optimizer: adam: start: expected a finite number of at least 0, got -1"),
        ("yogi(tau='x')", "server_optimizer: yogi: tau: expected a finite number of at least 0, got 'x'"),
        ("avg(tau=1)", "server_optimizer: avg: 'tau' is no option; known: none"),
        ("adam(start", r"server_optimizer: expected NAME or NAME(option=value, …), such as adam(start=0), got 'adam(start'"),
        ("sgd(x=1)", "server_optimizer: unknown server optimizer 'sgd'; known: adam, avg, avgm, yogi"),
    ],
)
def test_wrong_options_are_named(spec, message):
    with pytest.raises(ConfigError) as error:
        RunConfig.of({"server_optimizer": spec})
    assert message in str(error.value)


def test_a_run_takes_the_options_of_its_optimizer():
    run = prepare(RunConfig.of({"server_optimizer": "yogi(start=0, tau=0.01)", "method": "fedavg", "rounds": 1}))
    (optimizer,) = (stage.optimizer for stage in run.rules.chain.stages if isinstance(stage, Optimized))
    assert (optimizer.start, optimizer.tau, optimizer.lr) == (0, 0.01, 0.01)


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
