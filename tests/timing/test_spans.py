"""Spans: what is recorded, by whom, how seconds add up, and what the trace formats hold."""

from __future__ import annotations

import json
import os
import threading
import timeit
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import StorageError
from edgefl.timing import spans as tracing
from edgefl.timing.spans import STAGES, Span, absorb, drain, events, seconds, span
from edgefl.timing.stages import Stopwatch, TraceFile, added, check_trace, stages_of


@pytest.fixture(autouse=True)
def nothing_recorded():
    drain()
    yield
    drain()


def test_spans_come_back_once_in_the_order_in_which_they_end():
    with span("wait"), span("train", client=3):
        pass
    inner, outer = drain()
    assert [(s.name, dict(s.detail), s.worker, s.thread) for s in (inner, outer)] == [
        ("train", {"client": 3}, 0, ""),
        ("wait", {}, 0, ""),
    ]
    assert outer.start_s <= inner.start_s <= inner.end_s <= outer.end_s
    assert drain() == []


def test_a_block_that_raises_is_recorded_and_raises():
    with pytest.raises(KeyError), span("decode"):
        raise KeyError
    assert [s.name for s in drain()] == ["decode"]


def test_a_span_costs_no_more_than_a_few_objects():
    def one():
        with span("train", client=3):
            pass

    def other():
        return Fraction(3, 7)

    # The quickest of many short repeats, one of each in turn: what other programs do lengthens some of them.
    spans, fractions = zip(*((timeit.timeit(one, number=200), timeit.timeit(other, number=200)) for _ in range(50)), strict=True)
    assert min(spans) < 8 * min(fractions)


def test_threads_lose_nothing_and_have_their_own_names():
    def work():
        for _ in range(2000):
            with span("checkpoint"):
                pass

    threads = [threading.Thread(target=work, name=f"disk {n}") for n in range(4)]
    for thread in threads:
        thread.start()
    found = []
    while any(thread.is_alive() for thread in threads):
        found += drain()
    for thread in threads:
        thread.join()
    found += drain()
    assert len(found) == 8000
    assert {s.thread for s in found} == {f"disk {n}" for n in range(4)}


def test_what_nobody_drains_is_bounded(monkeypatch):
    monkeypatch.setattr(tracing, "_recorded", tracing.deque(maxlen=3))
    for n in range(5):
        with span("train", client=n):
            pass
    assert [s.detail["client"] for s in drain()] == [2, 3, 4]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a fork")
def test_a_forked_process_begins_with_nothing():
    with span("wait"):
        pass
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, str(len(drain())).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"0"
    assert len(drain()) == 1


def test_spans_of_a_worker_are_put_among_ours_under_its_number():
    absorb([Span("train", 1.0, 2.0)], worker=2)
    with span("wait"):
        pass
    assert [(s.name, s.worker) for s in drain()] == [("train", 2), ("wait", 0)]


def test_time_within_two_spans_counts_for_the_inner_one_only():
    spans = [Span("aggregate", 0, 10), Span("wait", 1, 6), Span("factorize", 1, 2), Span("encode", 3, 1), Span("decode", 8, 1)]
    assert seconds(spans) == {"factorize": 2, "encode": 1, "wait": 3, "decode": 1, "aggregate": 3}
    assert seconds(spans[::-1]) == seconds(spans)


def test_workers_and_threads_do_not_take_from_each_other():
    spans = [
        Span("wait", 0, 10),
        Span("train", 1, 5, worker=1),
        Span("train", 1, 5, worker=2),
        Span("checkpoint", 2, 3, thread="disk"),
    ]
    assert seconds(spans) == {"wait": 10, "train": 10, "checkpoint": 3}


def test_spans_that_touch_and_spans_of_no_length_nest_as_they_should():
    assert seconds([Span("encode", 0, 1), Span("decode", 1, 1)]) == {"encode": 1, "decode": 1}
    assert seconds([Span("wait", 0, 1), Span("train", 0, 1)]) == {"wait": 0, "train": 1}
    assert seconds([Span("wait", 0, 2), Span("train", 1, 0)]) == {"wait": 2, "train": 0}
    assert seconds([]) == {}


@given(
    st.recursive(
        st.just([]), lambda inner: st.lists(st.tuples(st.sampled_from(sorted(STAGES)), inner), max_size=4), max_leaves=20
    )
)
def test_stages_of_any_nesting_add_up_to_the_outermost_spans(tree):
    spans, clock = [], [0]

    def play(nodes):
        for name, inner in nodes:
            start = clock[0]
            clock[0] += 1
            play(inner)
            clock[0] += 1
            spans.append(Span(name, start, clock[0] - start))

    play(tree)
    assert sum(seconds(spans).values()) == clock[0] == 2 * len(spans)


def test_a_trace_names_processes_and_threads_and_counts_microseconds():
    spans = [Span("wait", 2.0, 0.5), Span("train", 2.1, 0.25, worker=1, detail={"client": 3}), Span("wait", 3.0, 0.5)]
    found = events(spans, set())
    complete = [event for event in found if event["ph"] == "X"]
    assert [(e["name"], e["pid"], e["ts"], e["dur"], e["args"]) for e in complete] == [
        ("wait", 0, 2e6, 5e5, {}),
        ("train", 1, 2.1e6, 2.5e5, {"client": 3}),
        ("wait", 0, 3e6, 5e5, {}),
    ]
    names = [(e["pid"], e["args"]["name"]) for e in found if e["name"] == "process_name"]
    assert names == [(0, "server"), (1, "worker 1")]
    assert {e["ph"] for e in found} == {"M", "X"}
    json.dumps(found, allow_nan=False)


def test_a_trace_file_is_readable_at_every_moment_and_strict_json_at_the_end(tmp_path):
    path = tmp_path / "trace.json"
    trace = TraceFile(path)
    assert json.loads(path.read_text() + "]") == []
    for n in range(3):
        trace.add([Span("train", n, 1, worker=n)] if n else [])
        assert len(json.loads(path.read_text() + "]")) == 4 * n
    trace.close()
    assert [e["pid"] for e in json.loads(path.read_text()) if e["ph"] == "X"] == [1, 2]
    TraceFile(path).close()
    assert json.loads(path.read_text()) == []


def test_a_trace_needs_a_folder_and_is_none(tmp_path):
    with pytest.raises(StorageError, match="is a folder; give the name of a file"):
        check_trace(tmp_path)
    with pytest.raises(StorageError, match="there is no folder"):
        check_trace(tmp_path / "missing" / "trace.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full")
def test_a_full_disk_says_so():
    with pytest.raises(StorageError, match="no space left on the device"):
        TraceFile(Path("/dev/full"))


def test_a_stopwatch_says_all_of_the_time_between_two_looks():
    with span("bundle"):
        pass  # of something else that this process did before
    with span("start"):
        pass
    watch = Stopwatch()
    with span("select"):
        pass
    first = watch.lap()
    assert list(first["server"]) == ["start", "select", "other"]
    second = watch.lap()
    assert list(second) == ["server"]
    assert list(second["server"]) == ["other"]


def test_stages_of_a_thread_add_up_to_the_time_that_passed():
    spans = [Span("select", 1.0, 2.0), Span("train", 0.0, 9.0, worker=3), Span("checkpoint", 0.5, 1.0, thread="disk")]
    found = stages_of(spans, 0.5, 4.0)
    assert found["server"] == {"select": 2.0, "other": 1.5}
    assert found["workers"] == {"3": {"train": 9.0}}
    assert found["background"] == {"checkpoint": 1.0}
    assert stages_of(spans, 0.5, 4.0, thread="disk")["server"]["checkpoint"] == 1.0


def test_parts_of_a_run_add_up_and_older_versions_have_none():
    part = {"server": {"wait": 1.5, "of a later version": 1.0}, "workers": {"10": {"train": 1.0}, "2": {"train": 2.0}}}
    found = added([part, {}, part])
    assert found == {"server": {"wait": 3.0, "of a later version": 2.0}, "workers": {"2": {"train": 4.0}, "10": {"train": 2.0}}}
    assert list(found["workers"]) == ["2", "10"]
    assert added([]) == {"server": {}}
