"""DP-SGD's gradients against a loop over samples, its noise, and its costs against the meter."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.loss import loss_of
from edgefl.client.objective import objective_named
from edgefl.client.objectives import PLAIN
from edgefl.client.per_sample import StepNoise, per_sample
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.models.base import Architecture, loaded
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator
from edgefl.wire.payload import encode

CNN = Architecture("cnn-digits", (1, 8, 8), 10)
DP = Training(1, 8, 0.05, 0.9, 1e-4, sample_clip=0.7, noise_multiplier=1.5)
METHODS = [("fedavg", 1.0), ("heterofl", 0.5), ("fedhm", 0.5), ("flanc", 0.5), ("fedpara", 0.5)]


def batch_of(samples, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((samples, 1, 8, 8)).astype(np.float32))
    return Batch(x, torch.from_numpy(rng.integers(0, 10, samples)), torch.ones(10, dtype=torch.bool))


def network_of(method, tier):
    submodel = method.submodel(method.init(CNN, (tier,), generator(3, "init")), tier, generator(0, 1))
    return loaded(submodel.build(), submodel.tensors).train()


def by_a_loop(module, loss, batch, clip):
    """The definition: every sample alone, clipped, summed, divided."""
    total = [torch.zeros_like(p) for p in module.parameters()]
    for row in range(len(batch.y)):
        module.zero_grad()
        loss(module, replace(batch, x=batch.x[row : row + 1], y=batch.y[row : row + 1])).backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
        norm = float(torch.cat([g.flatten() for g in gradients]).norm())
        total = [t + g * min(1.0, clip / norm) / len(batch.y) for t, g in zip(total, gradients, strict=True)]
    module.zero_grad()
    return total


@pytest.mark.parametrize(("name", "ratio"), METHODS)
@pytest.mark.parametrize("objective", ["none", "prox"])
def test_the_gradient_is_that_of_a_loop_over_samples(name, ratio, objective):
    method = create(name, tiers=(ratio,))
    module, chosen = network_of(method, Tier(ratio)), objective_named(objective, 0.1)
    chosen.attach(module, dict(module.named_parameters()), {}, {})
    loss, batch = loss_of(method, chosen), batch_of(5)
    norms = by_a_loop(module, loss, batch, 1e9)
    clip = 0.6 * float(torch.cat([g.flatten() for g in norms]).norm())  # some samples are clipped
    expected = by_a_loop(module, loss, batch, clip)
    value = per_sample(loss, clip)(module, batch)
    value.backward()
    assert value.item() == pytest.approx(loss(module, batch).item(), rel=1e-5)
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_no_sample_moves_the_sum_of_gradients_by_more_than_the_clip():
    module, batch = network_of(create("fedavg"), Tier(1.0)), batch_of(6)
    loss = per_sample(loss_of(create("fedavg"), PLAIN), clip=0.3)

    def sum_without(row):
        rows = [i for i in range(6) if i != row]
        module.zero_grad()
        loss(module, Batch(batch.x[rows], batch.y[rows], batch.present)).backward()
        return torch.cat([p.grad.flatten() for p in module.parameters()]) * len(rows)

    whole = sum_without(None)
    moves = [float((whole - sum_without(row)).norm()) for row in range(6)]
    assert max(moves) <= 0.3 * (1 + 1e-5)
    assert max(moves) > 0.29


def test_gradients_of_micro_batches_add_up_to_those_of_the_batch():
    module, batch = network_of(create("fedavg"), Tier(1.0)), batch_of(8)
    loss, gradients = per_sample(loss_of(create("fedavg"), PLAIN), clip=0.3), []
    for parts in ([slice(0, 8)], [slice(0, 3), slice(3, 8)]):
        module.zero_grad()
        for part in parts:
            one = Batch(batch.x[part], batch.y[part], batch.present)
            (loss(module, one) * (len(one.y) / 8)).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in module.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_the_noise_of_a_step_has_the_variance_that_the_accountant_counts():
    layer = nn.Linear(300, 200)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    StepNoise(std=1.05, generator=torch.Generator().manual_seed(5)).add(layer, samples=4)
    noise = torch.cat([p.grad.flatten() for p in layer.parameters()])
    assert float(noise.std()) == pytest.approx(1.05 / 4, rel=0.01)
    assert abs(float(noise.mean())) < 4 * (1.05 / 4) / len(noise) ** 0.5


def clients_of(training, enforce="meter"):
    return Clients(Task(7, "digits", None, "iid", 40, CNN, training, enforce=enforce))


def job_of(clients, method, tier, **how):
    state = method.init(CNN, (tier,), generator(0, "init"))
    return Job(1, 2, method, tier, encode(method.submodel(state, tier, generator(0, 1)).tensors), **how)


@pytest.mark.parametrize(("name", "ratio"), METHODS)
@pytest.mark.parametrize("micro_batch", [None, 3])
def test_predicted_memory_is_the_metered_one(name, ratio, micro_batch):
    method, training = create(name, tiers=(ratio,)), replace(DP, micro_batch=micro_batch)
    cost, clients = tier_cost(method, CNN, Tier(ratio), training), clients_of(training)
    assert clients.meter(job_of(clients, method, Tier(ratio))).split.total == cost.training_memory_bytes
    assert not cost.uncounted_ops


@pytest.mark.parametrize(("name", "ratio"), METHODS)
def test_predicted_macs_are_those_that_torch_counts_in_a_step(name, ratio):
    """Of an MLP: torch's counter takes the grouped convolutions of per-sample gradients for dense ones."""
    method, tier, network = create(name, tiers=(ratio,)), Tier(ratio), Architecture("mlp", (1, 8, 8), 10)
    clients = Clients(Task(7, "digits", None, "iid", 40, network, DP))
    payload = encode(method.submodel(method.init(network, (tier,), generator(0, "init")), tier, generator(0, 1)).tensors)
    with clients.prepared(Job(1, 2, method, tier, payload)) as prepared, FlopCounterMode(display=False) as counter:
        local = prepared.local
        local.loss(local.module, Batch(local.x[:8], local.y[:8], local.present, 0.0)).backward()
    assert counter.get_total_flops() == 2 * tier_cost(method, network, tier, DP).macs_train_step


def test_the_macs_of_a_dense_network_are_those_of_plain_training_and_its_memory_is_not():
    plain = tier_cost(create("fedavg"), CNN, Tier(1.0), replace(DP, sample_clip=None))
    private = tier_cost(create("fedavg"), CNN, Tier(1.0), DP)
    assert private.macs_forward == plain.macs_forward
    of = [cost.macs_backward_input + cost.macs_backward_weight for cost in (plain, private)]
    assert of[0] == of[1]
    samples = 8 * 4 * plain.params  # the gradients of a batch of eight in float32
    assert private.training_memory_bytes > samples > private.training_memory_bytes - plain.training_memory_bytes - samples / 2


def test_a_client_has_the_same_bits_again_and_other_noise_in_another_round():
    clients, method = clients_of(DP), create("fedavg")
    job = job_of(clients, method, Tier(1.0))
    first = clients.run(job)
    assert clients.run(job).payload == first.payload == clients_of(DP).run(job).payload
    assert clients.run(replace(job, round=2)).payload != first.payload


def test_labels_that_a_client_lacks_do_not_change_its_loss():
    clients = clients_of(DP)
    with clients.prepared(job_of(clients, create("heterofl"), Tier(1.0))) as prepared:
        assert prepared.local.present.all()
