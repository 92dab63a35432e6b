"""Play one run without a run folder, and say what came out: accuracies, costs of a client's round, totals."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgefl.config import RunConfig
from edgefl.records import RoundRecord, Tier
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.trained import Trained, of_clients, train
from edgefl.server import evaluate
from edgefl.server.client_store import ClientStore
from edgefl.util.compute import one_thread


def figures(settings: Mapping[str, Any], local: bool) -> dict[str, Any]:
    """Return the figures of a run in which nobody is lost, JSON-able and the same on every machine.

    ``accuracy`` maps "global" and every tier's label to a share in [0, 1], ``local_accuracy`` is the mean over clients (None unless
    asked for); ``tiers`` has what one client's round costs, at a mean number of samples; ``total`` is summed over all rounds;
    ``samples`` is the mean number per client.

    Raises:
        InputError: the settings are wrong.
        RuntimeError: a client was refused or diverged: its figures would not be those of the protocol.
    """
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        run = prepare(RunConfig.of({"conditions": "ideal", **settings}))
        store = ClientStore(Path(folder) / "clients.sqlite")
        records: list[RoundRecord] = []
        for phase, after, record in train(run, store):
            _check(record)
            records.append(record)
            run, state = phase, after
        trained = Trained(run, state, store)
        accuracy = dict(records[-1].accuracy)
        return {
            "accuracy": accuracy,
            "local_accuracy": _local(trained, accuracy) if local else None,
            "samples": run.plan.workload.mean_shard,
            "evaluated": len(run.test),
            "tiers": {tier.label: _costs(run, tier) for tier in run.tiers},
            "total": {key: sum(r.to_json()[key] for r in records) for key in ("download_bytes", "upload_bytes", "macs")},
        }


def _check(record: RoundRecord) -> None:
    for client in record.clients:
        if client.status != "trained":
            why = "; ".join(map(str, client.expected.refusal)) or "its loss is not finite"
            raise RuntimeError(f"round {record.round}, client {client.client}: {client.status}: {why}")


def _local(trained: Trained, accuracy: Mapping[str, float]) -> float:
    """Return the mean over clients: each evaluates the model that it uses, on held-out samples drawn as its own are."""
    run = trained.run
    if of_clients(run):
        return accuracy["global"]
    module = trained.module(run.method.global_tier(trained.state.model))
    tests = map(run.clients.shards.test, range(run.config.clients))
    shares = [evaluate.accuracy(module, test) for test in tests]
    return sum(shares) / len(shares)


def _costs(run: Run, tier: Tier) -> dict[str, int]:
    """Return what one client of ``tier`` needs: parameters, bytes of a round, MACs of a round and of a sample, activations."""
    plan = run.plan
    cost = plan.costs[tier]
    return {
        "params": cost.params,
        "download_bytes": cost.download_bytes,
        "upload_bytes": cost.upload_bytes,
        "macs_round": plan.macs(tier, plan.workload.mean_shard),
        "macs_forward": cost.macs_forward,
        "macs_inference": cost.macs_inference,
        "peak_activation_bytes_training": cost.peak_activation_bytes_training,
    }
