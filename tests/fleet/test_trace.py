"""Recorded availability: look-ups against a dictionary of seconds, and every way that a file can be wrong."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.errors import ConfigError, DataError
from edgefl.fleet.trace import load_trace
from edgefl.fleet.trace_file import CONDITIONS

HEADER = "client,from,to,state\n"
SMALL = (
    HEADER
    + "7,0,10,eligible\n7,10,15,idle+charging+unmetered\n3,5,20,eligible\n7,15,30,idle\n3,20,40,none\n7,30,40,charging+idle\n"
)


@pytest.fixture
def csv_file(tmp_path):
    def write(content: str | bytes, name: str = "trace.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def until(trace, clock_s: float, clients=(0, 1)) -> list[float]:
    return trace.until(np.array(clients, np.int64), clock_s).tolist()


def test_clients_are_taken_in_the_order_of_their_numbers_and_the_trace_repeats(csv_file):
    trace = load_trace(csv_file(SMALL))
    assert (trace.clients, trace.period_s) == (2, 40)
    assert until(trace, 0) == [0, 15]  # client 0 is the file's 3, client 1 its 7, whose two first intervals join
    assert until(trace, 5) == [20, 15]
    assert until(trace, 14.5, (0, 1, 2, 3, 1001)) == [20, 15, 20, 15, 15]
    assert until(trace, 15) == [20, 15]  # at its end it is over
    assert until(trace, 20) == [20, 20]
    assert until(trace, 45) == [60, 55]
    assert until(trace, 40 * 1000 + 7) == [40_020, 40_015]
    assert trace.until(np.array([0]), 5).dtype == np.float64


def test_other_conditions_may_be_asked_for(csv_file):
    path = csv_file(SMALL)
    assert until(load_trace(path, ("idle",)), 0) == [0, math.inf]  # the file's 7 is idle in all of its rows
    assert until(load_trace(path, ["idle"]), 16) == [20, math.inf]
    assert until(load_trace(path, ("charging", "idle")), 31) == [31, 55]
    assert until(load_trace(path, ("unmetered",)), 31) == [31, 31]


def test_stretches_join_across_the_repetition(csv_file):
    path = csv_file(
        HEADER + "0,0,10,eligible\n0,90,100,eligible\n1,0,100,eligible\n2,0,60,eligible\n2,60,100,eligible\n3,95,99,eligible\n"
    )
    trace = load_trace(path)
    clients = range(4)
    assert until(trace, 95, clients) == [110, math.inf, math.inf, 99]
    assert until(trace, 105, clients) == [110, math.inf, math.inf, 105]
    assert until(trace, 50, clients) == [50, math.inf, math.inf, 50]
    assert until(trace, 99.5, clients) == [110, math.inf, math.inf, 99.5]


def test_nobody_may_ever_be_eligible(csv_file):
    trace = load_trace(csv_file(HEADER + "0,0,10,none\n1,0,10,idle\n"))
    assert until(trace, 3) == [3, 3]


def test_columns_stand_in_any_order_and_others_are_passed_over(csv_file):
    text = "\ufeff state , note,to ,from,client\r\n idle+charging+unmetered , a note , 2.5,0.5 ,4\r\n\r\nnone,,9,8,4\r\n"
    trace = load_trace(csv_file(text))
    assert (trace.clients, trace.period_s, until(trace, 1)) == (1, 9, [2.5, 2.5])


STATES = ("eligible", "none", "idle", "charging+unmetered", "unmetered+idle+charging")


@st.composite
def recorded(draw):
    """Rows of up to four clients on whole seconds, shuffled, no two of a client overlapping."""
    rows = []
    for client in draw(st.sets(st.integers(0, 50), min_size=1, max_size=4)):
        times = sorted(draw(st.sets(st.integers(0, 30), min_size=2, max_size=8)))
        for begin, end in itertools.pairwise(times):
            if draw(st.booleans()):
                rows.append((client, begin, end, draw(st.sampled_from(STATES))))
    return draw(st.permutations(rows))


@given(rows=recorded().filter(bool), requires=st.sampled_from([CONDITIONS, ("idle",), ("charging", "unmetered")]))
@settings(max_examples=60, deadline=None)
def test_look_ups_are_those_of_a_dictionary_of_seconds(tmp_path_factory, rows, requires):
    path = tmp_path_factory.mktemp("trace") / "t.csv"
    path.write_text(HEADER + "".join(f"{c},{b},{e},{s}\n" for c, b, e, s in rows))
    trace = load_trace(path, requires)
    known = sorted({c for c, *_ in rows})
    period = max(e for _, _, e, _ in rows)
    holds: dict[tuple[int, int], bool] = {}
    for client, begin, end, state in rows:
        conditions = set(CONDITIONS) if state == "eligible" else set(state.split("+"))
        for second in range(begin, end):
            holds[client, second] = conditions >= set(requires)
    for clock in (*range(2 * period + 1), period * 100 + 3):
        found = trace.until(np.arange(len(known) + 2), clock)
        for i, until_s in enumerate(found):
            client, end = known[i % len(known)], clock
            while holds.get((client, end % period)) and end - clock <= period:
                end += 1
            expected = math.inf if end - clock > period else end
            assert until_s == expected, (client, clock)


ROW = "0,0,10,idle\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: client: expected columns client, from, to, state, each once, got nothing"),
        ("client,from,state\n", "line 1: to: expected columns client, from, to, state, each once, got 'client', 'from', 'state'"),
        ("Client,from,to,state\n", "line 1: client: expected columns .* got 'Client', 'from', 'to', 'state'; is 'Client' meant?"),
        ("client,from,to,to,state\n", "line 1: to: expected columns .* each once, got twice or more"),
        (HEADER, "t.csv: expected rows of client, from, to, state, got none"),
        (HEADER + ROW + "0,10,20\n", "line 3: expected 4 fields, as in line 1, got 3"),
        (HEADER + "\n" + ROW + "0,10,20,idle,x\n", "line 4: expected 4 fields, as in line 1, got 5"),
        (HEADER + ROW + "-1,10,20,idle\n", r"line 3: client: expected a whole number from 0 to 10\^18 - 1, got '-1'"),
        (HEADER + ROW + "1.5,10,20,idle\n", "line 3: client: expected a whole number .* got '1.5'"),
        (HEADER + ROW + ",10,20,idle\n", "line 3: client: expected a whole number .* got ''"),
        (HEADER + ROW + "1" * 19 + ",10,20,idle\n", "line 3: client: expected a whole number .* got '1111111111111111111'"),
        (HEADER + ROW + "٣,10,20,idle\n", "line 3: client: expected a whole number .* got '٣'"),
        (HEADER + ROW + "0,ten,20,idle\n", "line 3: from: expected seconds, a finite number from 0, got 'ten'"),
        (HEADER + ROW + "0,-1,20,idle\n", "line 3: from: expected seconds, a finite number from 0, got '-1'"),
        (HEADER + ROW + "0,nan,20,idle\n", "line 3: from: expected seconds, a finite number from 0, got 'nan'"),
        (HEADER + ROW + "0,10,inf,idle\n", "line 3: to: expected seconds, a finite number from 0, got 'inf'"),
        (HEADER + ROW + "0,10,2_0,idle\n", "line 3: to: expected seconds, a finite number from 0, got '2_0'"),
        (HEADER + ROW + "0,10,,idle\n", "line 3: to: expected seconds, a finite number from 0, got ''"),
        (HEADER + ROW + "0,20,10,idle\n", r"line 3: to: expected a time after from \(20\), got 10"),
        (HEADER + ROW + "0,10,10,idle\n", r"line 3: to: expected a time after from \(10\), got 10"),
        (
            HEADER + ROW + "0,10,20,asleep\n",
            "line 3: state: expected conditions out of idle, charging, unmetered, .* got 'asleep'",
        ),
        (HEADER + ROW + "0,10,20,idle+\n", r"line 3: state: expected .* got 'idle\+'"),
        (HEADER + ROW + "0,10,20,idle+none\n", r"line 3: state: expected .* got 'idle\+none'"),
        (HEADER + ROW + "0,10,20,\n", "line 3: state: expected .* got ''"),
        (
            HEADER + "0,0,10,idle\n1,0,50,idle\n0,9.5,20,none\n",
            "line 4: from: expected at least 10, the end of client 0's interval of line 2, got 9.5",
        ),
        (
            HEADER + "0,30,40,idle\n0,0,100,idle\n",
            "line 2: from: expected at least 100, the end of client 0's interval of line 3, got 30",
        ),
        (HEADER + ROW + '0,10,20,"idle\n', "line 3: not valid CSV: unexpected end of data"),
        (
            HEADER.encode() + b"0,0,1,idle\n0,1,2,\xff\xfeidle\n",
            r"line 3: expected UTF-8, got the bytes b'\\xff\\xfeidle",
        ),
        (
            (HEADER + "0,0,1,idle\n").encode() + b"\n" * 20_000 + b"\x80",
            "line 20003: expected UTF-8, got the bytes b'\\\\x80'",
        ),
    ],
)
def test_a_wrong_file_names_line_column_value_and_expectation(csv_file, content, message):
    path = csv_file(content, "t.csv")
    with pytest.raises(DataError, match=message) as error:
        load_trace(path)
    assert str(error.value).startswith(str(path))
    assert error.value.exit_code == 2


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="nowhere.csv: no such file"):
        load_trace(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="cannot be read"):
        load_trace(tmp_path)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ((), "requires: expected conditions out of idle, charging, unmetered, got none"),
        (("idle", "wifi"), "requires: .* got 'wifi'"),
    ],
)
def test_wrong_requirements(csv_file, requires, message):
    with pytest.raises(ConfigError, match=message):
        load_trace(csv_file(SMALL), requires)


def test_a_large_trace_is_looked_up_fast(tmp_path):
    """100,000 recorded clients, 1,000 look-ups of 1,000 clients: a scan of the rows would take minutes."""
    path = tmp_path / "large.csv"
    begins = np.arange(0, 600_000, 200_000)
    path.write_text(
        HEADER + "".join(f"{c},{b + c % 1000},{b + c % 1000 + 50_000},eligible\n" for c in range(100_000) for b in begins)
    )
    trace = load_trace(path)
    assert sum(a.nbytes for a in (trace.begins_s, trace.keys, trace.ends_s)) < 24 * 300_000
    clients = np.arange(0, 1_000_000, 1000)
    start = time.process_time()
    for round_ in range(1000):
        found = trace.until(clients + round_, 977.0 * round_)
    assert time.process_time() - start < 5
    assert found.shape == (1000,)


class TestParquet:
    @pytest.fixture
    def write(self, tmp_path):
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")

        def write(name: str = "trace.parquet", **changes):
            columns = {
                "state": ["eligible", "idle", "none"],
                "to": [10, 20.0, 5],
                "client": [4, 4, 9],
                "from": [0, 10.0, 1],
            } | changes
            path = tmp_path / name
            parquet.write_table(arrow.table({key: column for key, column in columns.items() if column is not None}), path)
            return path

        return write

    def test_it_gives_what_the_same_csv_gives(self, write, csv_file):
        rows = [line.split(",") for line in SMALL.splitlines()[1:]]
        client, begin, end, state = zip(*rows, strict=True)
        import pyarrow as arrow

        path = write(
            "trace",  # told by its first bytes
            client=arrow.array([int(c) for c in client], arrow.uint16()),
            **{"from": [float(b) for b in begin], "to": arrow.array([int(e) for e in end], arrow.int32())},
            state=arrow.array(state).dictionary_encode(),
        )
        ours, csvs = load_trace(path), load_trace(csv_file(SMALL))
        for clock in range(0, 90, 5):
            assert until(ours, clock) == until(csvs, clock)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"client": None}, "client: expected columns client, from, to, state, each once, got 'state', 'to', 'from'"),
            ({"client": [4, -1, 9]}, r"row 2: client: expected a whole number from 0 to 10\^18 - 1, got -1"),
            ({"client": [4, 4, 10**18]}, "row 3: client: expected a whole number .* got 1000000000000000000"),
            ({"client": [4.0, 4.0, 9.0]}, "client: expected a column of whole numbers, got one of double"),
            ({"client": [4, None, 9]}, "row 2: client: expected a whole number .* got null"),
            ({"from": [0, math.nan, 1]}, "row 2: from: expected seconds, a finite number from 0, got nan"),
            ({"from": ["0", "10", "1"]}, "from: expected a column of numbers, got one of string"),
            ({"to": [10, math.inf, 5]}, "row 2: to: expected seconds, a finite number from 0, got inf"),
            ({"to": [10, 20.0, 1]}, r"row 3: to: expected a time after from \(1\), got 1"),
            ({"to": [11, 20.0, 5]}, "row 2: from: expected at least 11, the end of client 4's interval of row 1, got 10"),
            ({"state": ["eligible", "idle", "asleep"]}, "row 3: state: expected conditions out of .* got 'asleep'"),
            ({"state": ["eligible", None, "idle"]}, "row 2: state: expected conditions out of .* got null"),
            ({"state": [1, 2, 3]}, "state: expected a column of text, got one of int64"),
            (
                {"state": ["idle"], "to": [2.0], "client": [1], "from": [3.0]},
                r"row 1: to: expected a time after from \(3\), got 2",
            ),
        ],
    )
    def test_a_wrong_file_names_row_column_value_and_expectation(self, write, changes, message):
        path = write(**changes)
        with pytest.raises(DataError, match=message) as error:
            load_trace(path)
        assert str(error.value).startswith(str(path))

    def test_no_rows(self, write):
        import pyarrow as arrow

        empty = {
            "client": arrow.array([], arrow.int64()),
            "from": arrow.array([], arrow.float64()),
            "to": arrow.array([], arrow.float64()),
        }
        with pytest.raises(DataError, match="expected rows of client, from, to, state, got none"):
            load_trace(write(**empty, state=arrow.array([], arrow.string())))

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
    def test_a_file_that_is_cut(self, write, share):
        path = write()
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        with pytest.raises(DataError, match="trace.parquet: not a whole Parquet file: "):
            load_trace(path)

    def test_a_file_that_was_changed(self, write):
        path = write()
        content = bytearray(path.read_bytes())
        for i in range(4, len(content) - 8, 3):  # wherever a byte is changed: read, or refused in words, never a traceback
            changed = bytearray(content)
            changed[i] ^= 0xFF
            path.write_bytes(changed)
            with contextlib.suppress(DataError):
                load_trace(path)

    def test_without_pyarrow_the_error_says_what_to_install(self, write, monkeypatch):
        path = write()
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(
            DataError, match=r"Parquet is read with pyarrow, which is not installed: pip install 'edgefl-sim\[trace\]'"
        ):
            load_trace(path)


def test_a_trace_in_unix_seconds_is_noticed(csv_file):
    path = csv_file(f"{HEADER}0,1767225600,1767229200,eligible\n1,1767222000,1767225600,eligible\n")
    with pytest.raises(DataError) as raised:
        load_trace(path)
    assert str(raised.value) == (
        f"{path}, line 3: from: the trace begins 56 years after the start of a run; seconds count from there, not from 1970: "
        "subtract 1767222000 from all of from and to, or use edgefl trace import"
    )
