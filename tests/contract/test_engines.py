"""The contract of an engine (edgefl.engine.contract), held against every engine, and against one whose jobs travel as messages."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest

from edgefl.client.client import Clients
from edgefl.client.job import Job
from edgefl.client.messages import Setups, read_jobs, read_outcomes, write_jobs, write_outcomes
from edgefl.data.digits import digits
from edgefl.engine.contract import MOST_LOSSES, Capabilities, in_order, open_engine
from edgefl.engine.inline import InlineEngine
from edgefl.engine.mailbox import Reader, ServerMailbox, WorkerMailbox
from edgefl.engine.pool import PoolEngine
from edgefl.engine.shared_memory import SharedFile
from edgefl.errors import EdgeflError, UnknownNameError, WireError
from edgefl.onnxgrad.roles import Roles
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Outcome
from edgefl.registry import engines
from edgefl.testing.rules_of_engines import *  # noqa: F403
from edgefl.testing.rules_of_engines import TASK, jobs_of, opened
from edgefl.wire.message import VERSION, read_message, write_message

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")

REMOTE = "remote"


def pytest_generate_tests(metafunc):
    """The rules, for every engine and for one whose jobs travel as messages."""
    if "engine" in metafunc.fixturenames:
        # tests/engine/test_ray.py has the engines that need a cluster.
        metafunc.parametrize(
            "engine", [*(name for name in engines.names() if not Capabilities.of(name).remote), REMOTE], scope="module"
        )


@pytest.fixture(scope="module", autouse=True)
def _remote() -> Iterator[None]:
    engines(REMOTE)(remote)
    yield
    engines._plugged.pop(REMOTE)


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
def remote(clients: Clients, workers: int) -> Iterator[Remote]:
    yield Remote(clients)


def test_engines_are_found_by_their_files():
    assert [name for name in engines.names() if name != REMOTE] == ["group", "inline", "pool", "ray", "ray-group"]
    assert Capabilities.of("pool") == Capabilities(shares_memory=True)
    with pytest.raises(UnknownNameError, match="unknown engine 'poll'; did you mean 'pool'"):
        open_engine("poll", 1, Clients(TASK, digits()))


def test_a_cancelled_map_leaves_no_payload_in_shared_memory():
    with opened("pool") as engine:
        list(in_order(engine, jobs_of(2)))
        taken = arena_bytes(engine)
        outcomes = in_order(engine, jobs_of(16))
        next(outcomes)
        del outcomes
        until = time.monotonic() + 60
        while arena_bytes(engine) > taken and time.monotonic() < until:
            list(in_order(engine, jobs_of(1)))  # a worker may still run an abandoned job, whose place is freed when it answers
        assert arena_bytes(engine) <= taken


def arena_bytes(engine: PoolEngine) -> int:
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
