"""``edgefl whatif`` as a user calls it: the examples of its help, its page and its JSON, and wrong arguments."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from command import flags_of
from pages import Page

from edgefl import RunConfig
from edgefl.cli.main import group
from edgefl.run.dry_run import dry_run

QUICK = ["--method=heterofl", "--model=mlp", "--rounds=4", "--clients=30", "--seed=5"]


def examples(command: str) -> list[list[str]]:
    """Return the arguments of the calls that a command's help shows."""
    found = group.get_command(click.Context(group), command)
    assert found is not None
    return [shlex.split(line)[1:] for line in (found.help or "").splitlines() if line.strip().startswith(f"edgefl {command}")]


def test_help_has_examples() -> None:
    assert len(examples("whatif")) == 5


@pytest.mark.parametrize(("out", "page"), [("pages", "pages/whatif.html"), ("pages/one.html", "pages/one.html")])
def test_a_page_has_a_name_or_a_folder(out: str, page: str, called: Any) -> None:
    code, output, errors = called("whatif", *QUICK, "--rounds=1", f"--out={out}")
    assert (code, output.rstrip().endswith(f"written: {page}")) == (0, True), errors
    assert Path(page).is_file()


@pytest.mark.parametrize(("number", "policies"), [(0, 6), (1, 3), (3, 2), (4, 4)])
def test_the_examples_of_the_help_run(number: int, policies: int, called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # They are about data sets that need files: those that come with the package stand in, and a small network.
    arguments = [{"resnet18": "mlp", "fashion-mnist": "digits"}.get(word, word) for word in examples("whatif")[number]]
    code, output, errors = called(*arguments, "--rounds=2")
    assert code == 0, errors
    tried = [line for line in errors.splitlines() if line.endswith(" …")]
    lines = [line for line in output.splitlines() if line.startswith("policy ")]
    assert len(tried) == len(lines) == policies
    assert output.rstrip().endswith("written: whatif.html")
    page = Page(Path("whatif.html").read_text(encoding="utf-8"))
    assert all(line.removesuffix(" …") in page.text for line in tried)
    assert [path.name for path in Path().iterdir()] == ["whatif.html"]


def test_accuracies_are_read_off_a_run_and_of_a_run_of_the_same_setting_only(called: Any) -> None:
    code, _, errors = called("simulate", *QUICK, "--rounds=3", "--out=runs/one")
    assert code == 0, errors
    code, output, errors = called(*examples("whatif")[2], "--rounds=2", "--target-accuracy=1%", "--json")
    assert code == 0, errors
    found = json.loads(output)
    assert (found["surrogate"]["run"], found["surrogate"]["target"]) == ("one", 0.01)
    judged = [row for row in found["surrogate"]["rows"] if row["accuracy"] is not None]
    assert judged
    assert all(row["low"] <= row["accuracy"] <= row["high"] and row["target_s"] > 0 for row in judged)
    code, _, errors = called("whatif", *QUICK, "--method=fedhm", "--run=runs/one")
    assert (code, "its method is heterofl, that of the policies fedhm" in errors) == (2, True)
    code, _, errors = called("whatif", "--target-accuracy=0.9")
    assert (code, "--target-accuracy needs --run" in errors) == (2, True)


def test_json_is_alone_on_standard_output_and_writes_no_page(called: Any) -> None:
    code, output, errors = called("whatif", *QUICK, "--deadlines=0.13,0.16", "--tiers=1", "--tiers=1,0.5", "--json")
    assert (code, errors) == (0, "")
    result = json.loads(output)
    assert [row["label"] for row in result["rows"]] == [f"{d} s · tiers {t}" for d in (0.13, 0.16) for t in ("1", "1, 0.5")]
    assert (result["clients"], result["per_round"], result["rounds"], result["method"]) == (30, 15, 4, "heterofl")
    assert [row["deadline_s"] for row in result["rows"]] == [0.13, 0.13, 0.16, 0.16]
    assert [row["tiers"] for row in result["rows"]] == [[1], [1, 0.5], [1], [1, 0.5]]
    assert list(Path().iterdir()) == []
    code, again, _ = called("whatif", *QUICK, "--deadlines=0.13,0.16", "--tiers=1", "--tiers=1,0.5", "--json", "--out=page.html")
    assert (code, again) == (0, output)
    assert [path.name for path in Path().iterdir()] == ["page.html"]


def test_a_policy_is_named_by_what_varies(called: Any) -> None:
    _, output, _ = called("whatif", *QUICK, "--deadlines=0.13,0.16", "--tiers=1,0.5", "--json")
    assert [row["label"] for row in json.loads(output)["rows"]] == ["0.13 s", "0.16 s"]
    _, output, _ = called("whatif", *QUICK, "--deadlines=0.13", "--tiers=1,0.5", "--json")
    assert [row["label"] for row in json.loads(output)["rows"]] == ["0.13 s · tiers 1, 0.5"]


def test_a_policy_is_a_dry_run_of_its_own(called: Any, tmp_path: Path) -> None:
    values = {
        "method": "heterofl",
        "model": "mlp",
        "rounds": 4,
        "clients": 30,
        "seed": 5,
        "availability": "daily",
        "start_hour": 3,
    }
    code, output, errors = called(
        "whatif", *flags_of(values), "--deadlines=0.13,0.2", "--over-selections=1,2", "--tiers=1,0.5", "--json"
    )
    assert code == 0, errors
    for row in json.loads(output)["rows"]:
        policy = {"deadline_s": row["deadline_s"], "over_selection": row["over_selection"], "tiers": (1.0, 0.5)}
        folder = dry_run(RunConfig.of({**values, **policy}), tmp_path / re.sub(r"\W", "-", row["label"])).folder
        rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]
        sessions = [client for line in rounds for client in line["clients"]]
        trained = [client for client in sessions if client["status"] == "trained"]
        seconds = sum(client["total_s"] or 0 for client in sessions)
        assert row["inclusion"] == pytest.approx(len(trained) / len(sessions), rel=1e-12)
        assert row["useful_share"] == pytest.approx(sum(client["total_s"] for client in trained) / seconds, rel=1e-12)
        assert row["rounds_per_hour"] == pytest.approx(3600 * len(rounds) / rounds[-1]["clock_s"], rel=1e-9)
        middle = sorted(line["round_s"] for line in rounds)[1:3]
        assert row["round_s"] == pytest.approx(sum(middle) / 2, rel=1e-12)


def test_a_policy_that_is_given_twice_is_played_once(called: Any) -> None:
    _, output, _ = called("whatif", *QUICK, "--deadlines=1,0.5,1", "--json")
    assert [row["label"] for row in json.loads(output)["rows"]] == ["1 s", "0.5 s"]


def test_a_longer_deadline_and_smaller_tiers_include_more(called: Any) -> None:
    _, output, _ = called("whatif", *QUICK, "--deadlines=0.06,0.12,5", "--tiers=1", "--json", "--over-selections=1")
    inclusion = [row["inclusion"] for row in json.loads(output)["rows"]]
    assert inclusion == sorted(inclusion)
    assert inclusion[0] < inclusion[-1]


def test_tiers_that_nobody_can_take_are_policies_too(called: Any) -> None:
    """No micro-controller takes a convolutional network's whole width; that of a quarter fits."""
    flags = ["--method=fedavg", "--model=cnn-digits", "--rounds=2", "--profile=micro-controller"]
    code, output, errors = called("whatif", *flags, "--tiers=1", "--tiers=0.25", "--json", "--on-shortfall=tier")
    assert code == 0, errors
    assert [row["inclusion"] for row in json.loads(output)["rows"]] == [0, 1]


WRONG = {
    "--deadlines=1,x": "'1,x' is not a list of times such as 10,30,2min",
    "--deadlines=1,": "'1,' is not a list of times such as 10,30,2min",
    "--deadlines=": "'' is not a list of times such as 10,30,2min",
    "--deadlines=30,-1": "'30,-1' is not a list of times such as 10,30,2min",
    "--deadlines=nan": "'nan' is not a list of times such as 10,30,2min",
    "--deadlines=inf": "'inf' is not a list of times such as 10,30,2min",
    "--deadlines=30,0.001": "deadline_s: got 0.001 s, expected more than 0.04 s",
    "--tiers=0.5,1": "--tiers: tiers: expected each tier once, largest first: 1,0.5",
    "--tiers=1,1": "--tiers: tiers: expected each tier once, largest first: 1",
    "--tiers=2": "a tier lies in (0, 1], got 2",
    "--tiers=nan": "--tiers: tiers, entry 1,",
    "--over-selections=0.5": "--over-selections: over_selection must be at least 1, got 0.5",
    "--over-selections=1,99": "--over-selections: over_selection must be at most 10, got 99",
    "--profile=nowhere": "unknown profile 'nowhere'",
    "--profile=nowhere.toml": "nowhere.toml: no such file",
    "--method=fedhmm": "unknown method 'fedhmm'; did you mean 'fedhm'",
    "--rounds=0": "rounds must be at least 1, got 0",
    "--availability=nowhere.csv": "nowhere.csv",
    "--config=nowhere.toml": "nowhere.toml: no such file",
    "--deadline-s=3": "No such option",
}


@pytest.mark.parametrize("flag", WRONG)
def test_a_wrong_argument_is_said_and_nothing_is_written(flag: str, called: Any) -> None:
    Path("whatif.html").write_text("as it was")
    code, output, errors = called("whatif", *QUICK, flag)
    said = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert (code, output, len(said)) == (2, "", 1), errors
    assert WRONG[flag] in said[0]
    assert [path.name for path in Path().iterdir()] == ["whatif.html"]
    assert Path("whatif.html").read_text() == "as it was"


def test_the_page_is_written_whole_or_not_at_all(called: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("whatif.html").write_text("as it was")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edgefl.util.files.os.fsync", full)
    code, output, errors = called("whatif", *QUICK)
    assert (code, output) == (2, "")
    assert "whatif.html: no space left on the device" in errors
    assert [path.name for path in Path().iterdir()] == ["whatif.html"]
    assert Path("whatif.html").read_text() == "as it was"
