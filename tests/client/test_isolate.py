"""Clients in processes of their own: what goes over a limit ends, nobody else notices, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgefl.client.client import Clients
from edgefl.client.isolation import isolate, limits
from edgefl.client.isolation.cgroup import Cgroup, cgroup_folder, sweep
from edgefl.client.isolation.isolate import check_limit, floor_bytes
from edgefl.client.isolation.limits import MIB, Guard
from edgefl.client.job import Job, Task
from edgefl.client.training import Training
from edgefl.engine import pool
from edgefl.engine.contract import in_order, open_engine
from edgefl.engine.fork_server import fork_server
from edgefl.engine.inline import InlineEngine
from edgefl.engine.pool import PoolEngine
from edgefl.errors import ConfigError, DataError, EdgeflError, WireError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier
from edgefl.rng import generator
from edgefl.wire.message import read_header
from edgefl.wire.payload import encode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is limited, and by what, is Linux's")

WIDE = Training(epochs=1, batch_size=480, lr=0.05, momentum=0.9, weight_decay=0.0)
NEED_BYTES = 30 * MIB  # of a step on 479 samples at once; half of them at a time need half


def task_of(enforce: str, model: str = "cnn-digits", training: Training = WIDE, **options) -> Task:
    architecture = Architecture(model, (1, 8, 8), 10)
    return Task(0, "digits", options.pop("data_dir", None), "iid", 3, architecture, training, enforce=enforce, **options)


def jobs_of(task: Task, count: int) -> list[Job]:
    """Return a job for each of ``count`` rounds, for clients 0, 1, 2, 0, …"""
    method, tier = create("fedavg"), Tier(1.0)
    state = method.init(task.architecture, (tier,), generator(0, "init"))
    payload = encode(method.submodel(state, tier, np.random.default_rng(0)).tensors)
    return [Job(1 + number, number % 3, method, tier, payload, micro_batch=240) for number in range(count)]


def inline(task: Task, jobs: list[Job]) -> list[Outcome]:
    with InlineEngine(Clients(replace(task, enforce="plan"))) as engine:
        return list(in_order(engine, jobs))


def test_what_takes_more_than_its_device_has_ends_and_the_others_get_the_same_bits():
    """RLIMIT_DATA and the watchdog each alone, side by side: both need seconds to start. Then the memory is back."""
    task = task_of("hard")
    jobs = [replace(job, memory_bytes=256.0 * MIB) for job in jobs_of(task, 6)]
    greedy = (1, 4, 5)
    for number in greedy:
        jobs[number] = replace(jobs[number], memory_bytes=4.0 * MIB, micro_batch=None)
    expected = inline(task, jobs)
    assert all(expected[number].measured_training_memory_bytes > NEED_BYTES for number in greedy)
    with ExitStack() as stack:
        engines = {guard: stack.enter_context(PoolEngine(task, 1, guard)) for guard in (Guard(True, False), Guard(False, True))}
        running = {guard: in_order(engine, jobs) for guard, engine in engines.items()}
        threads = [threading.Thread(target=next, args=(outcomes,)) for outcomes in running.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for guard, outcomes in running.items():
            rest = list(outcomes)  # all but the first
            for number, outcome in enumerate(rest, 1):
                if number not in greedy:
                    assert outcome == expected[number]
                    continue
                assert outcome.status == "out_of_memory"
                assert (outcome.client, outcome.steps, outcome.payload, outcome.kept) == (number % 3, 1, b"", b"")
                if guard.watchdog:
                    assert outcome.host_memory_bytes > 4 * MIB
        for worker in (process for engine in engines.values() for process in workers_of(engine)):
            assert worker.children() == []
            before = worker.memory_full_info().uss
            engine = next(engine for engine in engines.values() if worker in workers_of(engine))
            assert [o.status for o in in_order(engine, [jobs[1]] * 6)] == ["out_of_memory"] * 6
            assert worker.memory_full_info().uss < before + 2 * MIB  # six times 30 MiB were asked for


def workers_of(engine: PoolEngine) -> list[psutil.Process]:
    return [psutil.Process(worker.pid) for worker in engine._live.values()]


def test_the_watchdog_and_the_processor_limit_stop_who_goes_on_and_errors_pass_through(tmp_path):
    """With the kernel's files of a cgroup played by ordinary ones."""
    task = task_of("hard", "mlp", replace(WIDE, epochs=40), cpu_limit_s=1.0)
    jobs = [replace(job, memory_bytes=64.0 * MIB) for job in jobs_of(task, 5)]
    jobs[1] = replace(jobs[1], micro_batch=1)  # 19,160 passes: seconds on any processor
    jobs[2] = replace(jobs[1], client=jobs[2].client, memory_bytes=50_000.0)  # the first of them is too much
    jobs[4] = replace(jobs[4], payload=jobs[4].payload[:-1])
    with PoolEngine(task, 1, Guard(cgroups=tmp_path)) as engine:
        outcomes = in_order(engine, jobs)
        first, slow, large, fourth = (next(outcomes) for _ in range(4))
        with pytest.raises(WireError, match="client 1: the payload is not a valid safetensors file") as raised:
            next(outcomes)
        assert ["decode(job.payload" in note for note in raised.value.__notes__] == [True]
        (worker,) = workers_of(engine)
        cgroup = tmp_path / f"edgefl-{worker.pid}"
        assert (cgroup / "memory.max").read_text() == "max"  # lifted after training
        assert int((cgroup / "cgroup.procs").read_text()) > worker.pid
    assert (slow.status, slow.steps, slow.payload) == ("out_of_time", 0, b"")
    assert (large.status, large.steps, large.payload) == ("out_of_memory", 1, b"")
    assert 50_000 < large.host_memory_bytes < MIB
    assert [first, fourth] == inline(task, [jobs[0], jobs[3]])


def test_hard_limits_always_mean_processes():
    task = task_of("hard")
    clients = Clients(task)
    with open_engine("inline", 1, clients) as engine:
        assert isinstance(engine, PoolEngine)
    clients.task = task_of("meter")
    with open_engine("inline", 1, clients) as engine:
        assert isinstance(engine, InlineEngine)


def test_a_worker_that_cannot_load_its_data_says_why(tmp_path):
    task = replace(task_of("plan", data_dir=str(tmp_path)), dataset="fashion-mnist")
    with PoolEngine(task, 1) as engine, pytest.raises(DataError, match=str(tmp_path)):
        list(in_order(engine, jobs_of(task_of("plan"), 2)))


class Killer(threading.Thread):
    """Kills four clients of five at a random moment of its life, and after every forty of them a worker, until ``clients`` were killed."""

    def __init__(self, clients: int) -> None:
        super().__init__(daemon=True)
        self.clients, self.killed, self.workers_killed = clients, 0, 0
        self._doomed: dict[int, float] = {}  # every client seen → when it is to die; infinity: never
        self._rng = generator(0, "kill")
        self._first: dict[int, int] = {}  # worker → its first child
        self.workers: set[int] = set()
        self.stopped = False

    def run(self) -> None:
        while self.killed < self.clients and not self.stopped:
            time.sleep(0.005)
            if (server := fork_server()._common) is None:
                continue
            workers = set(children_of(server.process.pid))
            self.workers |= workers
            for maker, client in [(worker, client) for worker in workers for client in children_of(worker)]:
                if maker not in self._first:  # its first one measures: killing those would only make the test take longer
                    self._first[maker] = client
                    self._doomed[client] = float("inf")
                elif client not in self._doomed:
                    chosen, share = self._rng.random(2)
                    self._doomed[client] = time.monotonic() + 0.05 * share if chosen < 0.8 else float("inf")
                elif self._doomed[client] < time.monotonic():
                    self._doomed[client] = float("inf")
                    self.killed += kill(client)
            if self.workers_killed < self.killed // 40 and workers:
                self.workers_killed += kill(sorted(workers)[int(self._rng.integers(len(workers)))])

    @property
    def seen(self) -> set[int]:
        return self.workers | set(self._doomed)


def children_of(pid: int | str) -> list[int]:
    try:
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]
    except OSError:
        return []


def grandchildren_of(pid: int) -> list[int]:
    """Return the clients' processes of a run's: those of its fork server's workers."""
    return [client for forker in children_of(pid) for worker in children_of(forker) for client in children_of(worker)]


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_a_hundred_clients_killed_at_random_moments_leave_no_process_and_no_lost_round(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    fork_server().warm()  # stays for later engines
    task = task_of("hard", "mlp")
    pattern = [replace(job, memory_bytes=64.0 * MIB) for job in jobs_of(task, 3)]
    expected = inline(task, pattern)
    children, files = descendants(), open_files()
    killer, given = Killer(100), 0

    def jobs():
        nonlocal given
        while killer.is_alive() or given < 125:
            yield pattern[given % 3]
            given += 1

    with PoolEngine(task, 2) as engine:
        killer.start()
        try:
            outcomes = list(in_order(engine, jobs()))
        finally:
            killer.stopped = True
            killer.join()
    assert len(outcomes) == given
    crashed = [number for number, outcome in enumerate(outcomes) if outcome.status == "crashed"]
    assert 50 < len(crashed) <= 100  # who was killed after it had sent everything has not crashed
    assert killer.workers_killed == 2
    for number, outcome in enumerate(outcomes):
        gone = Outcome(pattern[number % 3].client, "crashed")
        assert outcome == (gone if number in set(crashed) else expected[number % 3])
    assert open_files() <= files
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []  # torch's cache
    deadline = time.monotonic() + 30
    while (left := alive(killer.seen) | descendants() - children) and time.monotonic() < deadline:
        # Whose worker was killed is waited for by the system's first process; a worker that was just hired in its place leaves by itself.
        time.sleep(0.05)
    assert not left


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if psutil.pid_exists(pid)}


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def open_files() -> int:
    gc.collect()  # what earlier tests left to be collected is none of ours
    return len(list(Path("/proc/self/fd").iterdir()))


def test_workers_that_die_over_and_over_end_the_run_with_a_reason(monkeypatch):
    monkeypatch.setattr(pool, "_TRIES", 2)
    monkeypatch.setattr(PoolEngine, "_read", lambda self, worker, message: kill(read_header(message, "worker")[0]["pid"]))
    task = task_of("plan")
    with PoolEngine(task, 1) as engine, pytest.raises(EdgeflError, match=r"a worker process died .* continue with --resume"):
        list(in_order(engine, jobs_of(task, 3)))


def test_when_the_run_is_killed_its_workers_and_clients_go_too():
    code = (
        f"import sys\nsys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]}\n"
        "from test_isolate import *\n"
        "if __name__ == '__main__':\n"
        "    task = task_of('hard', 'mlp', replace(WIDE, epochs=100_000))\n"
        "    with PoolEngine(task, 1) as engine:\n"
        "        list(in_order(engine, jobs_of(task, 2)))\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 60
        before: list[int] = []
        while not (clients := grandchildren_of(run.pid)) or clients != before:
            assert time.monotonic() < deadline
            before = clients
            time.sleep(0.5)  # what a worker measures first takes less
        family = psutil.Process(run.pid).children(recursive=True)
        assert len(family) == 3  # a fork server, the worker that it forked, and the client that this one forked
    finally:
        run.kill()
        run.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []


def test_less_memory_than_can_be_held_to_is_refused(monkeypatch):
    floor = floor_bytes()
    assert MIB <= floor <= 8 * MIB
    check_limit("phone", floor)
    with pytest.raises(
        ConfigError, match=f"enforce: hard cannot limit clock to 65,536 bytes of memory, expected at least {floor:,}"
    ):
        check_limit("clock", 65536.0)
    monkeypatch.delattr(os, "fork")
    with pytest.raises(ConfigError, match="enforce: hard needs processes that are forked"):
        check_limit("phone", 2.0**40)
    with pytest.raises(ConfigError, match="Windows"):
        PoolEngine(task_of("hard"), 1)


def cgroups(tmp_path: Path, controllers: dict[str, str]) -> tuple[Path, Path]:
    """Make a folder as a system has for cgroups, with ``controllers`` on in some of them; return it and a membership in /a/b."""
    for path in ("", "a", "a/b"):
        (tmp_path / "cgroup" / path).mkdir(exist_ok=True)
        (tmp_path / "cgroup" / path / "cgroup.subtree_control").write_text(controllers.get(path, "cpu"))
        (tmp_path / "cgroup" / path / "cgroup.procs").write_text("")
    (tmp_path / "membership").write_text("4:memory:/elsewhere\n0::/a/b\n")
    return tmp_path / "cgroup", tmp_path / "membership"


@pytest.mark.parametrize(
    ("controllers", "found"),
    [({"a/b": "cpu memory"}, "a/b"), ({"a": "memory pids"}, "a"), ({"": "memory"}, None), ({}, None)],
)
def test_cgroups_are_made_where_memory_is_delegated(tmp_path, controllers, found):
    root, membership = cgroups(tmp_path, controllers)
    assert cgroup_folder(root, membership) == (None if found is None else root / found)
    assert cgroup_folder(root, tmp_path / "absent") is None
    (tmp_path / "version1").write_text("4:memory:/\n")
    assert cgroup_folder(root, tmp_path / "version1") is None


def test_a_cgroup_limits_who_enters_says_whom_it_killed_and_goes(tmp_path, monkeypatch):
    cgroup = Cgroup.make(tmp_path)
    assert cgroup.folder == tmp_path / f"edgefl-{os.getpid()}"
    cgroup.enter(12345)
    written = {path.name: path.read_text() for path in cgroup.folder.iterdir()}
    assert written == {"memory.swap.max": "0", "memory.max": "12345", "cgroup.procs": str(os.getpid())}
    cgroup.limit("max")
    assert (cgroup.folder / "memory.max").read_text() == "max"
    assert not cgroup.killed()
    (cgroup.folder / "memory.events").write_text("max 3\noom 1\noom_kill 0\noom_group_kill 0\n")
    assert not cgroup.killed()
    (cgroup.folder / "memory.events").write_text("max 3\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert cgroup.killed()
    cgroup.remove()  # files cannot be removed with a folder, unlike the kernel's own
    for path in cgroup.folder.iterdir():
        path.unlink()
    (tmp_path / "edgefl-999999999").mkdir()
    (tmp_path / "edgefl-notes").mkdir()
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {cgroup.folder.name, "edgefl-notes"}
    cgroup.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["edgefl-notes"]


def test_a_client_in_a_cgroup_is_limited_by_it_and_what_the_kernel_kills_is_out_of_memory(tmp_path, monkeypatch):
    """In this process: the kernel's part is played by files, and what it would do by hand."""
    entered: list[tuple[int, int]] = []
    monkeypatch.setattr(Cgroup, "enter", lambda self, limit: entered.append((os.getpid(), limit)))
    baseline = isolate.Baseline(limits.Held(0, 0), 5 * MIB)
    with limits.limited(Guard(), Cgroup.make(tmp_path), 1, 7 * MIB + baseline.private_bytes):
        pass  # with a limit of one byte by RLIMIT_DATA nothing could be allocated
    assert entered == [(os.getpid(), 12 * MIB)]
    job = jobs_of(task_of("hard"), 1)[0]
    gone = isolate._outcome(job, isolate.Ended("crashed"), killed=True)
    assert gone == Outcome(job.client, "out_of_memory", steps=1)
