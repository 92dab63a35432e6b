"""Sums that workers make of their clients' updates: the same bits as one process has, whoever trained what, and whoever died."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from edgefl.client.client import Clients
from edgefl.client.folding import Sums
from edgefl.client.job import Job, Task
from edgefl.client.stages.coded import Coded
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.engine.contract import in_order
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.errors import AggregationError, EdgeflError, WireError
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.tier_sum import finish
from edgefl.models.base import Architecture
from edgefl.records import Tier, Update
from edgefl.rng import generator
from edgefl.util.compute import one_thread
from edgefl.wire.payload import decode, encode

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

TIERS = Tier(1.0), Tier(0.5)
TASK = Task(0, "digits", None, "classes:3", 12, Architecture("mlp", (1, 8, 8), 10), Training(1, 64, 0.05, 0.9, 0.0))
TASK = replace(TASK, stages=(Coded("int8"),))
METHOD = create("heterofl")
STATE = METHOD.init(TASK.architecture, TIERS, generator(0, "init"))
SENT = {tier: METHOD.submodel(STATE, tier, np.random.default_rng(0)) for tier in TIERS}
PAYLOADS = {tier: encode(sent.tensors) for tier, sent in SENT.items()}


def jobs_of(count: int) -> list[Job]:
    """Return jobs of two tiers that take turns, with weights of several sizes."""
    tiers = [TIERS[number % 2] for number in range(count)]
    return [Job(1, n % 12, METHOD, tier, PAYLOADS[tier], weight=n * n + 1) for n, tier in enumerate(tiers)]


def sums() -> Sums:
    return Sums(METHOD, TASK.architecture, TASK.stages)


def finished(of: Sums) -> dict[str, torch.Tensor]:
    return dict(finish(STATE, [(SENT[tier].places, total) for tier, total in of.tiers.items()]).tensors)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def clients() -> Clients:
    return Clients(TASK, digits())


@pytest.fixture(scope="module")
def wanted(clients):
    """The outcomes of 20 jobs with their updates, and the state after them, aggregated update by update."""
    with one_thread():
        outcomes = [clients.run(job) for job in jobs_of(20)]

    def updates():
        for job, outcome in zip(jobs_of(20), outcomes, strict=True):
            shapes = upload_shapes(METHOD, TASK.architecture, job.tier)
            tensors = decode(outcome.payload, shapes, "client", "int8")
            yield Update(job.client, job.tier, tensors, SENT[job.tier].places, job.weight, outcome.labels)

    weighing = type("Weighing", (type(METHOD),), {"weighs_samples": True})(METHOD.config)
    return outcomes, dict(weighing.aggregate(STATE, updates()).tensors)


def bare(outcomes):
    return [replace(outcome, payload=b"", summed_bytes=len(outcome.payload)) for outcome in outcomes]


def test_one_process_adds_up_what_it_trains(clients, wanted):
    total = sums()
    with one_thread():
        assert list(in_order(InlineEngine(clients), jobs_of(20), total)) == bare(wanted[0])
    assert [of.weight for of in total.tiers.values()] == [sum(n * n + 1 for n in range(start, 20, 2)) for start in (0, 1)]
    assert same(finished(total), wanted[1])


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_send_one_sum_per_tier_of_the_same_bits(workers, wanted, monkeypatch):
    received = []
    merge = Sums.merge
    monkeypatch.setattr(Sums, "merge", lambda self, rows, limbs: (received.append(len(rows)), merge(self, rows, limbs)))
    with PoolEngine(TASK, workers, data=digits()) as engine:
        for _ in range(2):
            total = sums()
            outcomes = list(in_order(engine, jobs_of(20), total))
            assert outcomes == bare(wanted[0])
            assert same(finished(total), wanted[1])
            assert 1 <= len(received) <= workers
            assert max(received) <= len(TIERS)
            received.clear()
        assert not any(worker.folded or worker.batches for worker in engine._live.values())


def test_what_a_killed_worker_had_added_up_is_trained_again(wanted, monkeypatch):
    """Killed in the middle, and before it is asked for its sums."""
    total, found, killed, collect = sums(), [], [], PoolEngine.collect

    def kill(engine: PoolEngine) -> None:
        while not (victims := [worker for worker in engine._live.values() if worker.folded]):
            engine.serve(None)
        killed.append(len(victims[0].folded))
        os.kill(victims[0].pid, signal.SIGKILL)

    monkeypatch.setattr(PoolEngine, "collect", lambda engine, fold: (killed[1:] or kill(engine), collect(engine, fold)))
    with PoolEngine(TASK, 2, data=digits()) as engine:
        for outcome in in_order(engine, jobs_of(20), total):
            found.append(outcome)
            if len(found) == 3 and not killed:
                kill(engine)
    assert len(killed) == 2
    assert found == bare(wanted[0])
    assert same(finished(total), wanted[1])


def test_a_map_that_is_dropped_leaves_no_sums_behind(wanted):
    with PoolEngine(TASK, 2, data=digits()) as engine:
        dropped = in_order(engine, jobs_of(20), sums())
        next(dropped)
        del dropped
        one, other = sums(), sums()
        first, second = in_order(engine, jobs_of(20), one), in_order(engine, jobs_of(20), other)
        for _ in range(20):
            assert next(first) == next(second)
        assert (list(first), list(second)) == ([], [])
        assert same(finished(one), wanted[1])
        assert same(finished(other), wanted[1])
        assert not any(worker.folded for worker in engine._live.values())


def test_what_a_worker_cannot_add_is_an_error():
    weightless = [replace(job, weight=0) if number == 5 else job for number, job in enumerate(jobs_of(8))]
    with PoolEngine(TASK, 2, data=digits()) as engine:
        with pytest.raises(AggregationError, match="client 5, tier 0.5: an update needs a positive number of samples, got 0"):
            list(in_order(engine, weightless, sums()))
        assert len(list(in_order(engine, jobs_of(4), sums()))) == 4


def test_a_client_that_did_not_train_is_in_no_sum(clients):
    small = [replace(job, memory_bytes=1.0) for job in jobs_of(2)]
    total, metered = sums(), Clients(replace(TASK, enforce="meter"), digits())
    assert [outcome.status for outcome in in_order(InlineEngine(metered), small, total)] == ["out_of_memory"] * 2
    assert not total.tiers


def test_processes_with_limits_of_clients_leave_the_sums_to_the_server():
    assert PoolEngine(TASK, 1).folds
    if Path("/proc").is_dir():
        assert not PoolEngine(replace(TASK, enforce="hard"), 1).folds


def test_sums_that_are_damaged_are_refused(clients):
    total = sums()
    with one_thread():
        list(in_order(InlineEngine(clients), jobs_of(2), total))
    rows, limbs = total.written()
    again = sums()
    again.merge(rows, limbs)
    assert same(finished(again), finished(total))
    for bad in ([limbs[0][:-8], *limbs[1:]], limbs[:-1], [limbs[0][:-1], *limbs[1:]]):
        with pytest.raises(WireError, match="the sum of a tier's updates cannot be read"):
            sums().merge(rows, bad)
    for bad in (["1", *rows[0][1:]], rows[0][:2], [*rows[0][:2], [1], rows[0][3]]):
        with pytest.raises((WireError, EdgeflError), match="the sum of a tier's updates cannot be read"):
            sums().merge([bad], limbs)
