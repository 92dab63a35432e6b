"""Shared memory of the pool: regions that come back, payloads sent once, and data that cannot be written to."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pool_jobs import jobs_of, task_of
from pydantic_core import from_json, to_json

from edgefl.data.digits import digits
from edgefl.data.scaled import Scaled
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.engine.mailbox import LASTING, Reader, ServerMailbox, WorkerMailbox
from edgefl.engine.shared_memory import SharedArena, SharedFile, share, shared
from edgefl.methods.create import create
from edgefl.records import Outcome
from edgefl.wire.message import read_header

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers need Linux or macOS")


def taken_bytes(arena: SharedArena) -> int:
    return arena._size - sum(end - start for start, end in arena._gaps)


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
