"""The accuracy of a client's network right after its local training: by hand, on every engine, and without a trace in the training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from client_records import client_record
from runs import lines_of, stopped_after
from torch import nn

from edgefl import RunConfig
from edgefl.client import evaluate
from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.stages.coded import Coded
from edgefl.client.training import Training
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.engine.contract import open_engine
from edgefl.methods.create import create
from edgefl.methods.personal import adapted
from edgefl.models.base import Architecture
from edgefl.records import Outcome, RoundRecord, Tier
from edgefl.run.prepare import prepare
from edgefl.server.client_store import ClientStore
from edgefl.wire.payload import encode, stored_tensors

# By hand -----------------------------------------------------------------------------------------------------------------------

RATE = 0.5
WEIGHTS = {
    "hidden.weight": [[1.0, -0.5], [-0.75, 0.25], [0.5, 1.0]], "hidden.bias": [0.1, -0.2, 0.0],
    "fc.weight": [[-0.5, 0.75, 0.25], [0.5, -0.25, -1.0]], "fc.bias": [0.0, -0.1],
}  # fmt: skip


class TwoLayers(nn.Module):
    """Two inputs, three hidden units, two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.fc = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(self.hidden(x).relu())


@dataclass(frozen=True)
class Small(Architecture):
    """The network as methods see it."""

    def build(self, width: float = 1.0) -> nn.Module:
        return TwoLayers()


def points(count: int, seed: int) -> Split:
    """Return points around (1, -1) and (-1, 1) in turns, far enough apart to learn and near enough to confuse some."""
    y = np.arange(count) % 2
    centres = np.array([[1.0, -1.0], [-1.0, 1.0]])[y]
    return Split((centres + np.random.default_rng(seed).normal(size=(count, 2))).astype(np.float32), y)


DATA = Dataset("points", "Points", points(12, 0), points(40, 1), ("a", "b"), {}, "mlp")
TASK = Task(0, "points", None, "iid", 1, Small("mlp", (2,), 2), Training(1, 12, RATE, 0.0, 0.0, "sgd"))


def stepped(weights: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights after one step on all samples, in float64."""
    w1, b1, w2, b2 = weights.values()
    before = x @ w1.T + b1
    hidden = np.maximum(before, 0)
    logits = hidden @ w2.T + b2
    chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    off = (chances - np.eye(2)[y]) / len(y)
    back = (off @ w2) * (before > 0)
    gradients = (back.T @ x, back.sum(0), off.T @ hidden, off.sum(0))
    return {name: w - RATE * g for (name, w), g in zip(weights.items(), gradients, strict=True)}


def share_right(weights: dict[str, np.ndarray], split: Split) -> float:
    w1, b1, w2, b2 = weights.values()
    return float(((np.maximum(split.x @ w1.T + b1, 0) @ w2.T + b2).argmax(1) == split.y).mean())


@pytest.mark.parametrize("name", ["fedper", "fedavg"])
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_it_is_that_of_the_trained_network(name, codec):
    method, clients = create(name), Clients(replace(TASK, stages=(Coded(codec),)), DATA)
    start = {key: np.array(value) for key, value in WEIGHTS.items()}
    tensors = {key: torch.tensor(value) for key, value in WEIGHTS.items()}
    personal = {key for key in tensors if name == "fedper" and key.startswith("fc")}
    sent, kept = ({key: t for key, t in tensors.items() if (key in personal) == on} for on in (False, True))
    job = Job(1, 0, method, Tier(1.0), encode(sent), encode(kept) if kept else None)
    own, held_out = clients.shards.train(0), clients.shards.test(0)
    after = stepped(start, own.x.astype(np.float64), own.y)
    found = clients.run(replace(job, eval_after_training=True))
    assert found.accuracy_after_training == share_right(after, held_out)
    assert share_right(start, held_out) < found.accuracy_after_training < 1
    assert replace(found, accuracy_after_training=None) == clients.run(job)


def test_a_client_that_diverges_has_none():
    job = Job(1, 0, create("fedavg"), Tier(1.0), encode({key: torch.tensor(value) * 1e30 for key, value in WEIGHTS.items()}))
    found = Clients(TASK, DATA).run(replace(job, eval_after_training=True))
    assert (found.status, found.accuracy_after_training) == ("diverged", None)


def test_a_round_has_the_mean_over_the_clients_that_trained():
    def record(client: int, status: str, accuracy: float | None = None) -> Any:
        found = client_record(client, "board", status)
        return (
            found if found.outcome is None else replace(found, outcome=replace(found.outcome, accuracy_after_training=accuracy))
        )

    ended = [record(0, "trained", 0.5), record(1, "crashed"), record(2, "late"), record(3, "trained", 1.0), record(4, "refused")]
    line = RoundRecord(1, tuple(ended), 1.0, 1.0, {"global": 0.25}, 1.0)
    assert line.accuracy_after_training == 0.75
    assert line.to_json()["accuracy_after_training"] == 0.75
    assert line.to_json()["accuracy"] == {"global": 0.25}
    nobody = replace(line, clients=(record(0, "trained"), record(1, "crashed")))
    assert nobody.accuracy_after_training is None
    assert "accuracy_after_training" not in nobody.to_json()


# Networks of every kind ---------------------------------------------------------------------------------------------------------

KEYS: dict[str, Any] = {
    "profile": "lab", "conditions": "ideal", "rounds": 2, "clients": 4, "per_round": 3, "local_epochs": 2, "data_share": 0.5,
    "model": "mlp", "seed": 1, "eval_samples": 20,
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "more"),
    [("pfedpara", {}), ("per-fedavg", {"objective": "prox"}), ("standalone", {}), ("heterofl", {"model": "cnn-digits", "norm": "static"}),
     ("flanc", {}), ("factorized-fl", {})],
)  # fmt: skip
@pytest.mark.parametrize("together", [False, True])
def test_it_is_that_of_the_tensors_that_were_sent_and_stored(method, more, together, tmp_path):
    """Statistics of static norms come from the client's own samples, and Per-FedAvg adapts before it is used."""
    run = prepare(RunConfig.of({**KEYS, "method": method, "eval_after_training": True, **more}))
    jobs, outcomes = [], list[Outcome]()

    class Recorded:
        def map(self, given):
            jobs[:] = given
            outcomes[:] = run.clients.run_all(jobs) if together else map(run.clients.run, jobs)
            return enumerate(outcomes)

    _, record = run.round(run.start(), Recorded(), ClientStore(tmp_path / "clients.sqlite"))
    for job, outcome in zip(jobs, outcomes, strict=True):
        own = run.clients.shards.train(job.client)
        stored = stored_tensors(outcome.kept, "kept") if outcome.kept else {}
        network = run.method.network(run.architecture, job.tier)
        network.load_state_dict({**stored_tensors(outcome.payload, "sent"), **stored})
        network = evaluate.with_statistics(network, [own], run.config.batch_size)
        network = adapted(run.method, network, torch.from_numpy(own.x), torch.from_numpy(own.y))
        assert outcome.accuracy_after_training == evaluate.accuracy(network, run.clients.shards.test(job.client))
    found = [outcome.accuracy_after_training for outcome in outcomes]
    assert record.accuracy_after_training == fmean(found)


# Runs ---------------------------------------------------------------------------------------------------------------------------


def figures_of(folder: Path, **keys: Any) -> list[float | None]:
    """Return each round's accuracy after training."""
    run = prepare(RunConfig.of({**KEYS, "method": "fedper", **keys}))
    found, state = [], run.start()
    with open_engine(str(run.config.engine), run.config.workers, run.clients) as engine, ClientStore(folder / "kept") as store:
        for _ in range(run.config.rounds):
            state, record = run.round(state, engine, store)
            store.commit(record.round)
            found.append(record.accuracy_after_training)
    return found


ENGINES = {
    "pool": {"engine": "pool", "workers": 2}, "group": {"engine": "group"}, "onnx": {"runtime": "onnx"},
    "hard": {"enforce": "hard", "rounds": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_finds_the_same(name, tmp_path):
    expected = figures_of(tmp_path)
    assert None not in expected
    found = figures_of(tmp_path / name, **ENGINES[name])
    exact = name in ("pool", "hard")  # the others round otherwise
    assert found == (expected[: len(found)] if exact else pytest.approx(expected, abs=0.005))


def test_a_codec_that_loses_changes_the_aggregate_and_not_what_was_trained(tmp_path):
    exact, lossy = (figures_of(tmp_path / codec, codec=codec, rounds=1) for codec in ("fp32", "int8"))
    assert exact == lossy


@pytest.mark.parametrize(
    ("keys", "rounds"),
    [
        ({}, [2, 3]), ({"eval_after_training": False}, []), ({"method": "fedavg"}, []),
        ({"method": "fedavg", "eval_after_training": True}, [2, 3]),
    ],
    ids=["personalised", "not wanted", "one model", "asked for"],
)  # fmt: skip
def test_evaluated_rounds_of_personalised_methods_have_it_and_others_if_asked(keys, rounds, tmp_path):
    config = RunConfig.of({**KEYS, "method": "fedper", "rounds": 3, "eval_every": 2, **keys})
    lines = lines_of(stopped_after(config, tmp_path / "run", 3))
    assert [line["round"] for line in lines if "accuracy_after_training" in line] == rounds
    assert [line["round"] for line in lines if line["accuracy"]] == [2, 3]


def test_it_leaves_training_records_and_costs_as_they_are_and_resumes(tmp_path):
    config = {
        **KEYS,
        "method": "pfedpara",
        "profile": "phone",
        "conditions": "fleet",
        "per_round": 2,
        "rounds": 3,
        "eval_every": 2,
    }
    on, off = (RunConfig.of({**config, "eval_after_training": asked}) for asked in (True, False))
    whole, without = stopped_after(on, tmp_path / "on", 3), stopped_after(off, tmp_path / "off", 3)
    resumed = stopped_after(on, stopped_after(on, tmp_path / "resumed", 1), 3, resume=True)
    assert lines_of(resumed) == lines_of(whole)
    assert [{k: v for k, v in line.items() if k != "accuracy_after_training"} for line in lines_of(whole)] == lines_of(without)
    names = [sorted(path.name for path in folder.glob("checkpoints/*")) for folder in (whole, without, resumed)]
    assert names[0] == names[1] == names[2]  # which end in the hash of their content
