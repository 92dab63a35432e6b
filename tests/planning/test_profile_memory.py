"""Predicted memory is what a real step of training holds."""

import numpy as np
import pytest
import torch
from own_modules import CLASSES, NETWORKS, mobile
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker

from edgefl import profile
from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.planning.network import architecture_of
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier


def real_step(build, inputs, batch_size, micro_batch=None, optimizer="momentum"):
    """Train one real step under the meter; return the prediction and what was held."""
    architecture, method = architecture_of(build, inputs, CLASSES), create("fedavg")
    training = Training(1, batch_size, 0.05, 0.9, 1e-4, optimizer, micro_batch)
    network, rng = architecture.build(), np.random.default_rng(0)
    (spec,) = architecture.inputs.values()
    x = torch.from_numpy(rng.standard_normal((batch_size, *spec.shape))).float()
    x, y = x.abs().to(spec.dtype), torch.from_numpy(rng.integers(CLASSES, size=batch_size))
    stepper = optimizer_of(method, network, training)
    held = train(
        LocalTraining(network, lambda m, b: method.local_loss(m, b), x, y, torch.ones(CLASSES) > 0, training, rng), stepper
    )
    return tier_cost(method, architecture, Tier(1.0), training), held


@pytest.mark.parametrize("micro_batch", [None, 4, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("name", NETWORKS)
def test_predicted_memory_is_what_a_real_step_holds(name, optimizer, micro_batch):
    predicted, held = real_step(*NETWORKS[name], 8, micro_batch, optimizer)
    assert predicted.peak_activation_bytes_training == held.peak_activation_bytes
    # Of an LSTM's two biases, whose gradient is the same, a real step copies the second.
    slack = 4 * 4 * 16 if name == "lstm" else 0
    assert 0 <= held.memory_bytes - predicted.training_memory_bytes <= slack


def test_predicted_memory_is_what_another_tracker_sees():
    """An independent witness: torch's own tracker of modules, parameters, gradients, optimizer state and activations."""
    network, x = mobile(), torch.zeros(8, 3, 32, 32)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, foreach=False)
    tracker = MemTracker()
    tracker.track_external(network, optimizer, x)
    with tracker:
        for step in range(2):  # the state of the optimizer is there from the second step on
            if step:
                tracker.reset_mod_stats()
            nn.functional.cross_entropy(network(x), torch.zeros(8, dtype=torch.int64)).backward()
            optimizer.step()
            optimizer.zero_grad()
    seen = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    (row,) = profile(mobile, "3x32x32", batch_size=8)
    assert row.training_memory_bytes == pytest.approx(seen, rel=0.02)
