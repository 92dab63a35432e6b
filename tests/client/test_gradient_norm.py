"""Clipping of gradients: torch's clip_grad_norm_ to the bit, in every way in which torch trains a client."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.client.client import Clients
from edgefl.client.fast.gradients import MANY
from edgefl.client.job import Job, Task
from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.objective import objective_named
from edgefl.client.objectives import PLAIN
from edgefl.client.optimizer import FusedOptimizer, clipped
from edgefl.client.per_sample import StepNoise, per_sample
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator, torch_seeded
from edgefl.wire.payload import encode, stored_tensors

CNN = Architecture("cnn-digits", (1, 8, 8), 10)
PLAIN_STEPS = Training(2, 8, 0.05, 0.9, 1e-2, clip_gradient=0.5)


def cross_entropy(module, batch):
    return nn.functional.cross_entropy(module(batch.x), batch.y)


def network():
    with torch_seeded(generator(1, "network")):
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10))


def local_of(module, training):
    rng = np.random.default_rng(3)
    x, y = torch.from_numpy(rng.standard_normal((21, 1, 8, 8))).float(), torch.from_numpy(rng.integers(10, size=21))
    return LocalTraining(module, cross_entropy, x, y, None, training, np.random.default_rng(5))


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_plain_steps_are_those_with_torchs_own_function_to_the_bit(optimizer, micro_batch):
    training = replace(PLAIN_STEPS, optimizer=optimizer, micro_batch=micro_batch)
    module, expected = network(), network()
    train(local_of(module, training), optimizer_of(create("fedavg"), module, training))
    theirs, local = optimizer_of(create("fedavg"), expected, replace(training, clip_gradient=None)), local_of(expected, training)
    norms = []
    for positions in [one for _ in range(2) for one in local.epoch()]:
        theirs.zero_grad()
        for part in positions.split(micro_batch or 8):
            (cross_entropy(expected, Batch(*local.at(part))) * (len(part) / len(positions))).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(expected.parameters(), 0.5)))
        theirs.step()
    assert min(norms) > 0.5
    assert all(map(torch.equal, module.parameters(), expected.parameters()))


@pytest.mark.parametrize("norm", [1e-4, 0.3, 1e4])
def test_the_fused_optimizer_takes_the_gradients_of_torchs_own_function(norm):
    module, expected = network(), network()
    for one in (module, expected):
        for number, parameter in enumerate(one.parameters()):
            parameter.grad = torch.linspace(-2, 1 + number, parameter.numel()).view_as(parameter)
    torch.nn.utils.clip_grad_norm_(expected.parameters(), norm)
    for one, bound in ((module, norm), (expected, None)):
        FusedOptimizer(replace(PLAIN_STEPS, clip_gradient=bound), dict(one.named_parameters()), ()).step()
    assert all(map(torch.equal, module.parameters(), expected.parameters()))


def test_far_above_far_below_and_zero():
    long = {"w": torch.tensor([3e12, 0.0]), "b": torch.tensor(-4e12), "unused": None}
    found = clipped(long, 1.0)
    torch.testing.assert_close(found["w"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(found["b"], torch.tensor(-0.8))
    assert found["unused"] is None
    short = {"w": torch.tensor([3e-9, -1e-9])}
    assert torch.equal(clipped(short, 1.0)["w"], short["w"])
    zero = {"w": torch.zeros(3), "b": torch.zeros(())}
    assert all(torch.equal(clipped(zero, 1.0)[name], zero[name]) for name in zero)
    assert clipped({"unused": None}, 1.0) == {"unused": None}


def test_a_tensor_that_two_parameters_share_is_scaled_once():
    shared = torch.tensor([3.0, 4.0])
    found = clipped({"a": shared, "b": shared}, 1.0)
    torch.testing.assert_close(found["a"], torch.tensor([3.0, 4.0]) / 50**0.5)
    assert torch.equal(found["a"], found["b"])
    assert shared.tolist() == [3.0, 4.0]


def test_each_of_several_clients_has_a_norm_of_its_own():
    parts = [{"w": torch.tensor([[3.0, -1.0]]) * scale, "b": torch.tensor(-2.0) * scale} for scale in (1.0, 1e-3, 50.0)]
    stack = {name: torch.stack([part[name] for part in parts]) for name in ("w", "b")}
    found = clipped(stack, 1.0, stacked=True)
    for row, part in enumerate(parts):
        for name, expected in clipped(part, 1.0).items():
            torch.testing.assert_close(found[name][row], expected)


def clients_of(training, objective=PLAIN, enforce="plan"):
    return Clients(Task(7, "digits", None, "iid", 20, CNN, training, objective, enforce=enforce))


def jobs_of(clients, count, name="heterofl"):
    method, tier = create(name, tiers=(0.5,)), Tier(0.5)
    payload = encode(method.submodel(method.init(CNN, (tier,), generator(0, "init")), tier, generator(0, 1)).tensors)
    return [Job(1, client, method, tier, payload) for client in range(count)]


@pytest.mark.parametrize("objective", [PLAIN, objective_named("prox", 0.3)], ids=["none", "prox"])
def test_captured_steps_are_plain_steps_to_the_bit(objective):
    training = replace(PLAIN_STEPS, epochs=3, clip_gradient=0.1)
    captured, plain = clients_of(training, objective), clients_of(training, objective)
    (job,) = jobs_of(captured, 1)
    first = [captured.run(job).payload for _ in range(2)]  # in the second one, every whole batch is captured
    assert captured.parts(job.method, job.tier).gradients._captured
    assert 3 * training.steps(captured.shards.size(0)) > MANY
    expected = plain.run(job, within=lambda loop: loop).payload
    assert first == [expected, expected]
    assert expected != clients_of(replace(training, clip_gradient=None), objective).run(job).payload


def test_clients_trained_together_end_where_each_ends_alone():
    training = replace(PLAIN_STEPS, lr=0.01, clip_gradient=0.2)
    clients = clients_of(training)
    jobs = jobs_of(clients, 4)
    for one, other in zip(clients.run_all(jobs), map(clients.run, jobs), strict=True):
        ours, theirs = (stored_tensors(outcome.payload, "update") for outcome in (one, other))
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("micro_batch", [None, 3])
@pytest.mark.parametrize("name", ["heterofl", "flanc", "fedhm"])
def test_costs_are_those_without_clipping_and_the_predicted_memory_is_the_metered_one(name, micro_batch):
    training = replace(PLAIN_STEPS, micro_batch=micro_batch)
    method, clients = create(name, tiers=(0.5,)), clients_of(training)
    cost, plain = (tier_cost(method, CNN, Tier(0.5), one) for one in (training, replace(training, clip_gradient=None)))
    (job,) = jobs_of(clients, 1, name)
    assert clients.meter(job).split.total == cost.training_memory_bytes
    assert not cost.uncounted_ops
    assert (cost.macs_train_step, cost.params, cost.upload_bytes) == (plain.macs_train_step, plain.params, plain.upload_bytes)
    norms_bytes = 4 * len(list(method.network(CNN, Tier(0.5)).parameters()))
    assert 0 <= cost.training_memory_bytes - plain.training_memory_bytes <= 3 * norms_bytes


class Scaled(nn.Module):
    """A network with a parameter that is one number."""

    def __init__(self):
        super().__init__()
        self.fc, self.scale = nn.Linear(2, 2), nn.Parameter(torch.tensor(-2.0))

    def forward(self, x):
        return self.fc(x) * self.scale


def test_gradients_of_samples_may_be_of_one_number():
    module, batch = Scaled(), Batch(torch.tensor([[1.0, -2.0], [0.5, 3.0]]), torch.zeros(2))
    expected = []
    for row in range(2):
        one = copy.deepcopy(module)
        one(batch.x[row : row + 1]).square().mean().backward()
        expected.append(clipped({name: p.grad for name, p in one.named_parameters()}, 0.4))
    per_sample(lambda own, batch: own(batch.x).square().mean(), 0.4)(module, batch).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter.grad, (expected[0][name] + expected[1][name]) / 2)


def test_noise_of_private_steps_is_clipped_with_the_gradient():
    """What is made from a noisy gradient tells no more of a sample than that gradient."""
    training = replace(PLAIN_STEPS, epochs=1, batch_size=21, optimizer="sgd", weight_decay=0.0, lr=1.0, sample_clip=1.0)
    module = network()
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    noise = StepNoise(100.0, torch.Generator().manual_seed(2))
    train(replace(local_of(module, training), noise=noise), optimizer_of(create("fedavg"), module, training))
    moved = torch.cat([p.detach().flatten() for p in module.parameters()]) - before
    assert float(moved.norm()) == pytest.approx(0.5, rel=1e-5)
