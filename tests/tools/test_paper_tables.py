"""The tables of the papers: settings that can be run, figures that are stored and found again, and Markdown made from them alone."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
import torch
from paper_entries import TABLES, entry_of, figures_of, stored, table_at
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.registry import models
from edgefl.run.resolved import training_of
from edgefl.wire.payload import payload_bytes

ROOT = Path(__file__).parents[2]
FASHION = Architecture("cnn-fashion", (1, 28, 28), 10)


@pytest.fixture
def tool():
    return tool_of("paper_tables")


@pytest.mark.parametrize("scale", ["full", "quick", "smoke"])
@pytest.mark.parametrize("name", TABLES)
def test_all_settings_are_valid_and_no_run_is_there_twice(tool, name, scale):
    runs = tool.table_of(name).runs(scale)
    entries = [run.stored({}, "1") for run in runs]
    assert len({json.dumps([e["row"], e["column"], e["seed"]]) for e in entries}) == len(runs)
    for run in runs:
        config = run.config
        assert config.eval_every == config.rounds or run.since, "evaluated once, at the end"
        create(config.method, config.method_options, tiers=config.tiers)
        assert run.work > 0


@pytest.mark.parametrize("scale", ["full", "quick"])
@pytest.mark.parametrize("name", [*TABLES, "budget", "robustness"])
def test_no_row_is_evaluated_with_the_statistics_of_the_test_batch(tool, name, scale):
    """A device with one image has none."""
    for run in tool.table_of(name).runs(scale):
        usual = inspect.signature(models.load(run.settings["model"])).parameters["norm"].default
        assert run.settings.get("norm", usual) != "batch"


@pytest.mark.parametrize("name", TABLES)
def test_several_seeds_where_a_spread_is_shown(tool, name):
    seeds = {scale: sorted({run.seed for run in tool.table_of(name).runs(scale)}) for scale in ("full", "quick")}
    assert seeds == {"full": {"pfedpara": [0, 1, 2, 3, 4], "prism": [0, 1]}.get(name, [0, 1, 2]), "quick": [0, 1, 2]}


@pytest.mark.parametrize("scale", ["full", "smoke"])
@pytest.mark.parametrize("name", TABLES)
def test_trials_are_valid_and_see_no_test_sample(name, scale):
    table = table_at(name, scale)
    trials = table.trials([])
    assert bool(trials) == (name not in ("fedhm", "spectral"))
    for trial in trials:
        assert trial.config.validation_share == 0.1
        assert trial.config.eval_every == trial.config.rounds
        assert trial.seed not in {run.seed for run in table.runs}
    assert all(run.config.validation_share == 0 for run in table.runs)
    assert len({trial.name(name) for trial in trials}) == len(trials)


@pytest.mark.parametrize("name", TABLES)
def test_orderings_are_about_rows_of_the_table(tool, name):
    module = tool.table_of(name)
    rows = {run.row for run in module.runs("full")}
    assert {row for pair in getattr(module, "ORDERINGS", ()) for row in pair} <= rows
    assert not any("/" in part for run in module.runs("full") for part in (run.row, run.column))


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_rendered_from_its_file_alone(tool, name):
    entries = json.loads(json.dumps(stored(name, "quick")))
    text = tool.rendered(name, {"quick": entries})
    assert "Reduced scale (`--quick`)" in text
    assert "seeds 0, 1, 2. Made with edgefl 9.9.9" in text
    assert "51.0 ± 1.0 |" in text  # 50, 51 and 52 %, not stale
    assert "They tie: **tiers cannot be compared here.**" in text
    if name in ("pfedpara", "factorized"):  # their rows do not differ in size
        assert "not decided" in text
    else:
        assert "No orderings for " in text
        assert "not decided" not in text, "no ordering is printed where tiers cannot be compared"
    assert "Stale" not in text
    if not name.startswith(("fedpara", "factorized")):  # what the paper does not report is a dash there
        assert not re.search(r"^\|.*–", text, re.MULTILINE), "every cell has a figure"
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        assert len({line.count("|") for line in block.strip().splitlines()}) == 1, "every line has the titles' columns"


@pytest.mark.parametrize("name", TABLES)
def test_what_has_not_been_run_is_a_dash_or_a_word(tool, name):
    assert tool.rendered(name, {}).startswith("Not run yet")
    one = stored(name, "quick")[:1]
    assert "–" in tool.rendered(name, {"quick": one})


def test_the_full_scale_is_shown_once_all_of_it_is_there(tool):
    quick, full = stored("prism", "quick"), stored("prism", "full")
    text = tool.rendered("prism", {"quick": quick, "full": full})
    assert "**Full scale.**" in text
    assert "Reduced scale" not in text
    text = tool.rendered("prism", {"quick": quick, "full": full[:-1]})
    assert "Reduced scale" in text
    assert "**Full scale, unfinished: 23 of 24 runs.**" in text


def test_full_scale_says_how_settings_were_chosen(tool):
    text = tool.rendered("pfedpara", {"full": stored("pfedpara", "full")})
    assert "from one grid (lr 0.01, 0.03, 0.1). Trials of 10 rounds with the whole schedule were compared on 10 % of the" in text
    assert "*Chosen*: **0.1** for FedAvg; FedPer; Stand-alone; pFedPara" in text, "the trials' accuracies grow with the rate"
    assert 'python tools/paper_tables.py --only "pfedpara/FedAvg/2 classes/0" --again' in text


@pytest.mark.parametrize("change", ["settings", "code", "none recorded"])
def test_stale_figures_are_marked(tool, change):
    entries = stored("spectral", "quick")
    for entry in entries:
        if change == "settings":
            entry["settings"]["lr"] = 0.123
        elif change == "code":
            entry |= {"inputs": "0" * 16, "commit": "abc1234"}
        else:
            del entry["inputs"]
    text = tool.rendered("spectral", {"quick": entries})
    assert "**Stale (†)**: All 12 runs were made by code or settings that this version no longer has" in text
    assert f"(commit {'abc1234' if change == 'code' else 'not recorded'})" in text
    assert "51.0 ± 1.0 † |" in text
    one = tool.rendered("spectral", {"quick": [entries[0], *stored("spectral", "quick")[1:]]})
    assert "**Stale (†)**: 1 of 12 runs" in one


def test_orderings_are_printed_where_there_is_capacity_to_lose(tool):
    entries = stored("flanc", "quick")
    for entry in entries:
        if entry["row"] == "full network alone" and entry["column"] == "IID":
            entry["figures"]["accuracy"] = {"global": 0.6 + entry["seed"] / 50}
    text = tool.rendered("flanc", {"quick": entries})
    assert "|  | IID: mean of widths | IID: global model |" in text
    assert "| FLANC above HeteroFL | +0.0 ± 0.0, not decided | +0.0 ± 0.0, not decided |" in text
    assert "Student's t for the number of seeds. Of rows that are equal, 5 % are shown or reversed by chance." in text
    assert "No orderings for 3 classes a client: tiers cannot be compared there." in text


def test_runs_of_rows_that_the_table_does_not_have_are_not_shown(tool):
    entries = stored("spectral", "quick")
    for entry in entries:
        entry["row"] = "renamed"
    assert tool.rendered("spectral", {"quick": entries}).startswith("Not run yet")


def test_a_stale_run_with_other_tiers_is_a_dash(tool):
    runs = tool.table_of("flanc").runs("quick")
    (run,) = (run for run in runs if run.name("flanc") == "flanc/FedHM/IID/0")
    entry = entry_of(run)
    entry["figures"] = figures_of(run) | {"accuracy": {"global": 0.5, "0.9": 0.5}}
    assert "| 0.25 | – |" in tool.rendered("flanc", {"quick": [entry]})


def test_late_rounds_are_means_beside_the_best_with_rates_of_their_own(tool):
    text = tool.rendered("flanc-late", {"quick": stored("flanc-late", "quick")})
    assert "*Mean* of the last 25 evaluations, in every second round." in text
    assert "It is chosen on test samples, and so flatters every method." in text
    assert "| 0.25 | 51.0 ± 1.0 | 56.0 ± 1.0 | 81.3 | 51.0 ± 1.0 | 56.0 ± 1.0 | 51.0 ± 1.0 | 56.0 ± 1.0 | 81.6 |" in text
    table = table_at("flanc-late", "full")
    assert {(run.since, run.settings["eval_every"]) for run in table.runs} == {(151, 2)}
    assert sum(round_ % 2 == 0 for round_ in range(151, 201)) == 25
    assert {trial.row for trial in table.trials([])} == {run.row for run in table.runs}
    assert not {trial.since for trial in table.trials([])} - {0}


def test_a_run_that_is_not_evaluated_late_is_another_one(tool):
    run = tool.table_of("flanc-late").runs("quick")[0]
    entry = entry_of(run)
    assert run.is_stored_as(entry)
    del entry["since"]
    assert not run.is_stored_as(entry)


def test_clipped_rows_have_the_rates_that_they_are_named_after(tool):
    table, module = table_at("flanc-net", "full"), tool.table_of("flanc-net")
    resolved = table.resolved([])
    rates = {row: run.settings["lr"] for (row, column), run in resolved.items() if run is not None}
    assert rates == {row: 0.01 if "rate 0.01" in row else 0.03 for row in module.CLIPPED}
    assert not {trial.row for trial in table.trials([])} & set(module.CLIPPED)
    assert all(
        run.settings.get("clip_gradient") == "none" for run in table.runs if run.row in ("HeteroFL", "HeteroFL, unmasked loss")
    )
    assert all("clip_gradient" not in run.settings for run in table.runs if run.row in module.CLIPPED)


def test_every_row_of_heterofl_says_whether_it_clips(tool):
    for name in [*TABLES, "budget", "robustness"]:
        for run in tool.table_of(name).runs("full"):
            if run.settings["method"] == "heterofl":
                assert ("clipped" in run.row) == ("clip_gradient" not in run.settings), (name, run.row)


def test_equal_budgets_choose_the_largest_tier_that_keeps_both(tool):
    entries = stored("fedhm-sizes", "quick")
    held = {"HeteroFL": (400, 300, 200, 100), "FedHM, mean": (400, 400, 400, 400), "DepthFL": (300, 203, 150, 50)}
    for entry in entries:
        costs = entry["figures"]["tiers"]
        sizes = zip(costs, held.get(entry["row"], (999,) * len(costs)), strict=True)
        entry["figures"]["tiers"] = {
            label: {
                **costs[label],
                "peak_activation_bytes_training": activations,
                "download_bytes": 1000 - place,
                "upload_bytes": 0,
            }
            for place, (label, activations) in enumerate(sizes)
        }
    text = tool.rendered("fedhm-sizes", {"quick": entries})
    rows = [line for line in text.splitlines() if line.startswith("| 997 B, 100 B") or line.startswith("| 998 B, 200 B")]
    assert [row.split("|")[2].strip() for row in rows] == [
        *(
            "FedHM, mean: none",
            "FedHM, residual: none",
            "FedHM, bands: none",
            "HeteroFL 0.4375",
            "Split-Mix: none",
            "DepthFL 0.5",
        ),
        *(
            "FedHM, mean: none",
            "FedHM, residual: none",
            "FedHM, bands: none",
            "HeteroFL 0.3125",
            "Split-Mix: none",
            "DepthFL 0.25",
        ),
    ]


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


def parameters(method, architecture, ratio):
    return sum(torch.Size(shape).numel() for shape in download_shapes(create(method), architecture, Tier(ratio)).values())


def test_rivals_of_fedhm_have_its_parameters_to_one_percent(tool):
    table = tool.table_of("fedhm-sizes")
    architecture = Architecture(table.MODEL, (1, 28, 28), 10, table.NORM)
    for ratio, width in zip(table.RATIOS, table.WIDTHS, strict=True):
        found = parameters("fedhm", architecture, ratio)
        assert parameters("heterofl", architecture, width) == pytest.approx(found, rel=0.01)
    bases = create("splitmix", tiers=table.BASES)
    sizes = [
        sum(torch.Size(s).numel() for s in download_shapes(bases, architecture, Tier(ratio)).values()) for ratio in table.BASES
    ]
    assert sizes == [count * parameters("heterofl", architecture, table.WIDTHS[-1]) for count in (3, 2, 1)]


def test_fedpara_on_the_pooled_network_saves_as_much_as_in_the_paper(tool):
    table = tool.table_of("fedpara-pooled")
    architecture = Architecture(table.MODEL, (1, 28, 28), 10)
    found = parameters("fedpara", architecture, table.GAMMA)
    assert parameters("fedavg", architecture, 1.0) / found == pytest.approx(9.2, abs=0.05)
    assert parameters("origdrop", architecture, table.NARROW) == pytest.approx(found, rel=0.01)
    low = download_shapes(create("lowrank", {"match": "fedpara"}), architecture, Tier(table.GAMMA)).values()
    assert 0.99 * found < sum(torch.Size(shape).numel() for shape in low) <= found


def test_four_layers_of_prisms_network_are_factorized(tool):
    architecture = Architecture("cnn-deep", (1, 28, 28), 10, "static")
    assert (
        sum(".u." in name for name in download_shapes(create("prism"), architecture, Tier(tool.table_of("prism-deep").KEEP))) == 4
    )


def test_low_rank_has_fedparas_parameters_and_fedavg_its_bytes(tool):
    fedpara = tool.table_of("fedpara")
    tier = Tier(fedpara.GAMMA)

    def numbers(method):
        return sum(torch.Size(shape).numel() for shape in download_shapes(method, FASHION, tier).values())

    factors, low = numbers(create("fedpara")), numbers(create("lowrank", {"match": "fedpara"}))
    assert low <= factors < 1.01 * low
    rounds = 30
    bytes_a_round = {
        n: payload_bytes(download_shapes(create(n), FASHION, t)) for n, t in (("fedpara", tier), ("fedavg", Tier(1.0)))
    }
    difference = fedpara.equal_bytes_rounds(rounds) * bytes_a_round["fedavg"] - rounds * bytes_a_round["fedpara"]
    assert abs(difference) <= bytes_a_round["fedavg"] / 2


def test_the_page_of_results_has_a_place_for_every_table(tool):
    from counters.markdown import page_of

    for name in tool.TABLES:
        page = page_of(f"paper-{name}").read_text(encoding="utf-8")
        assert page.count(f"<!-- paper-{name}:begin -->") == page.count(f"<!-- paper-{name}:end -->") == 1


def unmarked(text):
    """Without the marks of stale runs: any edit of the code makes them, until ``--confirm`` has run the probes."""
    return re.sub(r" †|\n- \*\*Stale .*", "", text)


@pytest.mark.parametrize("name", [*TABLES, "robustness"])
def test_the_page_of_results_has_the_stored_figures(tool, name):
    from counters.markdown import page_of

    text = tool.rendered(name, tool.load(tool.RESULTS / f"{name}.jsonl"))
    page = page_of(f"paper-{name}").read_text(encoding="utf-8")
    assert unmarked(text) in unmarked(page), "python tools/paper_tables.py --render-only --write"
