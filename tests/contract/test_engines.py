"""The contract of an engine (edgefl.engine.contract), held against every engine, and against one whose jobs travel as messages."""

from __future__ import annotations

import gc
import os
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.messages import Setups, read_jobs, read_outcomes, write_jobs, write_outcomes
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.engine.contract import MOST_LOSSES, Capabilities, in_order, open_engine
from edgefl.engine.inline import InlineEngine
from edgefl.engine.mailbox import Reader, ServerMailbox, WorkerMailbox
from edgefl.engine.pool import PoolEngine
from edgefl.engine.shared_memory import SharedFile
from edgefl.errors import EdgeflError, UnknownNameError, WireError
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.roles import Roles
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Outcome, Tier
from edgefl.registry import engines
from edgefl.rng import generator
from edgefl.util.compute import one_thread
from edgefl.wire.message import VERSION, Blob, read_message, write_message
from edgefl.wire.payload import encode

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

TIERS = Tier(1.0), Tier(0.5)
TASK = Task(
    0, "digits", None, "iid", 12, Architecture("mlp", (1, 8, 8), 10), Training(1, 64, 0.05, 0.9, 0.0)
)  # fmt: skip


def jobs_of(count: int, method: str = "heterofl") -> list[Job]:
    """Return jobs of clients 0, 1, 2, …, of two tiers that take turns; those of a tier share a payload."""
    made = create(method)
    state = made.init(TASK.architecture, TIERS, generator(0, "init"))
    payloads = {tier: Blob(encode(made.submodel(state, tier, np.random.default_rng(0)).tensors)) for tier in TIERS}
    tiers = [TIERS[number % 2] for number in range(count)]
    return [Job(1 + n // 12, n % 12, made, tier, payloads[tier]) for n, tier in enumerate(tiers)]


class Remote:
    """An engine as a network would have it: jobs and outcomes are messages, one job in each, answered last first, two at a time."""

    def __init__(self, clients: Clients) -> None:
        self.peer, self.setups = clients, Setups()
        self.lost: set[int] = set()  # clients whose first answer does not arrive

    def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
        waiting: list[tuple[int, bytes]] = []
        for number, job in enumerate(jobs):
            waiting.append((number, write_jobs([job], self.setups)))
            if len(waiting) == 2:
                yield from self.answers(waiting)
                waiting = []
        yield from self.answers(waiting)

    def answers(self, waiting: list[tuple[int, bytes]]) -> Iterator[tuple[int, Outcome]]:
        for number, message in reversed(waiting):
            jobs = read_jobs(message)
            if jobs[0].client in self.lost:
                self.lost.remove(jobs[0].client)
                yield number, Outcome(jobs[0].client, "lost")
            else:
                yield number, read_outcomes(write_outcomes(self.peer.run_all(jobs)))[0]


@contextmanager
def opened(name: str) -> Iterator[object]:
    clients = Clients(TASK, digits())
    if name == "remote":
        yield Remote(clients)
    else:
        with open_engine(name, 1 if name == "inline" else 2, clients) as engine:
            yield engine


ENGINES = [
    *(name for name in engines.names() if not Capabilities.of(name).remote),
    "remote",
]  # tests/engine/test_ray.py has others
ALIKE = [name for name in ENGINES if name == "remote" or not Capabilities.of(name).groups_clients]


@pytest.fixture(scope="module")
def expected() -> list[Outcome]:
    """What becomes of each of 16 jobs, each on its own."""
    clients = Clients(TASK, digits())
    with one_thread():
        return [clients.run(job) for job in jobs_of(16)]


def assert_same(found: list[Outcome], wanted: list[Outcome], name: str) -> None:
    assert [o.client for o in found] == [o.client for o in wanted]
    if name in ALIKE:
        assert found == wanted
    for one, other in zip(found, wanted, strict=True):
        assert (one.status, one.steps, len(one.payload)) == (other.status, other.steps, len(other.payload))
        assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)


def test_engines_are_found_by_their_files():
    assert engines.names() == ["group", "inline", "pool", "ray", "ray-group"]
    assert Capabilities.of("pool") == Capabilities(shares_memory=True)
    with pytest.raises(UnknownNameError, match="unknown engine 'poll'; did you mean 'pool'"):
        open_engine("poll", 1, Clients(TASK, digits()))


@pytest.mark.parametrize("name", ENGINES)
def test_every_job_has_one_outcome_and_the_caller_restores_the_order(name, expected):
    with opened(name) as engine:
        assert sorted(number for number, _ in engine.map(jobs_of(16))) == list(range(16))
        assert_same(list(in_order(engine, jobs_of(16))), expected, name)
        assert list(in_order(engine, [])) == []


@pytest.mark.parametrize("name", ENGINES)
def test_jobs_are_pulled_when_there_is_room(name):
    pulled = 0

    def jobs() -> Iterator[Job]:
        nonlocal pulled
        for job in jobs_of(80):
            pulled += 1
            yield job

    with opened(name) as engine:
        outcomes = in_order(engine, jobs())
        assert pulled == 0
        next(outcomes)
        assert 1 <= pulled < 80
        assert 1 + len(list(outcomes)) == pulled == 80


@pytest.mark.parametrize("name", ENGINES)
def test_replacements_can_be_asked_for_in_the_middle_of_a_round(name, expected):
    with opened(name) as engine:
        outcomes = in_order(engine, jobs_of(8))
        first = [next(outcomes) for _ in range(3)]
        more = list(in_order(engine, jobs_of(16)[12:]))  # while five are on their way
        assert_same([*first, *outcomes, *more], [*expected[:8], *expected[12:]], name)


@pytest.mark.parametrize("name", ALIKE)
def test_any_job_can_run_again_to_the_same_bits(name, expected):
    with opened(name) as engine:
        again = [jobs_of(16)[number] for number in (3, 3, 0, 9, 3)]
        assert list(in_order(engine, again)) == [expected[number] for number in (3, 3, 0, 9, 3)]


@pytest.mark.parametrize("name", ENGINES)
def test_a_cancelled_map_leaves_nothing_behind(name, expected):
    with opened(name) as engine:
        list(in_order(engine, jobs_of(2)))
        files, taken = open_files(), arena_bytes(engine)
        outcomes = in_order(engine, jobs_of(16))
        next(outcomes)
        del outcomes
        assert_same(list(in_order(engine, jobs_of(16)[4:])), expected[4:], name)
        assert open_files() <= files
        until = time.monotonic() + 10
        while arena_bytes(engine) > taken and time.monotonic() < until:
            list(in_order(engine, jobs_of(1)))  # a worker may still run an abandoned job, whose place is freed when it answers
        assert arena_bytes(engine) <= taken
    assert not [p for p in psutil.Process().children(recursive=True) if p.ppid() == os.getpid() and p.status() == "zombie"]


def open_files() -> int:
    gc.collect()
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def arena_bytes(engine: object) -> int:
    if not isinstance(engine, PoolEngine):
        return 0
    arena = engine._mailbox.arena
    return arena._size - sum(end - start for start, end in arena._gaps)


# Workers that are lost ---------------------------------------------------------------------------------------------------------


def test_a_lost_job_runs_elsewhere_and_keeps_its_place(expected):
    engine = Remote(Clients(TASK, digits()))
    engine.lost = {0, 5, 7, 11}
    assert list(in_order(engine, jobs_of(12))) == expected[:12]
    assert engine.lost == set()


def test_a_job_that_is_lost_over_and_over_ends_the_run():
    class Gone:
        def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
            for number, job in enumerate(jobs):
                yield number, Outcome(job.client, "lost")

    with pytest.raises(EdgeflError, match=f"client 0 was lost {MOST_LOSSES + 1} times: no worker can be reached"):
        list(in_order(Gone(), jobs_of(1)))


def test_an_engine_that_forgets_a_job_is_found_out():
    class Forgets(InlineEngine):
        def map(self, jobs: Iterable[Job]) -> Iterator[tuple[int, Outcome]]:
            return (one for one in super().map(jobs) if one[0] != 2)

    with pytest.raises(EdgeflError, match="ended without an outcome for 1 jobs"):
        list(in_order(Forgets(Clients(TASK, digits())), jobs_of(4)))


def test_what_a_killed_worker_had_runs_elsewhere_to_the_same_bits(expected):
    with opened("pool") as engine:
        found = []
        for outcome in in_order(engine, jobs_of(16)):
            found.append(outcome)
            if len(found) in (2, 8):
                os.kill(next(w.pid for w in engine._live.values() if w.pid), signal.SIGKILL)
        assert found == expected


def test_a_slow_peer_delays_nobody_but_its_own_jobs(expected):
    """One of two workers is stopped for a while: the other one trains, and the order stays."""
    with opened("pool") as engine:
        list(in_order(engine, jobs_of(4)))
        slow, quick = (worker.pid for worker in engine._live.values())
        os.kill(slow, signal.SIGSTOP)
        before_s = psutil.Process(quick).cpu_times().user
        waking = threading.Timer(1.0, os.kill, (slow, signal.SIGCONT))
        waking.start()
        started_s = time.monotonic()
        assert list(in_order(engine, jobs_of(16))) == expected
        assert time.monotonic() - started_s < 20
        assert psutil.Process(quick).cpu_times().user > before_s
        waking.join()


# Messages ----------------------------------------------------------------------------------------------------------------------


def damaged(content: bytes, how: str) -> bytes:
    if how == "version":
        return content[:4] + struct.pack("<H", VERSION + 1) + content[6:]
    if how == "truncated":
        return content[:-1]
    if how == "header":
        return content[:30]
    if how == "blob":
        return content[:-1] + bytes([content[-1] ^ 1])
    return b"PK" + content[2:] if how == "letters" else content + b"\0"


DAMAGES = {
    "version": f"a message of version {VERSION + 1}, expected {VERSION}: both ends must run the same release",
    "truncated": "a message is cut short",
    "header": "a message is cut short",
    "blob": "is damaged: its SHA-256 is",
    "letters": "no message of edgefl",
    "longer": "a message has .* bytes, expected",
}


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("kind", ["jobs", "outcomes"])
def test_a_damaged_message_is_refused(kind, how, expected):
    content, read = {
        "jobs": (write_jobs(jobs_of(2), Setups()), read_jobs),
        "outcomes": (write_outcomes(expected[:2]), read_outcomes),
    }[kind]
    read(content)
    with pytest.raises(WireError, match=DAMAGES[how]):
        read(damaged(content, how))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"jobs": [["0" * 64, "0" * 64, None, 1, 0, None, None]]}, "jobs cannot be read"),
        ({"jobs": 7}, "jobs cannot be read"),
        ({}, "jobs cannot be read"),
    ],
)
def test_a_message_whose_fields_are_wrong_is_refused(fields, message):
    with pytest.raises(WireError, match=message):
        read_jobs(write_message("jobs", fields))
    with pytest.raises(WireError, match="a message of kind 'jobs', expected 'outcomes'"):
        read_outcomes(write_message("jobs", fields))


def test_a_job_travels_whole():
    graphs = StepGraphs((b"one", b"two"), Roles(trained={"fc.weight": "p.0"}), (b"three",), b"four")
    jobs = [
        replace(
            job,
            kept=kept,
            memory_bytes=memory_bytes,
            micro_batch=micro_batch,
            graphs=graphs if micro_batch else None,
            eval_after_training=kept is None,
        )
        for job, kept, memory_bytes, micro_batch in zip(
            jobs_of(4, "fjord"),
            (None, b"", b"mine", b"mine"),
            (None, 1e9, float("inf"), 0.1 + 0.2),
            (None, 8, 3, None),
            strict=True,
        )
    ]
    content = write_jobs(jobs, Setups())
    assert read_jobs(content) == jobs
    fields, blobs = read_message(content, "jobs")
    assert len(blobs) == len(set(blobs)) == len({j.payload for j in jobs}) + 2 + 4 + 4  # b"" and b"mine", graphs, setups
    assert fields["kind"] == "jobs"


def test_an_outcome_travels_whole():
    values = (0.1 + 0.2, 1e-310, 1.7976931348623157e308, float("inf"), None)
    wanted = [Outcome(7, "trained", 3, value, 2**40, None, 5, b"payload", b"") for value in values]
    wanted += [replace(wanted[0], labels=labels) for labels in ((), (0,), (2, 3, 70_000))]
    wanted += [replace(wanted[0], accuracy_after_training=share) for share in (0.0, 0.1 + 0.2)]
    assert read_outcomes(write_outcomes(wanted)) == wanted
    for labels in ((0.5,), ("1",), (True,), 3):
        with pytest.raises(WireError, match="outcome"):
            read_outcomes(write_outcomes([replace(wanted[0], labels=labels)]))
    (nan,) = read_outcomes(write_outcomes([replace(wanted[0], train_loss=float("nan"))]))
    assert nan.train_loss != nan.train_loss


def test_a_blob_that_is_damaged_in_shared_memory_is_refused():
    server, reader = ServerMailbox(), Reader()
    memory = SharedFile(os.dup(server.arena.fd))
    try:
        request = server.write_request(jobs_of(1), reader)
        ((start, _),) = (place for shared in request.payloads for place in shared.places.values())
        server.arena.write(start + 100, b"\xff\x00")
        with pytest.raises(WireError, match="is damaged: its SHA-256 is"):
            WorkerMailbox(memory).read_request(request.frame)
        at, _, place, _ = request.frame
        server.arena.write(at + place + 4, struct.pack("<H", VERSION + 1))
        with pytest.raises(WireError, match="both ends must run the same release"):
            WorkerMailbox(memory).read_request(request.frame)
    finally:
        memory.close()
        server.arena.close()


def test_a_method_that_cannot_be_found_elsewhere_is_refused():
    class Local(type(jobs_of(1)[0].method)):
        pass

    job = jobs_of(1)[0]
    with pytest.raises(WireError, match="cannot be found in another process .* define it at the top of a module or script"):
        read_jobs(write_jobs([replace(job, method=Local(job.method.config))], Setups()))
