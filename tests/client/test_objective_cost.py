"""What a step under a local objective is predicted to hold and to send, against simulated clients: to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgefl.client.objective import objective_named
from edgefl.client.training import Training
from edgefl.config import RunConfig
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import ClientRecord, Cost, Tier
from edgefl.run.prepare import prepare
from edgefl.run.trained import engine_of, train
from edgefl.server.client_store import ClientStore
from edgefl.util.compute import one_thread

CLASSES = 10
# A fleet whose deadline leaves time for twice the bytes; two clients, because the second round has memories and variates to send.
RUN = {"profile": "lab", "clients": 2, "per_round": 2, "rounds": 2, "local_epochs": 1, "partition": "iid", "eval_samples": 8}
RUN |= {"data_share": 0.2}
PLAIN_STEPS = {"optimizer": "sgd", "weight_decay": 0.0}
CASES = {
    "fedavg": {"method": "fedavg"},
    "fedavg-prox": {"method": "fedavg", "objective": "prox"},
    "fedhm-prox": {"method": "fedhm", "objective": "prox", "tiers": (1.0, 0.5), "tier_assignment": "uniform"},
    "fedavg-dyn": {"method": "fedavg", "objective": "dyn", **PLAIN_STEPS},
    "fedavg-scaffold": {"method": "fedavg", "objective": "scaffold", **PLAIN_STEPS},
    "fedavg-scaffold-int8": {"method": "fedavg", "objective": "scaffold", "codec": "int8", **PLAIN_STEPS},
    "fedavg-prox-micro": {"method": "fedavg", "objective": "prox", "micro_batch": 8},
}


def played(case: str, folder: Path) -> tuple[dict[Tier, Cost], list[ClientRecord]]:
    """Return the plan's costs and how every client's part in two rounds ended; every shard has a whole batch and more."""
    with one_thread():
        run = prepare(RunConfig.of({**RUN, "conditions": "ideal", **CASES[case]}))
        shards = run.clients.shards
        assert min(map(shards.size, range(len(shards)))) >= run.config.batch_size
        with engine_of(run) as engine:
            outcomes = [o for _, _, record in train(run, engine, ClientStore(folder / "clients.sqlite")) for o in record.clients]
    assert len(outcomes) == 4
    assert all(outcome.status == "trained" for outcome in outcomes)
    return dict(run.plan.costs), outcomes


@pytest.mark.parametrize("case", CASES)
def test_clients_hold_and_send_what_was_planned(case, tmp_path):
    costs, outcomes = played(case, tmp_path)
    for expected, outcome in ((record.expected, record.outcome) for record in outcomes):
        cost = costs[expected.tier]
        # A prediction counts the batch's mask of present labels, a byte per class, which lies outside of a client's meter.
        assert cost.training_memory_bytes - outcome.measured_training_memory_bytes in (0, CLASSES)
        assert cost.peak_activation_bytes_training - outcome.measured_peak_activation_bytes in (0, CLASSES)
        # What a record says was sent are lengths of payloads; control variates are half of them.
        assert (expected.download_bytes, expected.upload_bytes) == (cost.download_bytes, cost.upload_bytes)


ARCHITECTURE = Architecture("cnn-digits", (1, 8, 8), CLASSES)
PARAMETERS = 66154


@pytest.mark.parametrize(("objective", "copies"), [("none", 0), ("prox", 1), ("dyn", 2), ("scaffold", 2)])
def test_what_an_objective_holds_is_part_of_training_and_not_of_inference(objective, copies):
    training = replace(Training(1, 32), optimizer="sgd")
    plain = tier_cost(create("fedavg"), ARCHITECTURE, Tier(1.0), training)
    cost = tier_cost(create("fedavg"), ARCHITECTURE, Tier(1.0), training, objective=objective_named(objective, 0.1))
    assert plain.params == PARAMETERS
    assert cost.buffer_bytes == plain.buffer_bytes + copies * 4 * PARAMETERS
    assert cost.training_memory_bytes >= plain.training_memory_bytes + copies * 4 * PARAMETERS
    for name in ("params_inference", "macs_inference", "weights_bytes_inference", "inference_memory_bytes"):
        assert getattr(cost, name) == getattr(plain, name), name
    assert plain.weights_bytes_inference == 4 * PARAMETERS
    for name in ("macs_forward", "macs_backward", "macs_train_step", "uncounted_ops"):
        assert getattr(cost, name) == getattr(plain, name), name
    sent = 2 if objective == "scaffold" else 1
    assert cost.download_bytes - sent * 4 * PARAMETERS == pytest.approx(sent * 850, abs=sent * 250)
