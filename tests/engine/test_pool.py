"""The pool of workers: outcomes in the order of the jobs, whatever ends, and batches that wait only so long."""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_jobs import TIERS, inline, jobs_of, pids, task_of

from edgefl import RunConfig
from edgefl.client.messages import Setups
from edgefl.data.digits import digits
from edgefl.engine import contract, pool
from edgefl.engine import fork_server as fork_servers
from edgefl.engine.contract import in_order
from edgefl.engine.fork_server import ForkServer, fork_server
from edgefl.engine.inline import WINDOW, cut, kind
from edgefl.engine.pool import PoolEngine
from edgefl.errors import EdgeflError, WireError
from edgefl.methods.create import create
from edgefl.records import Tier
from edgefl.timing.spans import drain

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")


@pytest.mark.parametrize(("workers", "together"), [(1, 1), (3, 1), (2, 4)])
def test_outcomes_are_those_of_one_process_in_the_order_of_the_jobs(workers, together):
    task = task_of()
    jobs = jobs_of(task, 30)
    expected = inline(task, jobs, together)
    with PoolEngine(task, workers, data=digits(), together=together) as engine:
        assert list(in_order(engine, jobs)) == expected
        assert list(in_order(engine, iter(jobs[:5]))) == inline(task, jobs[:5], together)
        assert list(in_order(engine, [])) == []


def test_jobs_are_made_when_there_is_room_and_few_are_alive():
    task, made = task_of(), 0

    def jobs():
        nonlocal made
        for job in jobs_of(task, 60, tiers=TIERS[:1]):
            made += 1
            yield job

    with PoolEngine(task, 2) as engine:
        outcomes = in_order(engine, jobs())
        assert made == 0
        for taken in count():
            if next(outcomes, None) is None:
                break
            assert made <= taken + 2 * (pool._MOST + 1)  # as short as these are
        assert taken == made == 60


@pytest.mark.parametrize(
    ("batch_s", "depth", "nap_s"), [(float("inf"), 2, 0), (1.0, 2, 0), (0.012, 3, 0.006), (0.006, 5, 0.009), (1e-4, 8, 3e-4)]
)
def test_short_batches_wait_in_larger_numbers_and_a_nap_leaves_a_worker_some(batch_s, depth, nap_s):
    engine = PoolEngine(task_of(), 2)
    engine._batch_s = batch_s
    assert engine._depth == depth
    assert engine._nap_s == pytest.approx(nap_s)
    assert engine._nap_s <= (depth - 2) * min(batch_s, 1)


def test_workers_go_on_while_the_server_is_at_work():
    task = task_of(epochs=3)
    jobs = jobs_of(task, 4, tiers=TIERS[:1])
    with PoolEngine(task, 1) as engine:
        outcomes = in_order(engine, jobs)
        next(outcomes)
        given_up_s = time.monotonic() + 60
        while engine._live[1].batches and time.monotonic() < given_up_s:  # two more, which it had by then
            time.sleep(0.05)
            engine.serve(0)
        assert not engine._live[1].batches
        assert len(list(outcomes)) == 3


def test_an_error_is_raised_in_its_turn_and_the_next_round_is_another_one():
    task = task_of()
    jobs = jobs_of(task, 9)
    expected = inline(task, jobs)
    bad = replace(jobs[4], payload=jobs[4].payload[:-1])
    with PoolEngine(task, 2) as engine:
        outcomes = in_order(engine, [*jobs[:4], bad, *jobs[5:]])
        assert [next(outcomes) for _ in range(4)] == expected[:4]
        with pytest.raises(WireError, match="not a valid safetensors file"):
            next(outcomes)
        half = in_order(engine, jobs)
        assert [next(half) for _ in range(2)] == expected[:2]
        del half  # what is on its way is of no use to anybody
        assert list(in_order(engine, jobs[3:])) == expected[3:]
        first, second = in_order(engine, jobs), in_order(engine, jobs[::-1])
        for one, other in zip(expected, expected[::-1], strict=True):
            assert (next(first), next(second)) == (one, other)
        assert (list(first), list(second)) == ([], [])
        assert not engine._mailbox._payloads


def test_what_is_killed_is_played_again_to_the_same_bits():
    task = task_of()
    jobs = jobs_of(task, 40)
    expected = inline(task, jobs)
    with PoolEngine(task, 2, data=digits(), together=2) as engine:
        outcomes = []
        for outcome in in_order(engine, jobs):
            outcomes.append(outcome)
            if len(outcomes) in (5, 20):
                os.kill(next(pid for pid in pids(engine) if pid), signal.SIGKILL)
            if len(outcomes) == 12:
                os.kill(fork_server()._common.process.pid, signal.SIGKILL)
    assert outcomes == inline(task, jobs, 2)
    assert len(outcomes) == len(expected)


def test_closing_does_not_wait_for_jobs():
    task = task_of(epochs=100_000)
    jobs = jobs_of(task, 4)
    with PoolEngine(task, 2) as engine:
        short = replace(task, training=replace(task.training, epochs=1))
        with PoolEngine(short, 1) as other:
            list(in_order(other, jobs))
        engine._give(engine._live[1], pool.JobBatch([0], jobs[:1]))
        while not all(pids(engine)):
            engine.serve(None)
        processes = [psutil.Process(pid) for pid in pids(engine)]
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 5
    assert not any(process.is_running() for process in processes)
    with pytest.raises(EdgeflError, match="the engine is closed"):
        list(in_order(engine, jobs))


def test_spans_come_with_the_number_of_the_worker():
    task = task_of()
    drain()
    with PoolEngine(task, 2) as engine:
        list(in_order(engine, jobs_of(task, 12)))
    spans = [span for span in drain() if span.name == "train"]
    assert len(spans) == 12
    assert {span.worker for span in spans} == {1, 2}


def test_each_worker_is_a_process_of_its_own_where_nothing_forks(monkeypatch):
    monkeypatch.setattr(fork_servers, "FORKS", False)
    own = ForkServer()
    monkeypatch.setattr(pool, "fork_server", lambda: own)
    task = task_of()
    jobs = jobs_of(task, 6)
    with PoolEngine(task, 2, data=digits()) as engine:
        outcomes = []
        for outcome in in_order(engine, jobs):
            outcomes.append(outcome)
            if len(outcomes) == 2:
                os.kill(next(pid for pid in pids(engine) if pid), signal.SIGKILL)
        assert outcomes == inline(task, jobs)
        assert own._common is None
    own.close()


def test_workers_are_prepared_early_for_runs_of_many_jobs(monkeypatch):
    started = []
    server = SimpleNamespace(warm=started.append, needless=False)
    monkeypatch.setattr(fork_servers, "fork_server", lambda: server)
    monkeypatch.setattr(contract, "usable_threads", lambda: 2)

    def prepare(**keys):
        config = RunConfig(**keys)
        contract.prepare_workers(config.engine, config.workers, config.enforce, config.free_jobs)

    prepare()
    assert started == [1]
    for keys in ({"rounds": 2}, {"per_round": 2}, {"workers": 1}, {"engine": "inline"}):
        prepare(**keys)
    server.needless = True
    prepare()
    server.needless = False
    monkeypatch.setattr(contract, "usable_threads", lambda: 1)
    prepare()
    assert started == [1]
    prepare(workers=3)
    assert started == [1, 3]


def test_a_process_that_was_started_early_for_nothing_is_stopped():
    server = ForkServer()
    server.warm()
    process = server._common.process
    server.stop_unused()
    assert process.poll() is not None
    assert server._common is None
    assert server.needless
    ours, theirs = socket.socketpair()
    with ours, theirs:
        server.start([theirs.fileno(), theirs.fileno(), theirs.fileno()])
        server.stop_unused()
        assert server._common is not None  # workers may come from it again
    server.close()


# Batches.


@given(st.lists(st.sampled_from("aaab"), max_size=60), st.integers(1, 5))
def test_batches_hold_every_item_once_and_wait_only_so_long(items, most):
    read = 0

    def source():
        nonlocal read
        for item in items:
            read += 1
            yield item

    seen: list[tuple[int, str]] = []
    for batch in cut(source(), most, str):
        assert 0 < len(batch) <= most
        assert len({item for _, item in batch}) == 1
        seen += batch
        assert read - len(seen) <= WINDOW * most
    assert sorted(seen) == list(enumerate(items))


def test_jobs_of_other_rounds_tiers_or_micro_batches_are_not_played_together():
    job = jobs_of(task_of(), 1)[0]
    others = {"round": 9, "tier": Tier(0.5), "micro_batch": 3, "method": create("fjord")}
    setups = Setups()
    assert all(kind(setups, replace(job, **{name: value})) != kind(setups, job) for name, value in others.items())
    assert kind(setups, replace(job, payload=b"", kept=b"", memory_bytes=1.0)) == kind(setups, job)
    assert kind(setups, replace(job, method=create("heterofl"))) == kind(setups, job)  # by content
