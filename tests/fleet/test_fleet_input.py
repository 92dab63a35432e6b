"""Every wrong value that a user may give of the fleet's keys: one message that names it, exit status 2, and nothing written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from edgefl import RunConfig
from edgefl.errors import ConfigError, DataError, InputError
from edgefl.run.prepare import prepare
from edgefl.util.files import shared

QUICK = ["--model=mlp", "--clients=8", "--rounds=1", "--local-epochs=1"]
TIMES = ["deadline_s", "cpu_limit_s"]
NO_TIMES = {
    **{value: f"must be above 0, got {float(value):g}" for value in ("0", "-1", "-0.0")},
    **{value: f"must be a finite number, got {value}" for value in ("nan", "inf", "-inf")},
}
"""Text → the message if a file has it as a number."""


def refused(called: Any, *arguments: str) -> str:
    """Return the message with which the command line refuses ``arguments``, having written nothing."""
    code, output, errors = called(*arguments)
    assert (code, output) == (2, ""), errors
    lines = [line for line in errors.splitlines() if line and not line.startswith(("Usage:", "Try "))]
    assert len(lines) == 1, errors
    assert lines[0].startswith("Error: ")
    assert list(Path().iterdir()) == []
    return lines[0].removeprefix("Error: ")


WRONG: list[tuple[str, str, str]] = [
    ("conditions", "Fleet", "must be 'fleet' or 'ideal', got 'Fleet'"),
    ("over_selection", "0.9", "must be at least 1, got 0.9"),
    ("over_selection", "0", "must be at least 1, got 0"),
    ("over_selection", "-2", "must be at least 1, got -2"),
    ("over_selection", "11", "must be at most 10, got 11"),
    ("over_selection", "nan", "must be a finite number, got nan"),
    ("over_selection", "inf", "must be a finite number, got inf"),
    ("eligible_when", "idle,idle", "expected some of idle, charging, unmetered, each once"),
    ("eligible_when", "asleep", "must be 'idle', 'charging' or 'unmetered', got 'asleep'"),
    ("eligible_when", "", "must be 'idle', 'charging' or 'unmetered', got ''"),
    ("start_hour", "24", "must be below 24, got 24"),
    ("start_hour", "-1", "must be at least 0, got -1"),
    ("start_hour", "nan", "must be a finite number, got nan"),
    ("mode", "asynchronous", "must be 'sync' or 'async', got 'asynchronous'"),
    ("staleness_power", "-0.5", "must be at least 0, got -0.5"),
    ("staleness_power", "inf", "must be a finite number, got inf"),
    ("enforce", "soft", "must be 'plan', 'meter' or 'hard', got 'soft'"),
    ("on_shortfall", "tier,tier", "expected each step once, and refuse or send last, got tier, tier"),
    ("on_shortfall", "send,tier", "expected each step once, and refuse or send last, got send, tier"),
    ("on_shortfall", "refuse,send", "expected each step once, and refuse or send last, got refuse, send"),
    ("on_shortfall", "split", "must be 'micro-batch', 'recompute', 'tier', 'refuse' or 'send', got 'split'"),
]


@pytest.mark.parametrize(("key", "value", "expected"), WRONG)
def test_a_wrong_value_of_a_key_is_refused(key: str, value: str, expected: str, called: Any) -> None:
    message = refused(called, "simulate", *QUICK, f"--{key.replace('_', '-')}={value}")
    assert message.startswith(f"{key}")
    assert expected in message


@pytest.mark.parametrize("key", TIMES)
@pytest.mark.parametrize("value", NO_TIMES)
def test_a_flag_that_is_no_time_is_refused(key: str, value: str, called: Any) -> None:
    message = refused(called, "simulate", *QUICK, f"--{key.replace('_', '-')}={value}")
    assert f"{key}: '{value}' is not a time above 0, such as 600, 10min or 2h" in message


@pytest.mark.parametrize(
    ("key", "value", "expected"), [*WRONG, *((key, value, text) for key in TIMES for value, text in NO_TIMES.items())]
)
def test_also_in_a_file_which_is_named(key: str, value: str, expected: str, called: Any, tmp_path: Path) -> None:
    text = f"[{', '.join(repr(part) for part in value.split(','))}]" if key in ("eligible_when", "on_shortfall") else value
    (tmp_path / "run.toml").write_text(f"{key} = {text if text[0] in '[-0123456789' or text in ('nan', 'inf') else repr(text)}\n")
    message = refused(called, "simulate", "--config", str(tmp_path / "run.toml"))
    assert message.startswith(f"{tmp_path / 'run.toml'}: {key}")
    assert expected in message


@pytest.mark.parametrize(("value", "expected"), [("0", "at least 1, got 0"), ("-3", "at least 1, got -3")])
def test_a_buffer_takes_one_update_at_least(value: str, expected: str, called: Any) -> None:
    assert refused(called, "simulate", "--mode=async", "--method=fedavg", f"--buffer={value}") == f"buffer must be {expected}"


@pytest.mark.parametrize("key", ["over_selection", "deadline_s", "start_hour", "staleness_power", "cpu_limit_s", "buffer"])
def test_what_is_no_number_is_a_usage_error(key: str, called: Any) -> None:
    message = refused(called, "simulate", f"--{key.replace('_', '-')}=soon")
    assert "'soon' is not a " in message
    assert key.replace("_", "-") in message.replace("_", "-")


TOGETHER: list[tuple[list[str], list[str]]] = [
    (["--buffer=3"], ["buffer: ", "mode async"]),
    (["--mode=async", "--method=fedavg", "--objective=dyn"], ["mode: ", "dyn"]),
    (
        ["--mode=async", "--method=fedavg", "--objective=scaffold", "--optimizer=sgd", "--weight-decay=0"],
        ["mode: ", "scaffold"],
    ),
    *[
        (["--mode=async", f"--method={name}"], ["mode: async makes no sense with "])
        for name in (
            "prism", "clustered-fl", "feddf", "fedhm", "fedfomo", "pufferfish", "factorized-fl", "factorized-fl-beta", "orthdrop",
            "standalone",
        )
    ],
    (["--enforce=plan", "--on-shortfall=send"], ["on_shortfall: send", "enforce plan", "meter or hard"]),
    (["--per-round=9"], ["per_round: got 9", "8 clients"]),
    (["--partition=index:2000"], ["index:2000", "1437", "training samples"]),
    (["--partition=index:0"], ["partition: got 'index:0'", "index:S"]),
    (["--partition=index:1.5"], ["partition: got 'index:1.5'"]),
    (["--partition=index:5:0"], ["partition: got 'index:5:0'"]),
    (["--partition=indx:5"], ["partition: got 'indx:5'", "did you mean 'index'"]),
    (["--availability=daily", "--profile=lab"], ["availability: daily", "[behaviour]", "lab"]),
    (["--dynamic-devices", "--profile=lab"], ["dynamic_devices: ", "[[state]]", "lab"]),
    (["--availability=hourly"], ["availability: expected always, daily or the path of a trace", "got 'hourly'"]),
    ([f"--availability={'a' * 300}"], ["availability: ", "no such file"]),
    (["--availability=nowhere.csv"], ["availability: ", "nowhere.csv'", "no such file"]),
    (["--availability=/"], ["/: availability: cannot be read, because it is a folder", "expected a trace file"]),
    (["--deadline-s=0.02"], ["deadline_s: got 0.02 s", "expected more than ", "round trip"]),
    (["--resume", "--dry-run", "--out=new"], ["--resume", "--dry-run"]),
    (["--resume"], ["--resume needs --out"]),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "words"), TOGETHER, ids=lambda found: " ".join(found) if isinstance(found, list) else "")
def test_values_that_do_not_go_together_are_refused(flags: list[str], words: list[str], called: Any) -> None:
    message = refused(called, "simulate", *QUICK, *flags)
    assert [word for word in words if word not in message] == [], message


def test_a_buffer_larger_than_the_population_is_refused() -> None:
    with pytest.raises(ConfigError, match="buffer: got 9, expected at most the 8 clients"):
        RunConfig.of({"mode": "async", "method": "fedavg", "clients": 8, "buffer": 9})


@pytest.mark.parametrize("flags", [["--deadline-s=0.02"], ["--availability=hourly"], ["--dynamic-devices", "--profile=lab"]])
def test_a_dry_run_refuses_the_same(flags: list[str], called: Any) -> None:
    assert refused(called, "simulate", "--dry-run", *QUICK, *flags)


def fleet_file(folder: Path, text: str) -> Path:
    shipped = (shared("profiles") / "fleets" / "phone.toml").read_text(encoding="utf-8")
    path = folder / "fleet.toml"
    path.write_text(shipped.replace("round_deadline_ratio = 2.1", text), encoding="utf-8")
    return path


def test_a_fleets_deadline_below_the_fastest_round_trip_names_the_file(called: Any, tmp_path: Path) -> None:
    path = fleet_file(tmp_path, "round_deadline_s = 0.02")
    message = refused(called, "simulate", *QUICK, f"--profile={path}")
    assert message.startswith(f"{path}: budget.round_deadline_s: got 0.02 s, expected more than ")
    # A flag stands in its place.
    assert prepare(RunConfig(profile=str(path), deadline_s=5.0, model="mlp")).plan.deadline_s == 5


TRACES = {
    "client,from,to,state\n0,0,10,eligible\n1,5,5,eligible\n": "line 3: to: expected a time after from",
    "client,from,to,state\n0,0,10,eligible\n0,5,20,idle\n": "line 3: from: expected at least 10",
    "client,from,to,state\n0,0,nan,eligible\n": "line 2: to: expected seconds",
    "client,from,to,state\n0,-1,5,eligible\n": "line 2: from: expected seconds",
    "client,from,to,state\n0,0,5,asleep\n": "line 2: state: expected conditions",
    "client,from,to,state\n-1,0,5,idle\n": "line 2: client: expected a whole number",
    "client,from,to,state\n0,0,5\n": "line 2: expected 4 fields",
    "client,begin,to,state\n0,0,5,idle\n": "line 1: from: expected columns",
    "client,from,to,state\n": "expected rows",
    "": "line 1",
}


@pytest.mark.parametrize("text", TRACES)
def test_a_malformed_trace_names_file_and_line(text: str, called: Any, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text, encoding="utf-8")
    message = refused(called, "simulate", *QUICK, f"--availability={path}")
    assert message.startswith(f"{path}")
    assert TRACES[text] in message


def test_a_trace_in_which_nobody_is_ever_eligible_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("client,from,to,state\n0,0,10,idle\n1,0,10,charging\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"eligible_when: .*trace\.csv.*got idle, charging, unmetered: never all at once"):
        prepare(RunConfig(availability=str(tmp_path / "trace.csv"), model="mlp"))
    prepare(RunConfig(availability=str(tmp_path / "trace.csv"), model="mlp", eligible_when=("idle",)))


def test_a_folder_is_no_trace(called: Any, tmp_path: Path) -> None:
    assert "cannot be read" in refused(called, "simulate", *QUICK, f"--availability={tmp_path}")


ALL_KEYS: dict[str, Any] = {
    "method": "fedavg", "conditions": "ideal", "over_selection": 1.0, "deadline_s": 0.1 + 0.2, "availability": "tr'a\"ce, ü.csv",
    "eligible_when": ("unmetered", "idle"), "start_hour": 23.999, "dynamic_devices": True, "mode": "async", "buffer": 3,
    "staleness_power": 1 / 3, "enforce": "hard", "on_shortfall": ("tier", "send"), "cpu_limit_s": 1e-3, "partition": "index:60:0.5",
}  # fmt: skip


def test_a_written_configuration_is_read_as_it_was(tmp_path: Path) -> None:
    for values in ({}, ALL_KEYS, {"deadline_s": 5e-324}, {"over_selection": 1.5}, {"eligible_when": ("charging",)}):
        config = RunConfig.of(values)
        (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
        assert RunConfig.load(tmp_path / "config.toml", {}) == config
    assert {*ALL_KEYS} - {"method", "partition"} <= {*RunConfig.model_fields}


def test_a_resolved_configuration_is_read_as_it_was(tmp_path: Path) -> None:
    config = prepare(RunConfig(method="fedavg", mode="async", model="mlp", availability="daily", dynamic_devices=True)).config
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    again = RunConfig.load(tmp_path / "config.toml", {})
    assert again == config
    assert prepare(again).config == config
    assert config.buffer == math.ceil(config.per_round / 2)  # type: ignore[operator]


@pytest.mark.parametrize("value", [(), ("idle", "idle")])
def test_conditions_of_eligibility_are_some_each_once(value: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="eligible_when: expected some of idle, charging, unmetered, each once"):
        RunConfig.of({"eligible_when": value})


def test_too_few_samples_for_what_an_index_draws_is_an_error_of_the_data() -> None:
    with pytest.raises(DataError, match="index:1438: 1438 different samples for each client, but there are only 1437"):
        prepare(RunConfig(partition="index:1438", model="mlp"))
    assert prepare(RunConfig(partition="index:1437", model="mlp")).plan.workload.largest_shard == 1437
