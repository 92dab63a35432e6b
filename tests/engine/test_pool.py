"""The pool of workers: what goes through shared memory, in which order, and what becomes of it when processes end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import from_json, to_json

from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.messages import Setups
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.data.scaled import Scaled
from edgefl.data.sources import Dataset, Split
from edgefl.engine import fork_server as fork_servers
from edgefl.engine import pool
from edgefl.engine.contract import in_order
from edgefl.engine.fork_server import ForkServer, fork_server
from edgefl.engine.inline import WINDOW, InlineEngine, cut, kind
from edgefl.engine.mailbox import LASTING, Reader, ServerMailbox, WorkerMailbox
from edgefl.engine.pool import PoolEngine
from edgefl.engine.shared_memory import SharedArena, SharedFile, share, shared
from edgefl.errors import EdgeflError, WireError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier
from edgefl.rng import generator
from edgefl.timing.spans import drain
from edgefl.wire.message import read_header
from edgefl.wire.payload import encode

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

TIERS = Tier(1.0), Tier(0.5), Tier(0.25)


def task_of(**options) -> Task:
    training = Training(epochs=options.pop("epochs", 1), batch_size=64, lr=0.05, momentum=0.9, weight_decay=0.0)
    return Task(0, "digits", None, "iid", 12, Architecture("mlp", (1, 8, 8), 10), training, **options)


def jobs_of(task: Task, many: int, first: int = 0, tiers: tuple[Tier, ...] = TIERS) -> list[Job]:
    """Return jobs of clients 0, 1, 2, …, of tiers that take turns; those of a tier share a payload."""
    method = create("heterofl")
    state = method.init(task.architecture, TIERS, generator(0, "init"))
    payloads = {tier: encode(method.submodel(state, tier, np.random.default_rng(0)).tensors) for tier in tiers}
    jobs = []
    for number in range(first, first + many):
        tier = tiers[number % len(tiers)]
        jobs.append(Job(1 + number // task.clients, number % task.clients, method, tier, payloads[tier]))
    return jobs


def inline(task: Task, jobs: list[Job], together: int = 1) -> list[Outcome]:
    with InlineEngine(Clients(task), together) as engine:
        return list(in_order(engine, jobs))


def taken_bytes(arena: SharedArena) -> int:
    return arena._size - sum(end - start for start, end in arena._gaps)


def pids(engine: PoolEngine) -> list[int]:
    return [worker.pid for worker in engine._live.values()]


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
        engine._give(engine._live[1], pool.Batch([0], jobs[:1]))
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


# Processes that end.


def script(code: str, tmp_path: Path, **options) -> subprocess.Popen:
    path = tmp_path / "script.py"
    path.write_text(
        f"import sys\nsys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}\nfrom test_pool import *\n{code}"
    )
    return subprocess.Popen([sys.executable, *options.pop("how", [str(path)])], stderr=subprocess.PIPE, text=True, **options)


RUN = "task = task_of(epochs={epochs})\nwith PoolEngine(task, 2, data=digits()) as engine:\n    list(in_order(engine, jobs_of(task, 4)))\n"


def test_a_script_needs_no_guard_nor_a_file(tmp_path):
    script(RUN.format(epochs=1), tmp_path, how=["-c", ""]).communicate()
    with (tmp_path / "script.py").open() as file:
        done = subprocess.run([sys.executable, "-"], check=False, stdin=file, stderr=subprocess.PIPE, text=True)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_script_that_defines_a_method_needs_a_guard(tmp_path):
    own = (
        "from edgefl.methods.heterofl import HeteroFL\n"
        "class Own(HeteroFL):\n    pass\n"
        "def jobs(task):\n    return [replace(job, method=Own(job.method.config)) for job in jobs_of(task, 2)]\n"
    )
    run = RUN.format(epochs=1).replace("jobs_of(task, 4)", "jobs(task)")
    with script(own + run, tmp_path) as bare:
        assert "must call edgefl under if __name__ == '__main__'" in bare.communicate()[1]
    guarded = "if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in run.splitlines())
    with script(own + guarded, tmp_path) as good:
        assert (good.communicate()[1], good.returncode) == ("", 0)


def running(run: subprocess.Popen) -> list[psutil.Process]:
    """Return the fork server and two workers at work of a script."""
    given_up_s = time.monotonic() + 60
    while time.monotonic() < given_up_s:
        family = psutil.Process(run.pid).children(recursive=True)
        if len(family) == 3 and sum(process.cpu_times().user > 0.5 for process in family) == 3:
            return family
        time.sleep(0.1)
    raise AssertionError("no workers")


def test_when_the_server_is_killed_nothing_stays(tmp_path):
    before = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    with script(RUN.format(epochs=100_000), tmp_path) as run:
        family = running(run)
        run.kill()
        assert run.communicate()[1] == ""
    assert psutil.wait_procs(family, timeout=30)[1] == []
    if before:
        assert {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_", "edgefl"))} <= before


def test_ctrl_c_ends_the_run_and_only_the_server_says_so(tmp_path):
    # What a shell starts in the background ignores the signal, and so does what that starts.
    heard = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    with script(heard + RUN.format(epochs=100_000), tmp_path, start_new_session=True) as run:
        family = running(run)
        os.killpg(run.pid, signal.SIGINT)
        errors = run.communicate()[1]
    assert errors.count("KeyboardInterrupt") == errors.count("Traceback") == 1
    assert psutil.wait_procs(family, timeout=30)[1] == []


# Memory.


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3_000_000)), max_size=40))
def test_regions_never_overlap_and_all_of_them_come_back(steps):
    arena, taken = SharedArena(), {}
    for number, (more, size) in enumerate(steps):
        if more:
            region = arena.allocate(size)
            assert region.size >= size
            arena.write(region.start, bytes([number]) * size)
            taken[number] = region, size
        elif taken:
            oldest = min(taken)
            region, length = taken.pop(oldest)
            assert arena.read(region.start, length) == bytes([oldest]) * length
            arena.free(region)
    for number, (region, length) in taken.items():
        assert arena.read(region.start, length) == bytes([number]) * length
        arena.free(region)
    assert taken_bytes(arena) == 0
    assert len(arena._gaps) == 1
    arena.close()


@pytest.fixture
def mail():
    server = ServerMailbox()
    reader = Reader()
    server.readers.append(reader)
    memory = SharedFile(os.dup(server.arena.fd))
    yield server, reader, WorkerMailbox(memory)
    memory.close()
    server.arena.close()


def test_jobs_that_share_bytes_get_one_object_for_as_long_as_the_server_has_it(mail):
    server, reader, worker = mail
    jobs = [replace(job, kept=kept) for job, kept in zip(jobs_of(task_of(), 4), (None, b"", b"mine", b"yours"), strict=True)]
    request = server.write_request(jobs, reader)
    read = worker.read_request(request.frame).jobs
    assert read == jobs
    assert read[0].payload is read[3].payload
    assert read[0].method is read[3].method
    server.release(request)
    again = server.write_request(jobs[:1], reader)
    assert worker.read_request(again.frame).jobs[0].payload is read[0].payload
    server.release(again)
    before = taken_bytes(server.arena)
    server.forget_payloads()
    assert taken_bytes(server.arena) <= before - sum(len(job.payload) for job in jobs[:3])
    other = replace(jobs[0], payload=bytes(len(jobs[0].payload)))
    request = server.write_request([other], reader)
    assert worker.read_request(request.frame).jobs[0].payload == other.payload
    assert list(worker._payloads.values()) == [other.payload]  # the worker forgot the rest


def test_payloads_that_nobody_waits_for_do_not_pile_up(mail):
    server, reader, worker = mail
    job = jobs_of(task_of(), 1)[0]
    for method, most in ((job.method, LASTING), (create("fedfomo"), 0)):
        for number in range(30):
            own = replace(job, method=method, payload=bytes([number]) * 1000)
            request = server.write_request([own], reader)
            assert worker.read_request(request.frame).jobs[0].payload == own.payload
            server.release(request)
        assert len(server._payloads) == most
        server.forget_payloads()
        assert len(worker._payloads) <= most + 1
    assert len(server._setups) <= LASTING


def test_an_answer_that_has_no_room_is_sent_once_and_has_room_from_then_on(mail):
    server, reader, worker = mail
    jobs = jobs_of(task_of(), 3)
    large = [
        Outcome(0, "trained", payload=bytes(300_000), kept=b"k" * 100_000, train_loss=float("nan")),
        Outcome(1, "crashed"),
        Outcome(2, "trained", payload=b"p"),
    ]
    for had_room in (False, True):
        request = server.write_request(jobs, reader)
        worker.read_request(request.frame)
        header, *rest = worker.write_answer(request.frame, large, [], 0.5)
        answer, _ = read_header(header, "outcomes")
        assert (answer["had_room"], answer["seconds"]) == (had_room, 0.5)
        assert len(rest) == (0 if had_room else 3)
        parts = iter(rest)
        outcomes = server.read_answer(request, answer, partial(next, parts))
        assert repr(outcomes) == repr(large)
        assert [(o.payload, o.kept) for o in outcomes] == [(o.payload, o.kept) for o in large]
        server.release(request)


def test_a_shared_data_set_is_the_same_and_cannot_be_written_to():
    whole = digits()
    image = Split(whole.train.x[:, :, ::-1], whole.train.y[::-1].copy())  # neither contiguous
    groups = {"train_owner": np.arange(len(whole.train)) % 2, "test_owner": np.arange(len(whole.test)) % 2}
    raw = [np.random.default_rng(n).integers(256, size=(n, 1, 8, 8), dtype=np.uint8) for n in (7, 3)]
    stored = [Split(Scaled(images, 0.3, 0.4), np.arange(len(images))) for images in raw]
    for data in (whole, replace(whole, train=image, **groups), replace(whole, train=stored[0], test=stored[1])):
        fd, fields = share(data)
        twin = shared(fd, from_json(to_json(fields)))
        assert isinstance(twin, Dataset)
        assert twin.apart()[0] == data.apart()[0]
        for name, array in data.apart()[1].items():
            copy = twin.apart()[1][name]
            assert (copy.dtype, copy.shape) == (array.dtype, array.shape)
            assert np.array_equal(copy, array)
            with pytest.raises(ValueError, match="read-only"):
                copy[0] = 0
        assert (twin.train_owner is None) == (data.train_owner is None)
        assert np.array_equal(twin.train.x[:2], data.train.x[:2])
        assert np.array_equal(np.asarray(twin.test.x), np.asarray(data.test.x))
    assert repr(Dataset.together(*whole.apart())) == repr(whole)


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


# The host.


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins nobody")
def test_workers_are_pinned_where_each_has_a_core():
    code = (
        "import os\nfrom edgefl.client.isolation.limits import keep_freed_memory, pin\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "assert pin(1, len(cores) + 1) is None and sorted(os.sched_getaffinity(0)) == cores\n"
        "assert pin(len(cores), len(cores)) == cores[-1] and os.sched_getaffinity(0) == {cores[-1]}\n"
        "print(keep_freed_memory())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() in ("True", "False")
