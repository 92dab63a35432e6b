"""Mirrored training samples: what reaches a step, the same in every engine and runtime, and nothing else is mirrored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after
from torch import Tensor, nn
from torch._subclasses import FakeTensor

from edgefl import RunConfig, simulate
from edgefl.client import evaluate
from edgefl.client.loop import LocalTraining, train
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.data.split import Split
from edgefl.errors import ConfigError
from edgefl.methods.create import create
from edgefl.methods.heterofl import HeteroFL
from edgefl.models import norm
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Expected, Tier
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.server.exchange import Exchange
from edgefl.server.state import OpenSession
from edgefl.wire.payload import stored_tensors

PLAIN = Training(epochs=2, batch_size=3, lr=0.1, momentum=0.0, weight_decay=0.0, optimizer="sgd")
KEYS = {
    "dataset": "digits", "model": "mlp", "method": "fedavg", "tiers": (1.0,), "clients": 4, "per_round": 2, "rounds": 2, "local_epochs": 2,
    "data_share": 0.2, "conditions": "ideal", "seed": 3, "augment": "flip",
}  # fmt: skip


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_batches_by_hand(micro_batch):
    """Samples 0 to 6 of two rows: sample i is (10i + 1, 10i + 2; 10i + 3, 10i + 4), negative for odd i."""
    x = torch.arange(7.0).view(7, 1, 1, 1) * 10 + torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    x[1::2] *= -1
    before, y = x.clone(), torch.arange(7) % 2
    seen = list[Batch]()

    def loss(module: nn.Module, batch: Batch) -> Tensor:
        seen.append(batch)
        return nn.functional.cross_entropy(module(batch.x.flatten(1)), batch.y)

    module = nn.Linear(4, 2)
    training = replace(PLAIN, micro_batch=micro_batch, lr=1e-9)
    rng, flips = generator(0, 5, 1, "train"), generator(0, 5, 1, "flip")
    local = LocalTraining(module, loss, x, y, torch.ones(2, dtype=torch.bool), training, rng, flips=flips)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-9)
    assert train(local, optimizer).steps == 6

    orders, mirrors = generator(0, 5, 1, "train"), generator(0, 5, 1, "flip")
    rows, labels, mirrored = [], [], []
    for _ in range(2):
        order, mirror = orders.permutation(7), mirrors.integers(2, size=7)
        labels += [int(i) % 2 for i in order]
        rows += [before[i, 0].numpy()[:, ::-1] if m else before[i, 0].numpy() for i, m in zip(order, mirror, strict=True)]
        mirrored.append({int(i) for i, m in zip(order, mirror, strict=True) if m})
    found = torch.cat([batch.x for batch in seen])
    np.testing.assert_array_equal(found[:, 0].numpy(), np.stack(rows))
    assert torch.cat([batch.y for batch in seen]).tolist() == labels
    assert mirrored[0] != mirrored[1]
    assert torch.equal(x, before)  # a client's own samples stay as they are


def test_half_of_the_samples_are_mirrored_anew_in_every_epoch():
    x = torch.arange(2.0).expand(2000, 1, 1, 2)
    local = LocalTraining(
        nn.Identity(),
        HeteroFL.local_loss,
        x,
        torch.zeros(2000, dtype=torch.int64),
        torch.ones(1),
        PLAIN,
        generator(0),
        flips=generator(1),
    )
    epochs = [torch.cat(list(local.epoch())) for _ in range(3)]
    for positions in epochs:
        assert sorted((positions % 2000).tolist()) == list(range(2000))
        assert abs(float(local.at(positions)[0][:, 0, 0, 0].mean()) - 0.5) < 0.05
    first, second = ({*positions.tolist()} for positions in epochs[:2])
    assert abs(len(first & second) - 1000) < 100


def job_of(run):
    exchange = Exchange(run.method, run.start(), run.rules, run.config.clients)
    payload = exchange.send(1, Tier(1.0))[1]
    return exchange.job(OpenSession(1, 0, Expected(1, "laptop", "expected", Tier(1.0))), payload, None)


def tensors(found):
    assert found.status == "trained"
    return stored_tensors(found.payload, "update")


def test_onnxruntime_and_groups_train_on_the_same_images():
    run, plain = (prepare(RunConfig.of({**KEYS, "augment": augment}), required=False) for augment in ("flip", "none"))
    job = job_of(run)
    alone, without = tensors(run.clients.run(job)), tensors(plain.clients.run(job_of(plain)))
    graphs = run.step_graphs(run.method, Tier(1.0))
    others = {
        "onnx": tensors(run.clients.run(replace(job, graphs=graphs))),
        "group": tensors(run.clients.run_all([job, replace(job, client=2)])[0]),
    }
    for name, tensor in alone.items():
        assert (tensor - without[name]).abs().max() > 1e-3
        for other in others.values():
            torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=1e-5)


def test_engines_and_a_resumed_run_have_the_same_bits(tmp_path):
    whole = stopped_after(RunConfig.of(KEYS), tmp_path / "whole", 2)
    pool = stopped_after(RunConfig.of({**KEYS, "engine": "pool"}), tmp_path / "pool", 2)
    again = stopped_after(RunConfig.of(KEYS), stopped_after(RunConfig.of(KEYS), tmp_path / "again", 1), 2, resume=True)
    for folder in (pool, again):
        assert lines_of(folder) == lines_of(whole)
        assert checkpoint_of(folder, 2).read_bytes() == checkpoint_of(whole, 2).read_bytes()


def test_only_steps_see_mirrored_images(tmp_path, monkeypatch):
    """Validation, test and the queries for static BatchNorm see samples as they are."""
    data = digits()
    known = {row.tobytes() for row in np.concatenate([np.asarray(data.train.x), np.asarray(data.test.x)])}
    steps, queries, evaluated = list[Tensor](), list[Tensor](), list[Tensor]()
    step, calibrate, outputs = HeteroFL.local_loss, norm.calibrate, evaluate.outputs

    def loss(self, module, batch):
        if not isinstance(batch.x, FakeTensor):  # costs are traced without values
            steps.append(batch.x.detach().clone())
        return step(self, module, batch)

    def queried(module, batches):
        calibrate(module, (queries.append(batch.clone()) or batch for batch in batches))

    def classified(module, x, *how, **keys):
        evaluated.append(torch.tensor(x))
        return outputs(module, x, *how, **keys)

    monkeypatch.setattr(HeteroFL, "local_loss", loss)
    monkeypatch.setattr(evaluate, "calibrate", queried)
    monkeypatch.setattr(evaluate, "outputs", classified)
    keys = {
        "method": "heterofl",
        "model": "cnn-digits",
        "norm": "static",
        "rounds": 1,
        "validation_share": 0.2,
        "enforce": "plan",
    }
    stopped_after(RunConfig.of({**KEYS, **keys}), tmp_path / "run", 1)

    def share(batches: list[Tensor]) -> float:
        rows = [row.tobytes() in known for batch in batches for row in batch.numpy()]
        assert len(rows) > 50
        return sum(rows) / len(rows)

    assert share(queries) == share(evaluated) == 1
    assert 0.3 < share(steps) < 0.7
    assert share(steps) + share([batch.flip(-1) for batch in steps]) >= 1


def test_a_flip_costs_nothing():
    architecture = prepare(RunConfig.of(KEYS), required=False).architecture
    costs = [
        tier_cost(create("fedavg"), architecture, Tier(1.0), replace(PLAIN, augment=augment)) for augment in ("none", "flip")
    ]
    assert costs[0] == costs[1]


def test_samples_that_are_no_images_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    data = digits()
    flat = [Split(np.asarray(split.x).reshape(len(split), 64), split.y) for split in (data.train, data.test)]
    monkeypatch.setattr("edgefl.run.prepare.load", lambda *given: replace(data, train=flat[0], test=flat[1]))
    expected = r"augment: got 'flip', expected 'none': samples of digits are of shape 64, no images \(channels x height x width\)"
    with pytest.raises(ConfigError, match=expected):
        simulate(RunConfig.of(KEYS), tmp_path / "run")
    assert not (tmp_path / "run").exists()
