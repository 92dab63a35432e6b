"""Clients whose steps onnxruntime takes: the same outcomes as torch's, and limits on memory that hold."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from requirements import needs
from torch import nn

from edgefl.bundle.tier_graphs import rule_of, tier_graphs
from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.loop import LocalTraining, OverMemory
from edgefl.client.objective import objective_named
from edgefl.client.objectives import PLAIN
from edgefl.client.onnx_loop import train_in_onnx
from edgefl.client.training import Training
from edgefl.data.mix import load
from edgefl.engine.contract import in_order
from edgefl.engine.pool import PoolEngine
from edgefl.methods.create import create
from edgefl.methods.penalties import decayed
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.onnxgrad.roles import StepRule
from edgefl.onnxgrad.stepper import Stepper, peak_bytes
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded
from edgefl.wire.payload import encode, stored_tensors

PLAIN_STEPS = Training(epochs=2, batch_size=32, lr=0.05, momentum=0.9, weight_decay=1e-4)
TIER = Tier(0.5)


def task_of(model="mlp", training=PLAIN_STEPS, objective=PLAIN, **options):
    return Task(0, "digits", None, "iid", 20, Architecture(model, (1, 8, 8), 10), training, objective, **options)


def job_of(task, method="heterofl", onnx=True, **options):
    method = create(method, tiers=(1.0, 0.5, 0.25))
    state = method.init(task.architecture, (Tier(1.0), TIER, Tier(0.25)), generator(0, "init"))
    payload = encode(method.submodel(state, TIER, np.random.default_rng(0)).tensors)
    training = task.training
    graphs = tier_graphs(method, task.architecture, TIER, rule_of(training), task.objective, True).steps
    return Job(1, 0, method, TIER, payload, graphs=graphs if onnx else None, **options)


def tensors_of(outcome):
    return {name: tensor.numpy() for name, tensor in stored_tensors(outcome.payload, "update").items()}


@pytest.mark.parametrize(
    ("method", "objective", "changes"),
    [
        ("heterofl", PLAIN, {}),
        ("heterofl", PLAIN, {"optimizer": "adam", "lr": 0.003}),
        ("heterofl", PLAIN, {"optimizer": "sgd", "weight_decay": 0.0}),
        ("heterofl", PLAIN, {"micro_batch": 10}),
        ("heterofl", PLAIN, {"clip_gradient": 0.1}),
        ("fjord", objective_named("prox", 0.5), {"clip_gradient": 0.1, "micro_batch": 10}),
        ("fjord", PLAIN, {}),
        ("depthfl", PLAIN, {"micro_batch": 10}),
        ("last-blocks", objective_named("dyn", 0.5), {}),
        ("heterofl", objective_named("prox", 0.5), {}),
        ("heterofl", objective_named("dyn", 0.5), {}),
    ],
    ids=[
        "momentum",
        "adam",
        "sgd",
        "in parts",
        "clipped",
        "clipped in parts",
        "several kinds of steps",
        "several exits",
        "frozen blocks",
        "prox",
        "dyn",
    ],
)
def test_a_client_answers_as_with_torch(method, objective, changes):
    task = task_of(training=replace(PLAIN_STEPS, **changes), objective=objective)
    clients = Clients(task)
    expected, found = (clients.run(job_of(task, method, onnx)) for onnx in (False, True))
    same = {field: getattr(expected, field) for field in ("client", "status", "steps")}
    assert same == {field: getattr(found, field) for field in same}
    assert found.train_loss == pytest.approx(expected.train_loss, rel=1e-4)
    ours, theirs = tensors_of(found), tensors_of(expected)
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], atol=2e-5)
    if objective.remembers:
        ours, theirs = (stored_tensors(outcome.kept, "kept") for outcome in (found, expected))
        for name in ours:
            torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=2e-5)


def test_a_client_that_diverges_is_an_outcome():
    task = task_of(training=replace(PLAIN_STEPS, lr=1e30))
    assert Clients(task).run(job_of(task)).status == "diverged"


def test_the_meter_ends_a_client_that_holds_a_byte_too_much():
    task = task_of("cnn-digits", enforce="meter")
    clients = Clients(task)
    free = clients.run(job_of(task))
    need_bytes = free.measured_training_memory_bytes
    fits, over = (clients.run(job_of(task, memory_bytes=float(need_bytes - missing))) for missing in (0, 1))
    assert (fits.status, over.status) == ("trained", "out_of_memory")
    assert over.steps == 1
    assert over.measured_training_memory_bytes == need_bytes
    assert fits.payload == free.payload


def test_what_is_held_is_counted():
    """Weights and momentum twice, the first batch, and what onnxruntime had in use at the peak of a step like the first."""
    task = task_of()
    outcome = Clients(task).run(job_of(task))
    job = job_of(task)
    weights_bytes = 4 * sum(int(np.prod(shape)) for shape in download_shapes(job.method, task.architecture, TIER).values())
    batch_bytes = 32 * 64 * 4
    assert outcome.measured_peak_activation_bytes > batch_bytes
    assert outcome.measured_training_memory_bytes == 4 * weights_bytes + outcome.measured_peak_activation_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="clients in processes of their own are Linux's and macOS's")
def test_onnxruntimes_own_allocator_holds_a_client_to_its_memory():
    """The arena's limit, set in a process of the client's own; those who fit get the same bits as without a limit."""
    task = task_of("cnn-digits", enforce="hard")
    free = Clients(replace(task, enforce="plan")).run(job_of(task))
    held_bytes = free.measured_training_memory_bytes - free.measured_peak_activation_bytes
    room = [64 * 2**20, free.measured_peak_activation_bytes // 2, -1]
    jobs = [job_of(task, memory_bytes=float(held_bytes + bytes_)) for bytes_ in room]
    with PoolEngine(task, 1) as engine:
        fits, over, no_room = in_order(engine, jobs)
    assert [outcome.status for outcome in (fits, over, no_room)] == ["trained", "out_of_memory", "out_of_memory"]
    assert fits.payload == free.payload
    assert over.measured_training_memory_bytes > held_bytes + room[1]
    assert not over.payload


def test_a_limit_below_the_weights_is_not_no_limit():
    task = task_of()
    job = job_of(task)
    module = job.method.network(task.architecture, TIER)
    shard = Clients(task).shards.train(0)
    x, y = torch.from_numpy(shard.x), torch.from_numpy(shard.y)
    present, rng = torch.ones(10, dtype=torch.bool), generator(0, "train")
    local = LocalTraining(module, None, x, y, present, task.training, rng, memory_bytes=10.0)
    with pytest.raises(OverMemory):
        train_in_onnx(local, job.graphs, capped=True)


def test_peaks_grow_with_the_batch_and_not_with_what_is_handed_in():
    task = task_of()
    job = job_of(task)
    module = job.method.network(task.architecture, TIER)
    arrays = {f"p.{name}": parameter.detach().numpy() for name, parameter in module.named_parameters()}
    scalars = {"lr": np.zeros((), np.float32), "beta": np.zeros((), np.float32), "present": np.ones(10, bool)}

    def peak(count):
        x, y = np.zeros((count, 1, 8, 8), np.float32), np.zeros(count, np.int64)
        return peak_bytes(job.graphs.steps[0], {**arrays, **scalars, "x": x, "y": y})

    peaks = [peak(count) for count in (512, 2048)]  # from sizes on where activations are more than a gradient of the weights
    hidden = module.state_dict()["hidden.weight"].shape[0]
    grown = (peaks[1] - peaks[0]) / (1536 * hidden * 4)
    assert 1 <= grown < 5


@needs("Fashion-MNIST")
def test_fifty_steps_on_fashion_mnist_follow_torchs_losses():
    """Float32 in one order of sums or another: both stay about as near to float64."""
    data = load("fashion-mnist", None)
    architecture = Architecture("cnn-fashion", (1, 28, 28), 10)
    method = create("fedhm", tiers=(1.0, 0.5))
    state = method.init(architecture, (Tier(1.0), TIER), generator(0, "init"))
    submodel = method.submodel(state, TIER, np.random.default_rng(0))
    graphs = tier_graphs(method, architecture, TIER, StepRule("momentum", 1e-4), PLAIN).steps
    steps = [np.random.default_rng(i).integers(10_000, size=16) for i in range(50)]
    batches = [(data.train.x[index], data.train.y[index]) for index in steps]

    def in_torch(dtype):
        module = submodel.build()
        module.load_state_dict(dict(submodel.tensors))
        module = module.to(dtype).train()
        those = set(decayed(method, module))
        groups = [
            {"params": [p for p in module.parameters() if (p in those) == d], "weight_decay": 1e-4 * d} for d in (True, False)
        ]
        optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
        losses = []
        for x, y in batches:
            loss = _loss(method, module, torch.from_numpy(x).to(dtype), torch.from_numpy(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return np.array(losses)

    arrays = {f"p.{name}": tensor.numpy() for name, tensor in submodel.tensors.items()}
    stepper = Stepper(graphs, {**arrays, "present": np.ones(10, bool)}, 0.02, 0.9)
    ours = np.array([stepper.step(x, y) for x, y in batches])
    exact, single = in_torch(torch.float64), in_torch(torch.float32)
    assert ours[-10:].mean() < 0.7 * ours[:5].mean()
    spread = np.abs(single - exact).max()
    assert np.abs(ours - exact).max() <= max(5 * spread, 1e-4)


def _loss(method, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    from edgefl.records import Batch

    with torch_seeded(generator(0, "loss")):
        return method.local_loss(module, Batch(x, y, torch.ones(10, dtype=torch.bool)))


def test_the_graphs_need_no_path_of_this_computer():
    job = job_of(task_of())
    assert all(str(Path.home()).encode() not in graph and b"site-packages" not in graph for graph in job.graphs.steps)
