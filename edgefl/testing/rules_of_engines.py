"""Rules of engines, those of :mod:`edgefl.engine.contract`: jobs become outcomes, whatever runs them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from edgefl.client.client import Clients
from edgefl.client.folding import Sums
from edgefl.client.job import Job, Task
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.engine.contract import Capabilities, Engine, in_order, open_engine
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier
from edgefl.rng import generator
from edgefl.util.compute import one_thread
from edgefl.wire.message import Blob
from edgefl.wire.payload import encode

TIERS = Tier(1.0), Tier(0.5)
TASK = Task(0, "digits", None, "iid", 12, Architecture("mlp", (1, 8, 8), 10), Training(1, 64, 0.05, 0.9, 0.0))
WORKERS = 2


def jobs_of(count: int, method: str = "heterofl") -> list[Job]:
    """Return jobs of clients 0, 1, 2, …, of two tiers that take turns; those of a tier share a payload."""
    made = create(method)
    state = made.init(TASK.architecture, TIERS, generator(0, "init"))
    payloads = {tier: Blob(encode(dict(made.submodel(state, tier, np.random.default_rng(0)).tensors))) for tier in TIERS}
    tiers = [TIERS[number % 2] for number in range(count)]
    return [Job(1 + n // 12, n % 12, made, tier, payloads[tier]) for n, tier in enumerate(tiers)]


def opened(engine: str) -> AbstractContextManager[Engine]:
    """Return the engine with two workers, or in this process."""
    return open_engine(engine, 1 if engine == "inline" else WORKERS, Clients(TASK, digits()))


@pytest.fixture(scope="module")
def expected() -> list[Outcome]:
    """Return what becomes of each of 16 jobs, each on its own."""
    clients = Clients(TASK, digits())
    with one_thread():
        return [clients.run(job) for job in jobs_of(16)]


def assert_same(outcomes: list[Outcome], wanted: list[Outcome], engine: str) -> None:
    """Assert that outcomes have the same bits; of an engine that groups clients, the same losses except for rounding."""
    assert [o.client for o in outcomes] == [o.client for o in wanted], "outcomes are of other clients"
    if not Capabilities.of(engine).groups_clients:
        assert outcomes == wanted, "the outcome of a job has other bits than if the client runs alone"
    for one, other in zip(outcomes, wanted, strict=True):
        assert (one.status, one.steps, len(one.payload)) == (other.status, other.steps, len(other.payload))
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)


def test_every_job_has_one_outcome_and_the_caller_restores_the_order(engine: str, expected: list[Outcome]) -> None:
    """Every job has one outcome, with its number, and the same bits as if the client ran alone."""
    with opened(engine) as running:
        assert sorted(number for number, _ in running.map(jobs_of(16))) == list(range(16))
        assert_same(list(in_order(running, jobs_of(16))), expected, engine)
        assert list(in_order(running, [])) == []


def test_jobs_are_pulled_when_there_is_room(engine: str) -> None:
    """An engine pulls a job when a worker has room for it, not all at once."""
    pulled = 0

    def jobs() -> Iterator[Job]:
        nonlocal pulled
        for job in jobs_of(80):
            pulled += 1
            yield job

    with opened(engine) as running:
        outcomes = in_order(running, jobs())
        assert pulled == 0, "jobs are pulled before an outcome is asked for"
        next(outcomes)
        assert 1 <= pulled < 80, f"{pulled} of 80 jobs were pulled for the first outcome"
        assert 1 + len(list(outcomes)) == pulled == 80


def test_replacements_can_be_asked_for_in_the_middle_of_a_round(engine: str, expected: list[Outcome]) -> None:
    """``map`` can be called while another map is under way."""
    with opened(engine) as running:
        outcomes = in_order(running, jobs_of(8))
        first = [next(outcomes) for _ in range(3)]
        more = list(in_order(running, jobs_of(16)[12:]))  # while five are on their way
        assert_same([*first, *outcomes, *more], [*expected[:8], *expected[12:]], engine)


def test_any_job_can_run_again_to_the_same_bits(engine: str, expected: list[Outcome]) -> None:
    """A job that runs again has the same bits, unless the engine groups clients."""
    if Capabilities.of(engine).groups_clients:
        return
    with opened(engine) as running:
        again = [jobs_of(16)[number] for number in (3, 3, 0, 9, 3)]
        assert list(in_order(running, again)) == [expected[number] for number in (3, 3, 0, 9, 3)]


def test_sums_of_updates_are_those_of_one_process(engine: str, expected: list[Outcome]) -> None:
    """Updates that are added up, by the engine or by the server, have the same sums bit for bit, unless the engine groups clients."""
    jobs = [replace(job, weight=1 + number) for number, job in enumerate(jobs_of(16))]
    wanted, sums = (Sums(jobs[0].method, TASK.architecture) for _ in range(2))
    bare = [wanted.add(job, outcome) for job, outcome in zip(jobs, expected, strict=True)]
    with opened(engine) as running:
        assert_same(list(in_order(running, jobs, sums)), bare, engine)
    for tier, expected_sum in wanted.tiers.items():
        assert expected_sum.weight == sums.tiers[tier].weight, "an update is missing, or was added twice"
        if not Capabilities.of(engine).groups_clients:
            assert torch.equal(expected_sum.total.value(), sums.tiers[tier].total.value()), "the sum has other bits"


def test_a_cancelled_map_leaves_nothing_behind(engine: str, expected: list[Outcome]) -> None:
    """A map that is dropped early leaves no outcome in a later map, no open file, and no zombie."""
    before = set(psutil.Process().children())
    with opened(engine) as running:
        list(in_order(running, jobs_of(2)))
        files = open_files()
        outcomes = in_order(running, jobs_of(16))
        next(outcomes)
        del outcomes
        assert_same(list(in_order(running, jobs_of(16)[4:])), expected[4:], engine)
        assert open_files() <= files, "files stay open"
    left = [child for child in psutil.Process().children() if child not in before and child.status() == psutil.STATUS_ZOMBIE]
    assert not left, "a process has ended that nobody has waited for"


def open_files() -> int:
    """Return how many files this process has open; 0 where the system does not tell."""
    gc.collect()
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
