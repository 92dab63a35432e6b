"""The tables of the papers: settings that can be run, figures that are stored and found again, and Markdown made from them alone."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import torch

from edgefl.methods.base import create
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost, training_of
from edgefl.records import Tier
from edgefl.wire.payload import payload_bytes

ROOT = Path(__file__).parents[2]
TABLES = ("flanc", "fedpara", "prism", "factorized", "spectral")
FASHION = Architecture("cnn-fashion", (1, 28, 28), 10)


@pytest.fixture(scope="module", autouse=True)
def on_the_path():
    """Tools import each other from their own folder, as when one of them is run."""
    sys.path.insert(0, str(ROOT / "tools"))
    yield
    sys.path.remove(str(ROOT / "tools"))


@pytest.fixture
def tool():
    return importlib.import_module("paper_tables")


def figures_of(run, accuracy=0.5):
    """Return figures as a run would: the same costs everywhere, accuracies that tell seeds apart."""
    config = run.config
    tiers = config.tiers or create(config.method).default_tiers
    labels = [f"{ratio:g}" for ratio in tiers]
    costs = {
        "params": 1_500,
        "download_bytes": 2_000,
        "upload_bytes": 3_000,
        "macs_round": 4_000_000,
        "macs_forward": 5_000,
        "macs_inference": 5_000,
        "peak_activation_bytes_training": 6_000,
    }
    value = accuracy + run.seed / 100
    return {
        "accuracy": dict.fromkeys(["global", *labels], value),
        "local_accuracy": value if run.local else None,
        "samples": 60,
        "evaluated": 1500,
        "tiers": dict.fromkeys(labels, costs),
        "total": {"download_bytes": 10**6, "upload_bytes": 2 * 10**6, "macs": 10**9},
    }


def stored(tool, name, scale):
    return [run.stored(figures_of(run), "9.9.9") for run in tool.table_of(name).runs(scale)]


@pytest.mark.parametrize("scale", ["full", "quick", "smoke"])
@pytest.mark.parametrize("name", TABLES)
def test_all_settings_are_valid_and_no_run_is_there_twice(tool, name, scale):
    runs = tool.table_of(name).runs(scale)
    entries = [run.stored({}, "1") for run in runs]
    assert len({json.dumps([e["row"], e["column"], e["seed"]]) for e in entries}) == len(runs)
    for run in runs:
        config = run.config
        assert config.eval_every == config.rounds, "evaluated once, at the end"
        create(config.method, config.method_options, tiers=config.tiers)
        assert run.work > 0


@pytest.mark.parametrize("name", TABLES)
def test_three_seeds_where_a_spread_is_shown(tool, name):
    for scale in ("full", "quick"):
        assert sorted({run.seed for run in tool.table_of(name).runs(scale)}) == [0, 1, 2]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_rendered_from_its_file_alone(tool, name):
    entries = json.loads(json.dumps(stored(tool, name, "quick")))
    text = tool.rendered(name, {"quick": entries})
    assert "Reduced scale (`--quick`)" in text
    assert "seeds 0, 1, 2; edgefl 9.9.9" in text
    assert "51.0 ± 1.0" in text  # 50, 51 and 52 %
    if name not in ("fedpara", "factorized"):  # what the paper does not report is a dash there
        assert not re.search(r"^\|.*–", text, re.MULTILINE), "every cell has a figure"
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.strip().splitlines()}) == 1, "every line has the titles' columns"


@pytest.mark.parametrize("name", TABLES)
def test_what_has_not_been_run_is_a_dash_or_a_word(tool, name):
    assert tool.rendered(name, {}).startswith("Not run yet")
    one = stored(tool, name, "quick")[:1]
    assert "–" in tool.rendered(name, {"quick": one})


def test_the_full_scale_is_shown_once_all_of_it_is_there(tool):
    quick, full = stored(tool, "prism", "quick"), stored(tool, "prism", "full")
    assert "**Full scale.**" in tool.rendered("prism", {"quick": quick, "full": full})
    assert "Reduced scale" in tool.rendered("prism", {"quick": quick, "full": full[:-1]})


def test_stale_figures_are_not_shown(tool):
    entries = stored(tool, "spectral", "quick")
    for entry in entries:
        entry["settings"]["lr"] = 0.123
    assert tool.rendered("spectral", {"quick": entries}).startswith("Not run yet")


def test_finished_runs_are_not_played_again_and_changed_ones_are(tool, tmp_path):
    runs = tool.table_of("spectral").runs("quick")
    entries = stored(tool, "spectral", "quick")
    entries[0]["settings"]["rounds"] += 1
    path = tmp_path / "spectral.jsonl"
    tool.save(path, {"quick": entries})
    every = tool.wanted(["spectral"], "quick", None)
    assert [run for _, run in tool.left_over(tmp_path, every, "quick")] == runs[:1]
    tool.drop_stale(tmp_path, "spectral", "quick")
    assert len(tool.load(path)["quick"]) == len(runs) - 1


def test_other_seeds_are_added_beside_the_stored_ones(tool, tmp_path):
    tool.save(tmp_path / "spectral.jsonl", {"quick": stored(tool, "spectral", "quick")})
    more = tool.left_over(tmp_path, tool.wanted(["spectral"], "quick", [0, 7]), "quick")
    assert sorted((run.row, run.seed) for _, run in more) == [("spectral", 7), ("uniform", 7)]
    for name, run in more:
        stored_now = tool.load(tmp_path / "spectral.jsonl")
        tool.save(tmp_path / "spectral.jsonl", {"quick": [*stored_now["quick"], run.stored(figures_of(run), "1")]})
        tool.drop_stale(tmp_path, name, "quick")
    assert "seeds 0, 1, 2, 7" in tool.rendered("spectral", tool.load(tmp_path / "spectral.jsonl"))


def test_the_longest_runs_start_first(tool):
    work = [run.work for _, run in tool.wanted(TABLES, "quick", None)]
    assert work == sorted(work, reverse=True)


def test_files_do_not_depend_on_which_run_ended_first(tool, tmp_path):
    entries = stored(tool, "prism", "quick")
    tool.save(tmp_path / "a.jsonl", {"quick": entries})
    tool.save(tmp_path / "b.jsonl", {"quick": entries[::-1]})
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()


def test_a_run_gives_every_figure_that_tables_read(tool):
    runs = tool.table_of("factorized").runs("smoke")
    run = next(run for run in runs if run.row == "FedAvg" and run.column == "IID")
    found = importlib.import_module("papers.play").figures(run.settings, run.local)
    expected = figures_of(run)
    assert found.keys() == expected.keys()
    assert found["tiers"]["1"].keys() == expected["tiers"]["1"].keys()
    clients, rounds = run.config.clients, run.config.rounds
    costs = found["tiers"]["1"]
    assert found["total"]["download_bytes"] == costs["download_bytes"] * clients * rounds
    assert 0 <= found["local_accuracy"] <= 1
    assert json.loads(json.dumps(found)) == found


def test_a_client_that_did_not_train_stops_the_run(tool):
    settings = dict(tool.table_of("factorized").runs("smoke")[0].settings)
    with pytest.raises(RuntimeError, match=r"round 1, client 0: diverged: its loss is not finite"):
        importlib.import_module("papers.play").figures({**settings, "lr": 1e30, "batch_size": 2}, False)


def test_failures_are_counted_and_the_others_stored(tool, tmp_path, monkeypatch, capsys):
    runs = tool.table_of("spectral").runs("smoke")

    def played(left, workers):
        yield "spectral", runs[0], figures_of(runs[0]), 1.0
        yield "spectral", runs[1], RuntimeError("diverged"), 0.0

    monkeypatch.setattr(tool, "played", played)
    assert tool.play_all(tmp_path, [("spectral", run) for run in runs], "smoke", 1) == 1
    assert len(tool.load(tmp_path / "spectral.jsonl")["smoke"]) == 1
    assert "RuntimeError: diverged" in capsys.readouterr().err


def test_fedhms_ratios_are_the_nearest_to_the_widths(tool):
    flanc = tool.table_of("flanc")
    training = training_of(flanc.runs("smoke")[0].config)
    hetero, fedhm = create("heterofl"), create("fedhm")

    def costs(method, ratio):
        return tier_cost(method, FASHION, Tier(ratio), training)

    grid = [n / 100 for around in (3, 28, 42) for n in range(around - 1, around + 2)]  # costs grow with the ratio
    found = {ratio: costs(fedhm, ratio) for ratio in grid}
    width = {ratio: costs(hetero, ratio) for ratio in flanc.WIDTHS}
    assert min(cost.params for cost in found.values()) > width[0.5].params, "no ratio comes near the narrow ones in parameters"
    by_params = min(grid, key=lambda ratio: abs(found[ratio].params - width[0.75].params))
    by_macs = [min(grid, key=lambda r, w=w: abs(found[r].macs_forward - width[w].macs_forward)) for w in (0.5, 0.25)]
    assert (1.0, by_params, *by_macs) == flanc.RATIOS


def test_low_rank_has_fedparas_parameters_and_fedavg_its_bytes(tool):
    fedpara = tool.table_of("fedpara")
    tier = Tier(fedpara.GAMMA)

    def numbers(method):
        return sum(torch.Size(shape).numel() for shape in method.shapes(FASHION, tier).values())

    factors, low = numbers(create("fedpara")), numbers(create("lowrank", {"match": "fedpara"}))
    assert low <= factors < 1.01 * low
    rounds = 30
    bytes_a_round = {n: payload_bytes(create(n).shapes(FASHION, t)) for n, t in (("fedpara", tier), ("fedavg", Tier(1.0)))}
    difference = fedpara.equal_bytes_rounds(rounds) * bytes_a_round["fedavg"] - rounds * bytes_a_round["fedpara"]
    assert abs(difference) <= bytes_a_round["fedavg"] / 2


def test_the_page_of_results_has_a_place_for_every_table(tool):
    page = (ROOT / "docs" / "results.md").read_text()
    for name in tool.TABLES:
        assert page.count(f"<!-- paper-{name}:begin -->") == page.count(f"<!-- paper-{name}:end -->") == 1
