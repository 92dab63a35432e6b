"""Clients trained together end where each ends alone, within the rounding of float32."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from edgefl.client.fast import grouping as together
from edgefl.client.fast.capture import CaptureError
from edgefl.config import RunConfig
from edgefl.methods.create import create
from edgefl.models import cnn
from edgefl.records import Expected, Outcome, Tier
from edgefl.registry import methods
from edgefl.run.prepare import prepare
from edgefl.server.exchange import Exchange
from edgefl.server.state import OpenSession
from edgefl.wire.payload import stored_tensors


def session_of(**changes):
    keys = {
        "dataset": "digits",
        "clients": 5,
        "local_epochs": 1,
        "rounds": 1,
        "partition": "dirichlet:0.5",
        "seed": 4,
        "model": "mlp",
    }
    return prepare(RunConfig.of({**keys, **changes}), required=False)


def jobs_of(run, tier, clients):
    exchange = Exchange(run.method, run.start(), run.rules, run.config.clients)
    for client in clients:
        _, payload = exchange.send(client, tier)
        yield exchange.job(OpenSession(1, 0, Expected(client, "laptop", "expected", tier)), payload, None)


def close(first: Outcome, second: Outcome, rtol=2e-5):
    assert replace(first, payload=b"", kept=b"", train_loss=None) == replace(second, payload=b"", kept=b"", train_loss=None)
    assert first.train_loss == pytest.approx(second.train_loss, rel=1e-4)
    for a, b in ((first.payload, second.payload), (first.kept, second.kept)):
        assert bool(a) == bool(b)
        if a:
            left, right = stored_tensors(a, "one"), stored_tensors(b, "other")
            assert left.keys() == right.keys()
            for name, tensor in left.items():
                torch.testing.assert_close(tensor, right[name], rtol=rtol, atol=rtol * float(tensor.abs().max()), msg=name)


@pytest.mark.parametrize("name", sorted(methods.names()))
def test_every_method_s_clients_end_where_they_end_alone(name, monkeypatch):
    # Rounding decides what a ReLU, a maximum or |μ| does with values next to a kink, and then more than the last bits differ.
    monkeypatch.setattr(cnn, "F", SimpleNamespace(relu=F.silu, max_pool2d=F.avg_pool2d))
    options = {"sparsity": 0.0} if "factorized" in name else {}
    method = create(name, options)
    keys = {"method": name, "method_options": options, "tiers": method.default_tiers}
    run = session_of(**keys, model="cnn-digits", partition="dirichlet:3", lr=0.003)
    tier = Tier(method.default_tiers[-1])
    jobs = list(jobs_of(run, tier, range(4)))
    found = run.clients.run_all(jobs)
    expected = [run.clients.run(job) for job in jobs]
    for one, other in zip(found, expected, strict=True):
        assert one.status == "trained"
        close(one, other)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_clients_of_different_sizes_take_their_own_batches(optimizer, epochs):
    run = session_of(method="fedavg", tiers=(1.0,), local_epochs=epochs, optimizer=optimizer, partition="dirichlet:0.3", lr=0.01)
    sizes = [run.clients.shards.size(client) for client in range(5)]
    assert len(set(sizes)) > 2
    jobs = list(jobs_of(run, Tier(1.0), range(5)))
    for one, other in zip(run.clients.run_all(jobs), map(run.clients.run, jobs), strict=True):
        close(one, other)


@pytest.mark.parametrize("objective", ["prox", "dyn"])
def test_each_client_has_its_own_terms(objective):
    run = session_of(method="fedavg", tiers=(1.0,), objective=objective)
    jobs = list(jobs_of(run, Tier(1.0), range(5)))
    for one, other in zip(run.clients.run_all(jobs), map(run.clients.run, jobs), strict=True):
        close(one, other)


def test_the_same_bundle_gives_the_same_bits_and_steps_are_really_taken_together(monkeypatch):
    taken = []
    original = together.captured_together
    monkeypatch.setattr(together, "captured_together", lambda *given: taken.append(len(given[2].batch.x)) or original(*given))
    run = session_of(method="fedhm", tiers=(1.0, 0.5))
    jobs = list(jobs_of(run, Tier(0.5), range(5)))
    first, second = run.clients.run_all(jobs), run.clients.run_all(jobs)
    assert first == second
    assert max(taken) == 5
    assert min(taken) >= 2


def test_what_cannot_be_taken_together_is_taken_alone(monkeypatch):
    def refuse(*given):
        raise CaptureError("no")

    monkeypatch.setattr(together, "captured_together", refuse)
    run = session_of(method="fedavg", tiers=(1.0,))
    jobs = list(jobs_of(run, Tier(1.0), range(3)))
    for one, other in zip(run.clients.run_all(jobs), map(run.clients.run, jobs), strict=True):
        close(one, other, rtol=1e-6)


def test_who_holds_more_than_its_device_has_is_left_out():
    run = session_of(method="fedavg", tiers=(1.0,))
    jobs = list(jobs_of(run, Tier(1.0), range(3)))
    jobs[1] = replace(jobs[1], memory_bytes=1000.0)
    found = run.clients.run_all(jobs)
    assert [one.status for one in found] == ["trained", "out_of_memory", "trained"]
    assert found[1] == run.clients.run(jobs[1])
    close(found[2], run.clients.run(jobs[2]))
