"""The files of a run are read as they were written, and a malformed one is refused where it is."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from made_run import ADDED, make_run, make_summary

from edgefl.errors import InputError
from edgefl.report import html
from edgefl.report.run_files import read_summary, stored_summary


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (["method"], 3, "method must be text, got 3"),
        (["energy_j"], -1.5, "energy_j must be at least 0, got -1.5"),
        (["rounds"], 2.5, "rounds must be a whole number, got 2.5"),
        (["rounds"], True, "rounds must be a whole number, got True"),
        (["tiers", 1, "params"], None, "tiers.1.params must be a whole number, got None"),
        (["tiers", 0], "x", "tiers.0 must be a table"),
        (["classes", 3, "refusals", 0, "need"], "a lot", "classes.3.refusals.0.need must be a number, got 'a lot'"),
        (["energy_j"], float("nan"), "not valid JSON"),
    ],
)
def test_a_malformed_summary_is_refused(tmp_path: Path, keys: list[Any], value: Any, message: str) -> None:
    run = make_run(tmp_path)
    summary = make_summary()
    holder: Any = summary
    for key in keys[:-1]:
        holder = holder[key]
    holder[keys[-1]] = value
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=re.escape(f"summary.json: {message}")):
        html.write(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("key", ["tiers", "host_s", "deadline_s"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    run = make_run(tmp_path)
    summary = make_summary()
    del summary[key]
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=f"summary.json: {key}: missing"):
        html.write(run)


def test_a_malformed_round_is_refused_with_its_line(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    lines = (run / "rounds.jsonl").read_text().splitlines()
    (run / "rounds.jsonl").write_text("\n".join([*lines[:2], lines[2][:50]]))
    with pytest.raises(InputError, match=r"rounds\.jsonl: line 3: not valid JSON"):
        html.write(run)
    record = json.loads(lines[0])
    record["accuracy"] = {"0.5": "good"}
    (run / "rounds.jsonl").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"line 1: accuracy\.0\.5 must be a number, got 'good'"):
        html.write(run)
    record["accuracy"] = {}
    del record["clients"][4]["device"]
    (run / "rounds.jsonl").write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"line 1: clients\.4\.device: missing"):
        html.write(run)


def test_a_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"summary\.json: no such file; give the folder of a finished run"):
        html.write(tmp_path)
    make_run(tmp_path)
    (tmp_path / "rounds.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"rounds\.jsonl: cannot be read as UTF-8 text"):
        html.write(tmp_path)


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    _has(stored_summary(run / "summary.json"), make_summary())
    (run / "summary.json").write_text(json.dumps(make_summary() | ADDED))
    assert ADDED.items() <= stored_summary(run / "summary.json").items()
    assert html.write(run).exists()
    (run / "summary.json").write_text(json.dumps(make_summary() | {"accuracy_of": "nobody"}))
    with pytest.raises(InputError, match=r"summary\.json: accuracy_of must be 'global' or 'clients', got 'nobody'"):
        html.write(run)


def _has(found: Any, written: Any) -> None:
    """What was written is there; beside it are the defaults of what was not."""
    if isinstance(written, dict):
        for key, value in written.items():
            _has(found[key], value)
    elif isinstance(written, list):
        assert len(found) == len(written)
        for one, other in zip(found, written, strict=True):
            _has(one, other)
    else:
        assert found == written


def test_a_figure_that_was_not_written_has_its_default(tmp_path: Path) -> None:
    path = make_run(tmp_path) / "summary.json"
    found = stored_summary(path)
    assert str(found["tiers"][0]["tier"]) == str(read_summary(path).tiers[0].tier) == "1"  # as it was written
    assert (found["metric"]["name"], found["privacy"], found["tiers"][0]["updates"]) == ("accuracy", None, None)


def test_malformed_stages_are_refused_where_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "summary.json").write_text(json.dumps({**make_summary(), "host_stages": {"server": {"wait": -1.0}}}))
    with pytest.raises(InputError, match=r"host_stages\.server\.wait must be at least 0"):
        html.write(run)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (["evaluation", "labels"], []),
        (["tiers", 0, "macs_forward"], 10**400),
    ],
)
def test_values_that_contradict_each_other_are_a_message(tmp_path: Path, keys: list[Any], value: Any) -> None:
    run, summary = make_run(tmp_path), make_summary()
    holder: Any = summary
    for key in keys[:-1]:
        holder = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
    holder[keys[-1]] = value
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=r"summary\.json: "):
        html.write(run)


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "rounds.jsonl").unlink()
    os.mkfifo(run / "rounds.jsonl")
    with pytest.raises(InputError, match=r"rounds\.jsonl: cannot be read \(not a regular file\)"):
        html.write(run)
