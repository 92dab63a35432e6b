"""Logs of devices as traces: times of clocks, states that nothing ends, overlaps, and logs that are wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgefl.errors import ConfigError, DataError
from edgefl.fleet.trace import load_trace
from edgefl.fleet.trace_import import LogColumns, import_log

LOG = """\
device,from,to,state
b,2026-03-28T23:00:00,2026-03-29T06:00:00,eligible
a,2026-03-28T22:00:00,2026-03-29T01:00:00,idle
a,2026-03-29T00:30:00,2026-03-29T05:00:00,idle+charging+unmetered
a,2026-03-29T09:00:00,2026-03-29T10:00:00,none
"""


def log(folder: Path, text: str = LOG) -> Path:
    """Write a log."""
    (path := folder / "log.csv").write_text(text)
    return path


def test_a_log_becomes_a_trace_in_local_seconds_from_the_first_midnight(tmp_path):
    """On 2026-03-29 Berlin's clocks go forward at 2 o'clock: from 0:30 to 5:00 are three hours and a half."""
    found = import_log(log(tmp_path), LogColumns("device", zone="Europe/Berlin"))
    hours = [(row.device, row.from_s / 3600, row.to_s / 3600, row.state) for row in found.rows]
    assert hours == [
        ("a", 22, 24.5, "idle"),
        ("a", 24.5, 28, "idle+charging+unmetered"),
        ("a", 32, 33, "none"),
        ("b", 23, 29, "eligible"),
    ]
    assert (found.devices, found.overlaps, found.open_ended) == (("a", "b"), 1, 0)
    facts = dict(found.facts())
    assert facts["devices"] == "2"
    assert facts["days"] == "1.38, from 2026-03-28 00:00 (Europe/Berlin)"
    assert facts["eligible hours of a device"] == "median 4.75, 0 devices never"
    assert facts["gaps"] == "1, median 4 h; none of the states holds in them"
    assert facts["overlaps"] == "1; the earlier row ends where the later begins"
    (path := tmp_path / "trace.csv").write_text(found.text())
    trace = load_trace(path)
    assert trace.until(np.arange(2), 25 * 3600.0).tolist() == [28 * 3600, 29 * 3600]


def test_a_state_lasts_until_the_next_row_where_a_log_has_no_ends(tmp_path):
    events = "id,at,state\nx,1780264800,eligible\nx,1780268400,none\nx,1780272000,eligible\ny,1780268400,none\n"
    found = import_log(log(tmp_path, events), LogColumns("id", "unix", begin="at", zone="UTC"))
    assert [(row.device, row.from_s, row.to_s, row.state) for row in found.rows] == [
        ("x", 79_200, 82_800, "eligible"), ("x", 82_800, 86_400, "none"),
    ]  # fmt: skip
    assert found.open_ended == 2
    assert dict(found.facts())["left out"] == "2 last rows of devices, whose end no row tells"


def test_offsets_of_times_count_and_a_log_without_states_is_eligible(tmp_path):
    text = "id,from,to\nx,2026-06-01T22:00:00Z,2026-06-02T00:00:00+02:00\nx,2026-06-01T23:00:00Z,2026-06-01T23:30:00Z\n"
    with pytest.raises(DataError, match="line 2: to: expected a time after '2026-06-01T22:00:00Z'"):
        import_log(log(tmp_path, text), LogColumns("id"))
    (row,) = import_log(
        log(tmp_path, text.replace("+02:00", "Z").partition("\nx,2026-06-01T23")[0] + "\n"), LogColumns("id")
    ).rows
    assert (row.from_s, row.to_s, row.state) == (79_200, 86_400, "eligible")


@pytest.mark.parametrize(
    ("columns", "text", "message"),
    [
        ({"id": "devce"}, LOG, "line 1: expected a column 'devce', got device, from, to, state; did you mean 'device'?"),
        (
            {"time": "unix"},
            LOG,
            "line 2: from: expected seconds since 1970, got '2026-03-28T23:00:00'; --time iso reads the other form",
        ),
        ({}, LOG.replace("2026-03-28T22:00:00", "1780264800"), "line 3: from: expected a date and hour .* --time unix"),
        (
            {},
            LOG.replace("none", "asleep"),
            "line 5: state: expected states of a trace, such as idle.charging or eligible, got 'asleep'",
        ),
        ({}, LOG.replace("\nb,", "\n,"), "line 2: device: expected the name of a device, got ''"),
        ({}, "device,from\na,2026-03-28\n", "expected rows that end; got none: give --end"),
    ],
)
def test_a_log_that_is_wrong_is_one_message_with_line_and_remedy(columns, text, message, tmp_path):
    with pytest.raises(DataError, match=message):
        import_log(log(tmp_path, text), LogColumns(**{"id": "device", **columns}))


def test_an_unknown_zone_or_file_is_said(tmp_path):
    with pytest.raises(ConfigError, match="zone: expected a name of the tz database such as Europe/Berlin, got 'Berlin'"):
        import_log(log(tmp_path), LogColumns("device", zone="Berlin"))
    with pytest.raises(DataError, match="cannot be read as CSV"):
        import_log(tmp_path / "none.csv", LogColumns("device"))
