"""Recomputation of activations: the same bits as saving them, with less memory, at a cost that is predicted exactly."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from edgefl import RunConfig, profile
from edgefl.client.job import Job
from edgefl.client.messages import Setups, read_jobs, write_jobs
from edgefl.client.recompute.tape import recomputing
from edgefl.cost.memory import LivenessMeter, held_by
from edgefl.cost.trace import RECOMPUTE
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.records import Batch, Tier
from edgefl.rng import generator, torch_seeded


class Awkward(nn.Module):
    """Statistics, random masks, changes in place of activations and of a buffer, a skip over segments, and a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.conv2, self.norm2, self.drop = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Dropout(0.3)
        self.conv3, self.norm3 = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.rnn, self.fc = nn.LSTM(128, 12, batch_first=True), nn.Linear(12, 5)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x):
        skip = F.relu_(self.norm1(self.conv1(x)))
        x = skip * self.scale.clone().view(1, -1, 1, 1)
        self.scale.mul_(1.1)
        x = self.drop(F.relu(self.norm2(self.conv2(x)), inplace=True))
        x = (x + skip).mul_(2)
        x = F.relu(self.norm3(self.conv3(x.relu_())))
        x = self.norm1(x).permute(0, 2, 1, 3).flatten(2)  # the first normalisation once more
        return self.fc(F.dropout(self.rnn(x)[0][:, -1], 0.5, self.training))


def loss(module, batch):
    return F.cross_entropy(module(batch.x), batch.y)


def trained(network, objective, batch):
    """Return the loss, every gradient and buffer and the next random number after two passes, and the bytes at the peak."""
    network = copy.deepcopy(network)
    with torch_seeded(generator(0, "train")), LivenessMeter(held_by(network)) as meter:
        for _ in range(2):
            value = objective(network, batch)
            value.backward()
            value = value.detach()
        drawn = torch.rand(1)
    gradients = [parameter.grad for parameter in network.parameters()]
    return [value, *gradients, *network.buffers(), drawn], meter.peak().bytes


@pytest.mark.parametrize("before", [["conv2", "conv3", "rnn"], ["conv3"], ["conv2", "norm2", "conv3", "norm3", "rnn", "fc"]])
def test_gradients_statistics_and_masks_have_the_same_bits(before):
    with torch_seeded(generator(0, "init")):
        network, batch = Awkward(), Batch(torch.randn(8, 3, 8, 8), torch.randint(5, (8,)))
    saved, saved_bytes = trained(network, loss, batch)
    again, again_bytes = trained(network, recomputing(loss, before), batch)
    assert all(torch.equal(one, other) for one, other in zip(saved, again, strict=True))
    assert again_bytes < 0.95 * saved_bytes


def test_a_gradient_of_a_gradient_has_the_same_bits():
    def penalised(module, batch):
        value = loss(module, batch)
        gradients = torch.autograd.grad(value, list(module.parameters()), create_graph=True)
        return value + sum((g**2).sum() for g in gradients)

    network = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = Batch(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64))
    (saved, _), (again, _) = trained(network, penalised, batch), trained(network, recomputing(penalised, ["2", "4"]), batch)
    assert all(torch.equal(one, other) for one, other in zip(saved, again, strict=True))


def deep(side=16):
    layers = [nn.Conv2d(1, 8, 3, padding=1)]
    for _ in range(5):
        layers += [nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)), (1, side, side)


def test_a_profile_counts_what_runs_again():
    network, shape = deep()
    (plain,), (again,) = (profile(network, shape, batch_size=8, recompute=chosen) for chosen in (False, True))
    assert again.training_memory_bytes < 0.75 * plain.training_memory_bytes
    first, other = 9 * 8 * 256, 9 * 8 * 8 * 256
    # All before the last layer of the list runs again: convolution 0, and those between the two.
    assert again.macs_recompute == first + (int(again.recompute[-1]) // 3 - 1) * other
    assert again.macs_train_step == plain.macs_train_step + 8 * again.macs_recompute
    assert (again.macs_forward, again.macs_backward) == (plain.macs_forward, plain.macs_backward)
    assert (plain.macs_recompute, plain.recompute) == (0, ())
    assert sum(layer.macs_recompute for layer in again.layers) == again.macs_recompute
    (device,) = profile(network, shape, batch_size=8, recompute=True, device="raspberry-pi-4")
    (without,) = profile(network, shape, batch_size=8, device="raspberry-pi-4")
    assert device.train_step_seconds > without.train_step_seconds


def test_what_saves_nothing_is_not_recomputed():
    row = profile(nn.Linear(4, 2), (4,), recompute=True)[0]
    assert (row.recompute, row.macs_recompute) == ((), 0)


def test_the_layers_travel_with_a_job():
    job = Job(1, 0, create("fedavg"), Tier(1.0), b"payload", recompute=("conv2", "conv3"))
    assert read_jobs(write_jobs([job], Setups()))[0].recompute == job.recompute


def test_graphs_of_onnx_refuse_it():
    with pytest.raises(
        ConfigError, match="on_shortfall: recompute needs torch, and runtime onnx runs training graphs that save all"
    ):
        RunConfig(on_shortfall=("recompute",), runtime="onnx")


def test_operations_that_run_again_are_marked_in_torch_s_own_profiler():
    network, shape = deep(4)
    batch = Batch(torch.zeros(2, *shape), torch.zeros(2, dtype=torch.int64))
    with torch.profiler.profile() as seen:
        recomputing(loss, ["3", "9"])(network, batch).backward()
    assert sum(event.count for event in seen.key_averages() if event.key == RECOMPUTE) == 2
