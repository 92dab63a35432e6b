"""Costs of an inference are those of the network that a device runs; steps that do more than one pass over a batch count in full."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from edgefl.bundle.forms import formed
from edgefl.client.criterion import CROSS_ENTROPY
from edgefl.client.training import Training
from edgefl.cost.table import cost_of
from edgefl.cost.trace import Subject, Tracer
from edgefl.fleet.budget import Budget, use
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning import tier_costs
from edgefl.planning.profile import profile
from edgefl.planning.tier_costs import formed_cost, tier_cost
from edgefl.records import Batch, Deployed, Tier, Timing

ARCHITECTURE = Architecture("cnn-digits", (1, 8, 8), 10)
FORWARD = 1_798_144


class Composed(nn.Module):
    """y = (A B) x with A (6, 2) and B (2, 5), composed in every pass, and a buffer that only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(6, 2)), nn.Parameter(torch.ones(2, 5))
        self.register_buffer("start", torch.zeros(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.a @ self.b).T


def subject(deployed=None, loss=lambda module, batch: module(batch.x).square().mean()) -> Subject:
    def batch(samples: int) -> Batch:
        return Batch(torch.zeros(samples, 5), torch.zeros(samples, dtype=torch.int64))

    return Subject(Composed, batch, loss, lambda module: torch.optim.SGD(module.parameters(), lr=0.1), deployed=deployed)


def test_an_inference_is_that_of_the_deployed_network():
    cost = cost_of(subject(lambda: nn.Linear(5, 6, bias=False)), 4, (0, 0))
    assert cost.deployed == Deployed(params=30, macs=30, parameter_bytes=120, buffer_bytes=0)
    assert (cost.params, cost.parameter_bytes, cost.buffer_bytes) == (22, 88, 28)
    held = 4 * 4 * 5 + 256  # the result of 96 bytes is in a block of the arena
    assert cost.peak_activation_bytes_inference == held
    assert cost.inference_memory_bytes == 120 + held
    budget = use(cost, Timing(0.0, 0.0, 0.0, 0.0, 0.0), Budget(macs_forward=100.0))
    assert budget == {"macs_forward": (30, 100.0)}


def test_without_another_network_it_is_the_trained_one_less_its_composition():
    cost = cost_of(subject(), 4, (0, 0))
    assert cost.deployed == Deployed(params=22, macs=30, parameter_bytes=88, buffer_bytes=28)
    assert cost.inference_memory_bytes == 88 + 28 + cost.peak_activation_bytes_inference


@pytest.mark.parametrize(("method", "inferences"), [("fedavg", 1), ("fedhm", 1), ("fedpara", 1), ("prism", 2), ("fjord", 3)])
def test_no_more_is_traced_than_differs(method, inferences, monkeypatch):
    """PriSM's deployed layers differ from those in training; FjORD traces each of its three widths."""
    calls = []
    original = Tracer.inference
    monkeypatch.setattr(Tracer, "inference", lambda self, size: calls.append(size) or original(self, size))
    monkeypatch.setattr(tier_costs, "_recalled", tier_costs._recalled.__wrapped__)  # whatever other tests have traced
    chosen = create(method)
    tier_cost(chosen, ARCHITECTURE, Tier(chosen.default_tiers[0]), Training(1, 32))
    assert len(calls) == inferences


@pytest.mark.parametrize("batch_size", [1, 2, 7, 32, 33])
def test_a_step_on_halves_of_its_batch_counts_in_full(batch_size):
    """Per-FedAvg takes a gradient of one half and then one of the other: an odd batch has one sample in both."""
    (one,), (both,) = (profile(ARCHITECTURE.model, (1, 8, 8), method=m, batch_size=batch_size) for m in ("fedavg", "per-fedavg"))
    twice = batch_size % 2
    assert both.macs_train_step * batch_size == one.macs_train_step * (batch_size + twice)
    assert both.uncounted_ops == ()
    # The inner gradient is part of the loss, and still a backward pass.
    for key in ("macs_forward", "macs_backward_input", "macs_backward_weight", "macs_inference"):
        assert getattr(both, key) == getattr(one, key), key


def test_distillation_trains_two_networks_and_deploys_one():
    plain, distilled = (tier_cost(create("fjord", {"distill": d}), ARCHITECTURE, Tier(1.0), Training(1, 32)) for d in (0, 1))
    assert plain.macs_inference == distilled.macs_inference == plain.macs_forward == FORWARD
    assert distilled.macs_forward > FORWARD
    assert plain.macs_drawn is not None
    assert plain.macs_train_step == 32 * plain.macs_drawn < 32 * (plain.macs_forward + plain.macs_backward)


def test_a_profile_gives_a_method_its_tiers_and_lists_what_goes_up():
    rows = profile("cnn-digits", (1, 8, 8), method="splitmix", tiers=(1.0, 0.125))
    assert rows[0].params == 8 * rows[1].params
    (row,) = profile("cnn-digits", (1, 8, 8), method="factorized-fl")
    up = {tensor.name for tensor in row.tensors if tensor.upload_bytes}
    down = {tensor.name for tensor in row.tensors if tensor.download_bytes}
    assert up - down == {"conv3.v"}
    for way, header in (("download_bytes", "header_bytes"), ("upload_bytes", "upload_header_bytes")):
        assert sum(getattr(tensor, way) for tensor in row.tensors) + getattr(row, header) == getattr(row, way)


def test_a_network_whose_factors_are_multiplied_out_infers_as_the_dense_one():
    """FedHM's layers composed are the layers of FedAvg's network; one of two composed is between both."""
    method, tier, training = create("fedhm"), Tier(0.25), Training(1, 32)
    factored = tier_cost(method, ARCHITECTURE, tier, training)
    dense = tier_cost(create("fedavg"), ARCHITECTURE, Tier(1.0), training)
    names = ("params_inference", "macs_inference", "weights_bytes_inference", "inference_memory_bytes", "inference_work")

    def inference(*layers: str) -> list[object]:
        network = formed(method.network(ARCHITECTURE, tier), "auto", layers).module
        cost = formed_cost(factored, network, method, ARCHITECTURE, tier, training, CROSS_ENTROPY)
        assert cost.training_memory_bytes == factored.training_memory_bytes
        return [getattr(cost, name) for name in names]

    both, one, none = inference("conv2", "conv3"), inference("conv3"), inference()
    assert both == [getattr(dense, name) for name in names]
    assert none == [getattr(factored, name) for name in names]
    assert all(a < b < c for a, b, c in zip(none[:3], one[:3], both[:3], strict=True))


@pytest.mark.usefixtures("recalling")
def test_the_cost_of_a_chosen_form_is_stored(monkeypatch):
    method, tier, training = create("fedhm"), Tier(0.25), Training(1, 32)
    factored = tier_cost(method, ARCHITECTURE, tier, training)
    of = method, ARCHITECTURE, tier, training, CROSS_ENTROPY
    network = formed(method.network(ARCHITECTURE, tier), "composed").module
    counted = formed_cost(factored, network, *of, {"composed": ["conv2", "conv3"]})
    monkeypatch.setattr("edgefl.planning.tier_costs.with_inference", None)  # not called again
    assert formed_cost(factored, network, *of, {"composed": ["conv2", "conv3"]}) == counted
