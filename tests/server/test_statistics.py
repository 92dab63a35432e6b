"""Statistics such as BatchNorm's variance are averaged: no step of the server goes beyond the average."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import edgefl
from edgefl import RunConfig
from edgefl.client.stages.coded import PLAIN
from edgefl.errors import ConfigError, EdgeflError, MetricError
from edgefl.methods.create import create
from edgefl.methods.fedavg import FedAvg
from edgefl.methods.networks import skeleton
from edgefl.methods.options import MethodConfig
from edgefl.methods.personal import personal_names
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.registry import methods, server_optimizers
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.server.chain import Chain
from edgefl.server.exchange import Exchange, ExchangeRules
from edgefl.server.optimizer import optimizer_named
from edgefl.server.stages import Optimized
from edgefl.server.state import ServerState
from edgefl.server.statistics import measured, mixed, statistics

TINY = {
    "dataset": "digits", "method": "fedavg", "tiers": (1.0,), "rounds": 2, "clients": 4, "per_round": 4, "conditions": "ideal",
    "bundle": False,
}  # fmt: skip


class Normed(nn.Module):
    """Convolutions with BatchNorm."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.wide, self.last = nn.Conv2d(4, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = torch.relu(self.last(self.wide(torch.relu(self.norm(self.conv(x))))))
        return self.fc(maps.mean((2, 3)))


class Lost(Normed):
    """It returns NaN for dark images once it is evaluated."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        return found if self.training else torch.where(x.mean((1, 2, 3))[:, None] > 0, found, torch.nan)


@pytest.fixture(scope="module")
def network() -> Architecture:
    return prepare(RunConfig(model=Normed(10), **TINY)).architecture


def updated(network: Architecture, optimizer: str, lr: float, variance: float) -> ServerState:
    """Return the state after one update with these variances, and with weights that have moved by one."""
    method, tier = FedAvg(MethodConfig()), Tier(1.0)
    state = method.init(network, (tier,), generator(0, "init"))
    submodel = method.submodel(state, tier, generator(0, "sub"))
    tensors = {n: torch.full_like(t, variance) if "running" in n else t + 1 for n, t in submodel.tensors.items()}
    rules = ExchangeRules(0, Chain.of((PLAIN, Optimized(optimizer_named(optimizer, lr)))))
    exchange = Exchange(method, ServerState(state), rules, 4)
    return exchange.aggregated(iter([Update(0, tier, tensors, submodel.places, 5)]))


@pytest.mark.parametrize("optimizer", server_optimizers.names())
@pytest.mark.parametrize("lr", [0.5, 2.0])
def test_a_server_optimizer_steps_trained_tensors_only(network, optimizer, lr):
    after = updated(network, optimizer, lr, 0.25)
    for name, tensor in after.model.tensors.items():
        if "running" in name:
            assert torch.equal(tensor, torch.full_like(tensor, 0.25)), name
    assert not [name for name in after.memory if "running" in name]
    slots = optimizer_named(optimizer).slots
    assert {name.partition("/")[2] for name in after.memory} == (
        {n for n, _ in Normed(10).named_parameters()} if slots else set()
    )


def test_old_statistics_are_mixed_with_the_present_ones():
    update = Update(3, Tier(1.0), {"var": torch.tensor([-3.0]), "w": torch.tensor([7.0])}, {}, 1)
    received, now = {"var": torch.tensor([0.0])}, {"var": torch.tensor([4.0])}
    assert mixed(update, received, now, frozenset(["var"]), 0.5).tensors == {"var": torch.tensor([2.0]), "w": torch.tensor([7.0])}
    assert mixed(update, received, now, frozenset(), 0.5) is update


@pytest.mark.parametrize("name", [name for name in methods.names() if "server_step" not in create(name).lacks])
def test_statistics_are_known_of_every_method_with_a_server_step(network, name):
    method, tiers = create(name, tiers=(1.0, 0.5)), (Tier(1.0), Tier(0.5))
    tiers = tiers[: len(method.default_tiers)]
    try:
        method.check(network, tiers, 4)
        state = method.init(network, tiers, generator(0, "init"))
    except ConfigError as refused:
        pytest.skip(str(refused))
    running = {of for of in state.tensors if "running" in of}
    personal = {of for tier in tiers for of in personal_names(method, skeleton(method, network, tier))}
    assert statistics(method, state) == running - personal
    assert {of.rpartition(".")[2] for of in measured(network, method, tiers[0])} <= {"running_mean", "running_var"}


@pytest.mark.parametrize(
    "keys", [{"mode": "async", "buffer": 1, "rounds": 6}, {"server_optimizer": "avgm"}, {"server_lr": 3.0}], ids=str
)
def test_variances_stay_positive_and_outputs_finite(keys, tmp_path):
    result = edgefl.simulate(RunConfig(model=Normed(10), **TINY | keys), tmp_path / "run")
    network = result.network()
    assert min(float(of.min()) for name, of in network.named_buffers() if name.endswith("running_var")) > 0
    assert torch.isfinite(network(torch.randn(2, 1, 8, 8))).all()


def test_a_network_without_finite_outputs_has_no_accuracy(tmp_path):
    text = r"round 1: tier 1: accuracy: the network returns NaN or infinity for \d+ of 360 samples, expected finite outputs"
    with pytest.raises(MetricError, match=text) as error:
        edgefl.simulate(RunConfig(model=Lost(10), **TINY), tmp_path / "run")
    assert isinstance(error.value, EdgeflError)
    assert error.value.exit_code == 1
