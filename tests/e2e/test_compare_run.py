"""Whole comparisons, through Python and through the command line: played, stopped, continued, misused."""

from __future__ import annotations

import json
import shutil
from subprocess import CompletedProcess

import pytest
from command import edgefl
from runs import StopError, lines_of

from edgefl import RunConfig, compare
from edgefl.errors import CheckpointError

SMALL = RunConfig(rounds=2, clients=4, per_round=3, local_epochs=1, model="mlp", data_share=0.3, tiers=(1.0, 0.5), bundle=False)
METHODS = ("heterofl@1", "fedavg@0.5")
SEEDS = (0, 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return compare(METHODS, SMALL, tmp_path_factory.mktemp("finished") / "c", seeds=SEEDS)


def run(*arguments: str) -> CompletedProcess[str]:
    return edgefl("compare", *arguments)


def test_every_method_and_seed_is_an_ordinary_run(finished):
    assert {path.name for path in finished.folder.iterdir()} == {*METHODS, "compare.html", "compare.json", "comparison.toml"}
    for label in METHODS:
        for seed in SEEDS:
            home = finished.folder / label / f"seed-{seed}"
            summary = json.loads((home / "summary.json").read_text())
            assert (summary["method"], summary["seed"]) == (label.partition("@")[0], seed)
            assert (home / "report.html").exists()


def test_the_runs_are_of_the_same_clients(finished):
    for seed in SEEDS:
        many, one = (lines_of(finished.folder / label / f"seed-{seed}") for label in METHODS)
        for ours, theirs in zip(many, one, strict=True):
            same = [[(c["client"], c["device"], c["samples"]) for c in line["clients"]] for line in (ours, theirs)]
            assert same[0] == same[1]


def test_its_figures_are_those_of_the_runs(finished):
    assert json.loads((finished.folder / "compare.json").read_text()) == finished.to_dict()
    for row in finished.methods:
        homes = [finished.folder / row.label / f"seed-{seed}" for seed in SEEDS]
        summaries = [json.loads((home / "summary.json").read_text()) for home in homes]
        assert row.seeds == SEEDS
        assert row.accuracy.values == tuple(summary["global_accuracy"] for summary in summaries)
        sent = [summary["download_bytes"] + summary["upload_bytes"] for summary in summaries]
        assert row.bytes.values == tuple(sent)
        assert row.curve[-1].bytes == row.bytes.mean == sum(sent) / 2
        for key in ("macs", "simulated_s", "energy_j"):
            assert getattr(row, key).values == pytest.approx(tuple(summary[key] for summary in summaries))
        assert row.to_target.round in (1, 2)
    assert [row.tiers for row in finished.methods] == [(1,), (0.5,)]


def test_a_stopped_comparison_goes_on_to_the_same_bits_and_complete_runs_are_left_alone(finished, tmp_path):
    played: list[tuple[str, int]] = []

    def stop(part, record):
        played.append((part.name, record.round))
        if len(played) == 3:
            raise StopError

    with pytest.raises(StopError):
        compare(METHODS, SMALL, tmp_path / "c", seeds=SEEDS, on_round=stop)
    first = tmp_path / "c" / METHODS[0] / "seed-0" / "summary.json"
    before = first.stat().st_mtime_ns
    result = run("--out", str(tmp_path / "c"), "--resume", "--json")
    assert result.returncode == 0, result.stderr
    assert first.stat().st_mtime_ns == before
    assert "heterofl@1, seed 0: " in result.stderr
    resumed = json.loads(result.stdout)
    for row, twin in zip(resumed["methods"], finished.methods, strict=True):
        assert {**row, "host_s": None} == {**twin.to_dict(), "host_s": None}


def test_a_method_may_be_added_to_a_finished_comparison(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "c")
    more = compare((*METHODS, "fedavg@1"), SMALL, tmp_path / "c", seeds=(0, 1), resume=True)
    assert [row.label for row in more.methods] == [*METHODS, "fedavg@1"]
    assert more.methods[0].curve == finished.methods[0].curve


def test_another_configuration_or_a_folder_in_use_is_refused_before_any_run(finished):
    with pytest.raises(CheckpointError, match="exists and is not an empty folder; give another --out, or --resume"):
        compare(METHODS, SMALL, finished.folder, seeds=SEEDS)
    changed = SMALL.model_copy(update={"lr": 0.1})
    with pytest.raises(
        CheckpointError, match=r"heterofl@1/seed-0: cannot resume with another configuration: lr was 0\.05, now 0\.1"
    ):
        compare(METHODS, changed, finished.folder, seeds=SEEDS, resume=True)
    assert run("--methods=fedavg", "--out", str(finished.folder)).returncode == 2


def test_a_method_that_no_device_fits_is_a_row_and_the_others_run(tmp_path):
    flags = ["--profile=micro-controller", "--rounds=1", "--clients=3", "--local-epochs=1", "--batch-size=2", "--data-share=0.1"]
    result = run("--methods=heterofl@1,heterofl@0.1", *flags, "--out", str(tmp_path / "c"))
    assert result.returncode == 0, result.stderr
    assert "heterofl@1, seed 0: failed: no device of the fleet fits any tier" in result.stdout
    whole, small = json.loads((tmp_path / "c" / "compare.json").read_text())["methods"]
    assert whole["seeds"] == []
    assert "memory needs" in whole["failures"][0]["reason"]
    assert small["seeds"] == [0]
    assert not (tmp_path / "c" / "heterofl@1").exists()
    result = run("--methods=heterofl@1", *flags, "--out", str(tmp_path / "d"))
    assert result.returncode == 3
    assert not (tmp_path / "d").exists()


def test_another_budget_only_shows_finished_runs_anew(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "c")
    homes = sorted((tmp_path / "c").glob("*/seed-*"))
    before = {path: path.stat().st_mtime_ns for home in homes for path in home.rglob("*") if path.is_file()}
    row = finished.methods[1]
    first_s = lines_of(homes[0].parents[1] / row.label / "seed-0")[0]["clock_s"]

    result = run("--out", str(tmp_path / "c"), "--resume", f"--budget-s={2 * first_s}", "--budget-j=1kJ", "--target-accuracy=99%")
    assert result.returncode == 0, result.stderr
    assert "in budget, ± SE mean over clients" in result.stdout
    found = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert found["verdict"]["budget"] == {"s": 2 * first_s, "bytes": None, "j": 1000}
    assert found["verdict"]["target_accuracy"] == 0.99
    assert {r["label"] for r in found["verdict"]["methods"]} == set(METHODS)
    assert "Which method wins under the budget" in (tmp_path / "c" / "compare.html").read_text()

    # What was asked last is asked again, and a budget replaces it as a whole.
    assert json.loads(run("--out", str(tmp_path / "c"), "--resume", "--json").stdout) == found
    other = json.loads(run("--out", str(tmp_path / "c"), "--resume", "--budget-bytes=1GB", "--json").stdout)["verdict"]
    assert (other["budget"], other["target_accuracy"]) == ({"s": None, "bytes": 1e9, "j": None}, None)
    assert {row["label"]: row["accuracy"]["mean"] for row in other["methods"]} == {
        row.label: pytest.approx(row.score.mean) for row in finished.methods
    }
    assert {row["label"]: row["global_accuracy"]["mean"] for row in other["methods"]} == {
        row.label: pytest.approx(row.accuracy.mean) for row in finished.methods
    }

    # A budget below every first round is status 3, with what each method needs.
    result = run("--out", str(tmp_path / "c"), "--resume", "--budget-bytes=10")
    assert result.returncode == 3
    assert "no method has an evaluated round within 10 B a client" in result.stderr
    assert all(f"{label}: the first evaluated round ends after" in result.stderr for label in METHODS)
    assert {path: path.stat().st_mtime_ns for path in before} == before
