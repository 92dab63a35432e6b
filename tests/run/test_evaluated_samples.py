"""How many held-out samples a run is evaluated on."""

from __future__ import annotations

import pytest

from edgefl import RunConfig
from edgefl.run.prepare import prepare
from edgefl.run.trained import Trained, accuracies
from edgefl.server.client_store import ClientStore


@pytest.mark.parametrize(
    ("clients", "eval_samples", "of_each"), [(20, None, 200), (4, 300, 75), (10, 60, 50), (100, 20_000, 200), (400, 6_000, 60)]
)
def test_all_clients_together_have_as_many_of_their_own_as_are_asked_for(clients, eval_samples, of_each):
    config = RunConfig(clients=clients, eval_samples=eval_samples, partition="index:40", method="fedavg", model="mlp")
    clients = prepare(config).clients
    assert clients.task.test_samples == of_each
    assert max(len(clients.shards.test(client)) for client in range(3)) == of_each


def test_clients_with_models_of_their_own_are_evaluated_on_so_many(tmp_path, monkeypatch):
    config = RunConfig(clients=4, eval_samples=240, method="fedper", model="mlp", conditions="ideal", data_share=0.2)
    run, seen = prepare(config), []
    trained = Trained(run, run.start(), ClientStore(tmp_path / "clients.sqlite"))
    accuracies(trained, lambda split: seen.append(len(split)) or split)
    assert seen == [240, *[60] * 4]  # the first are looked at, not evaluated
