"""Comparisons: who takes part with which tiers, what the figures of a comparison are, and what its page and tables say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compared import contender, of_json, played, two, with_summary, without_updates
from pages import Page, charts_of, data_of, drawn, layers, looks, printed, rows, series

from edgefl.cli.compare import command
from edgefl.config import RunConfig
from edgefl.errors import BudgetError, CheckpointError, ConfigError, InputError
from edgefl.report.compare_page import compare_page
from edgefl.report.compare_tables import compact_comparison, compare_table
from edgefl.report.comparison import comparison_of, curve_of
from edgefl.report.evaluated import counted_run
from edgefl.report.page import vega
from edgefl.run.compare import compare
from edgefl.run.compare_entries import ComparisonRequest, Entry, asked_of, parts_of

SMALL = RunConfig(rounds=1, clients=4, local_epochs=1, model="mlp", data_share=0.3)


def test_a_curve_is_the_mean_over_seeds_of_accuracy_and_of_what_was_spent_so_far() -> None:
    runs = [played(0, [0.5, -1, 0.9]), played(1, [0.3, -1, 0.8], sent=300)]
    points = curve_of([counted_run(of.seed, of.summary, of.rounds) for of in runs], "global")
    assert [point.round for point in points] == [1, 3]
    assert points[0].accuracy == pytest.approx(0.4)
    assert (points[0].lowest, points[0].highest) == (0.3, 0.5)
    # Bytes after three rounds: 3 · 200 and 3 · 600; MACs 3 · 1000 and 3 · 3000.
    assert (points[1].bytes, points[1].macs, points[1].simulated_s, points[1].energy_j) == (1200, 6000, 6, 9)


def test_the_target_is_the_lowest_final_accuracy_and_read_off_the_mean_curve() -> None:
    quick, cheap = two()["methods"]
    assert two()["target_accuracy"] == 0.6
    assert quick["accuracy"]["mean"] == pytest.approx(0.85)
    assert quick["accuracy"]["sd"] == pytest.approx(0.0707, abs=1e-4)  # of 0.9 and 0.8, with n − 1
    # Its mean curve is 0.4, 0.8, 0.85: 0.6 is first there in round 2, after 2 · 200 bytes.
    assert quick["to_target"] == {"round": 2, "bytes": 400, "macs": 2000, "simulated_s": 4, "energy_j": 6}
    assert cheap["to_target"]["round"] == 3
    assert cheap["accuracy"]["sd"] is None
    assert cheap["seeds"] == [0]
    assert quick["tier_accuracy"]["0.5"]["mean"] == pytest.approx(0.75)
    assert (quick["params"], quick["bytes"]["mean"]) == ({"1": 1000, "0.5": 500}, 600)


def test_a_method_without_a_run_is_a_row_of_dashes_with_its_reason() -> None:
    summary = comparison_of(
        [contender("quick", played(0, [0.5])), contender("none", failures={0: "too large"})], [0], (1.0,), rank_by="global"
    ).to_dict()
    assert summary["methods"][1]["to_target"] is None
    assert summary["target_accuracy"] == 0.5
    rows = compare_table(of_json(summary)).rows
    assert rows[1][0] == "none"
    assert set(rows[1][1:]) == {"–", "none (failed: 0)"}
    assert "none, seed 0: failed: too large" in compact_comparison(of_json(summary)).to_plain()
    assert "too large" in Page(compare_page(of_json(summary))).text


def test_the_tables_hold_the_figures() -> None:
    summary = two()
    table = compare_table(of_json(summary))
    first = {f"{c.group} {c.head}".strip(): text for c, text in zip(table.columns, table.rows[0], strict=True)}
    assert first["global accuracy, ± SD"] == "85.0 ± 7.1 %"
    assert (first["until 60.0 % round"], first["until 60.0 % bytes"], first["until 60.0 % time"]) == ("2", "400 B", "4.00 s")
    assert (first["accuracy per tier, ± SD 0.5"], first["parameters per tier 1"], first["runs seeds"]) == (
        "75.0 ± 7.1 %",
        "1.00 k",
        "0, 1",
    )
    text = printed(compact_comparison(of_json(summary)), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "85.0 ± 7.1 %" in text
    plain = compact_comparison(of_json(summary)).to_plain().splitlines()
    assert plain[0].startswith(
        "method quick, rank 1 =, tiers 1, 0.5; global accuracy, ± SD 85.0 ± 7.1 %; accuracy, ± SD of global; "
        "until 60.0 % round 2, bytes 400 B"
    )
    assert plain[2].startswith("quick and cheap are tied at the end of the runs: global accuracy 85.0 ± 5.0 % (SE) for quick;")
    assert plain[-1] == "cheap, seed 1: failed: no device fits"


def test_accuracy_after_training_is_a_column_where_every_run_of_a_method_has_it() -> None:
    runs = [played(0, [0.9]), played(1, [0.8]), played(0, [0.7]), played(1, [0.6])]
    after = (0.95, 0.85, 0.5, None)
    runs = [with_summary(run, accuracy_after_training=value) for run, value in zip(runs, after, strict=True)]
    summary = comparison_of([contender("own", *runs[:2]), contender("some", *runs[2:])], [0, 1], (1.0, 0.5)).to_dict()
    assert summary["methods"][0]["accuracy_after_training"]["values"] == [0.95, 0.85]
    for table in (compare_table(of_json(summary)), compact_comparison(of_json(summary))):
        (place,) = (at for at, column in enumerate(table.columns) if column.head == "after training")
        assert [row[place] for row in table.rows] == ["90.0 ± 7.1 %", "–"]
    assert max(map(len, printed(compact_comparison(of_json(summary)), 80).splitlines())) <= 80
    assert all(column.head != "after training" for column in compare_table(of_json(two())).columns)


def test_unlike_accuracies_and_untrained_tiers_are_said() -> None:
    own, lazy = with_summary(played(0, [0.9]), accuracy_of="clients"), without_updates(played(0, [0.8]))
    summary = comparison_of([contender("own", own), contender("lazy", lazy)], [0], (1.0, 0.5)).to_dict()
    text = Page(compare_page(of_json(summary))).text
    assert "Not one kind of accuracy: of own it is the mean over clients" in text
    assert "of lazy it is the global model's" in text
    assert summary["methods"][1]["untrained_tiers"] == {"0.5": [0]}
    assert "lazy: no client trained tier 0.5" in compact_comparison(of_json(summary)).to_plain()
    assert list(summary["methods"][1]["tier_accuracy"]) == ["1"]
    (bars,) = layers(charts_of(compare_page(of_json(summary)))["compare-tiers"], "bar")
    assert [(row["series"], row["tier"]) for row in bars["data"]["values"]] == [
        ("own", "tier 1"),
        ("own", "tier 0.5"),
        ("lazy", "tier 1"),
    ]


def test_a_tier_has_the_accuracy_of_the_seeds_in_which_some_client_trained_it() -> None:
    lazy, busy = without_updates(played(0, [0.8])), played(1, [0.6])
    summary = comparison_of([contender("half", lazy, busy)], [0, 1], (1.0, 0.5)).to_dict()
    assert summary["methods"][0]["untrained_tiers"] == {"0.5": [0]}
    assert summary["methods"][0]["tier_accuracy"]["0.5"]["values"] == [0.5]
    assert "half: no client trained tier 0.5 in 1 of 2 seeds" in compact_comparison(of_json(summary)).to_plain()
    assert "The weakest is tier 0.5 of half, 50.0 %" in Page(compare_page(of_json(summary))).text


def test_runs_of_a_method_may_have_tiers_of_their_own() -> None:
    found = contender("own", played(0, [0.9], tiers=(0.5,)), played(1, [0.8], tiers=(0.7, 0.5)))
    summary = comparison_of([found], [0, 1], "auto").to_dict()
    assert summary["methods"][0]["tiers"] == [0.7, 0.5]
    assert {label: of["values"] for label, of in summary["methods"][0]["tier_accuracy"].items()} == {
        "0.7": [0.8],
        "0.5": pytest.approx([0.9, 0.7]),
    }
    assert "tiers 0.7, 0.5" in compact_comparison(of_json(summary)).to_plain()
    assert "tier 0.7 of own" in Page(compare_page(of_json(summary))).text


def test_the_page_draws_a_line_per_method_and_a_band_where_there_are_seeds() -> None:
    page = compare_page(of_json(two()))
    charts = charts_of(page)
    assert [key for key in charts if key.startswith("compare")] == [
        "compare-bytes",
        "compare-macs",
        "compare-simulated_s",
        "compare-tiers",
    ]
    (band,), (line,) = layers(charts["compare-bytes"], "area"), layers(charts["compare-bytes"], "line")
    assert (band["encoding"]["y"]["field"], band["encoding"]["y2"]["field"]) == ("lowest", "highest")
    assert series(band["data"]["values"], "highest") == {"quick": [0.5, 0.9, 0.9]}
    assert series(band["data"]["values"], "lowest") == {"quick": [0.3, 0.7, 0.8]}
    shown = line["data"]["values"]
    assert series(shown, "bytes") == {"quick": [200, 400, 600], "cheap": [20, 40, 60]}
    assert series(shown, "accuracy")["quick"] == pytest.approx([0.4, 0.8, 0.85])
    colours = looks(line, "color")
    assert colours["quick"] == looks(band, "color")["quick"] != colours["cheap"]
    assert layers(charts["compare-bytes"], "rule")[0]["encoding"]["y"]["datum"] == two()["target_accuracy"]
    assert series(rows(charts["compare-tiers"], "bar"), "tier") == {"quick": ["tier 1", "tier 0.5"], "cheap": ["tier 0.5"]}
    assert all(map(drawn, charts.values()))
    text = Page(page).text
    assert "cheap reaches 60.0 %, which all methods reach, with least: 60 B; quick takes most: 400 B, 6.67 times as much." in text
    assert [level for level, _ in Page(page).headings][:3] == [1, 2, 3]
    assert page == compare_page(of_json(two()))


def test_the_page_loads_nothing_and_escapes_what_it_shows() -> None:
    evil = "<script>alert(1)</script><b>&\"'"
    summary = two()
    summary["dataset"] = evil
    summary["methods"][0] |= {"label": evil, "tiers_why": evil, "options": {evil: evil}}
    summary["verdict"]["methods"][0]["label"] = evil
    summary["methods"][1]["failures"][0]["reason"] = evil
    rendered = compare_page(of_json(summary))
    bare = rendered.replace(vega().packed, "")
    assert "<script>alert" not in bare
    assert not {"src", "srcset"}.intersection(name for name, _ in Page(bare).attributes)
    links = [value for name, value in Page(bare).attributes if name == "href" and not (value or "").startswith("#")]
    assert all(re.fullmatch(r"[\w%/.-]+/seed-\d/report\.html", link or "") for link in links)
    assert not re.search(r"https?://|@import|url\((?!#)", bare)
    assert "<" not in data_of(rendered)


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        (["fedhn"], {}, "did you mean 'fedhm'"),
        (["fedavg@2"], {}, r"'fedavg@2': expected a ratio in \(0, 1\] after @"),
        (["fedavg@half"], {}, "such as fedavg@0.5"),
        ([], {}, "methods: expected at least one"),
        (["fedhm", "fedavg@0.5", "fedavg@0.50"], {}, r"methods: fedavg@0\.5 is listed 2 times"),
        (["fedhm"], {"seeds": ()}, "seeds: expected different whole numbers from 0, got none"),
        (["fedhm"], {"seeds": (1, 1)}, "seeds: .* got 1, 1"),
        (["fedhm"], {"options": {"prism": {"a": 1}}}, "method options of prism: not among the methods: fedhm"),
        (["fedhm"], {"options": {"fedhm": {"frobenius": 1}}}, "fedhm: method_options.frobenius: fedhm has no such option"),
        (["heterofl", "fedhm"], {"config": RunConfig(objective="dyn")}, "fedhm: objective: dyn makes no sense with FedHM"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    methods: list[str], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        compare(methods, out=tmp_path / "c", **{"config": SMALL, **changes})
    assert not (tmp_path / "c").exists()


def test_every_wrong_configuration_is_in_the_message() -> None:
    asked = asked_of(["fedhm", "heterofl"], SMALL, None, {"fedhm": {"x": 1}, "heterofl": {"y": 2}})
    with pytest.raises(ConfigError, match=r"fedhm: method_options\.x.*; heterofl: method_options\.y"):
        parts_of(asked)


def test_options_of_a_configuration_belong_to_its_method() -> None:
    config = SMALL.model_copy(update={"method": "fedhm", "method_options": {"temperature": 3.0}})
    assert asked_of(["fedhm", "fedavg"], config, None, {}).options == {"fedhm": {"temperature": 3.0}}
    with pytest.raises(ConfigError, match="method options of fedhm"):
        asked_of(["fedavg"], config, None, {})


def test_all_methods_have_the_tiers_of_the_first_that_has_several() -> None:
    parts, asked = parts_of(asked_of(["fedavg", "heterofl", "fedhm"], SMALL, (0, 1), {}))
    assert asked.config.tiers == (1.0, 0.5, 0.25)
    assert [(part.number, part.name) for part in parts[:4]] == [
        (0, "fedavg, seed 0"), (1, "heterofl, seed 0"), (2, "fedhm, seed 0"), (3, "fedavg, seed 1"),
    ]  # fmt: skip
    assert {part.config.tiers for part in parts if part.entry.method != "fedavg"} == {(1.0, 0.5, 0.25)}


def test_a_one_size_method_trains_the_largest_tier_that_every_class_fits() -> None:
    # The deadline is what the fastest class needs for the whole network: at 5 epochs of digits the others do not make it.
    config = RunConfig(clients=8, local_epochs=5, tiers=(1.0, 0.5, 0.25), tier_assignment="dynamic", tier_shares=(0.2, 0.3, 0.5))
    parts, _ = parts_of(asked_of(["fedavg", "fedavg@1", "lowrank"], config, None, {}))
    chosen, held, low = parts
    assert chosen.config.tiers == (0.5,)
    assert "of 1, 0.5, 0.25 that every class fits" in chosen.tiers_why
    # With one tier there is nothing to draw.
    assert (chosen.config.tier_assignment, chosen.config.tier_shares) == ("auto", None)
    assert held.config.tiers == (1.0,)
    # A default below 1 is never exceeded.
    assert low.config.tiers is not None
    assert max(low.config.tiers) <= 0.25  # type: ignore[type-var]


def test_what_was_asked_is_read_back(tmp_path: Path) -> None:
    asked = ComparisonRequest(
        ("fedhm", "fedavg@0.5"), SMALL.model_copy(update={"tiers": (1.0, 0.5)}), (0, 3), {"fedhm": {"temperature": 2.0}}
    )
    path = tmp_path / "comparison.toml"
    path.write_text(asked.to_toml())
    assert ComparisonRequest.of_file(path) == asked
    assert ComparisonRequest.of_file(path, {"workers": 2}).config.workers == 2
    path.write_text("methods = []\n")
    with pytest.raises(CheckpointError, match="expected the keys methods, seeds, config and options"):
        ComparisonRequest.of_file(path)


def test_nobody_fits_anything_is_status_3_and_nothing_is_written(tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"profile": "micro-controller", "model": "cnn-digits", "on_shortfall": ("tier",)})
    with pytest.raises(BudgetError, match=r"no run of the comparison can start:\nfedhm, seed 0: no device of the fleet fits"):
        compare(["fedhm", "heterofl@1"], config, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_folder_of_something_else_is_not_resumed(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("# of a run\n")
    with pytest.raises(CheckpointError, match=r"exists and is not an empty folder; give another --out$"):
        compare(["fedhm"], SMALL, tmp_path, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_the_label_of_an_entry_is_its_shortest_form() -> None:
    assert [Entry.of(text).label for text in ("fedhm", " fedavg@.25", "fedavg@1.0")] == ["fedhm", "fedavg@0.25", "fedavg@1"]


def test_options_may_name_a_method_by_its_class() -> None:
    by_class = "edgefl.methods.fedhm:FedHM"
    asked = asked_of([f"{by_class}@0.5", "heterofl"], SMALL, None, {by_class: {"temperature": 2.0}})
    assert (asked.methods, asked.options) == (("fedhm@0.5", "heterofl"), {"fedhm": {"temperature": 2.0}})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "c"], "give --methods"),
        (["--methods", "fedhm", "--out", "c", "--seeds", "a"], "is not a list of whole numbers such as 0,1,2"),
        (["--methods", "fedhm", "--out", "c", "--method-option", "x=1"], "give NAME.x=VALUE"),
        (["--methods", "fedhm"], "give --out, the folder for the report and all runs"),
    ],
)
def test_the_command_says_what_it_needs(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_a_method_may_have_settings_of_its_own(tmp_path: Path) -> None:
    asked = asked_of(["fedhm", "fedavg@0.5"], SMALL, (0,), {}, {"fedhm": {"lr": 0.01}, "fedavg@0.50": {"batch_size": 8}})
    parts, asked = parts_of(asked)
    assert [(part.entry.label, part.config.lr, part.config.batch_size) for part in parts] == [
        ("fedhm", 0.01, 32),
        ("fedavg@0.5", SMALL.lr, 8),
    ]
    path = tmp_path / "comparison.toml"
    path.write_text(asked.to_toml())
    assert ComparisonRequest.of_file(path) == asked
    for settings, message in (
        ({"prism": {"lr": 1.0}}, "settings of prism: not among the methods: fedhm, fedavg, fedavg@0.5"),
        (
            {"fedhm": {"clients": 9}},
            "settings of fedhm: clients is the same for all methods; each may have its own local_epochs, batch",
        ),
        ({"fedhm": {"lr": -1}}, "settings of fedhm: lr"),
        ({"fedhm": {"rate": 1}}, "settings of fedhm: .*rate"),
    ):
        with pytest.raises(ConfigError, match=message):
            asked_of(["fedhm", "fedavg@0.5"], SMALL, (0,), {}, settings)
    result = CliRunner().invoke(command, ["--methods", "fedhm", "--out", str(tmp_path / "c"), "--set", "lr=0.1"])
    assert (result.exit_code, "--set: 'lr' names no method" in result.output) == (2, True)


def test_what_runs_do_not_have_in_common_is_not_stated_as_common() -> None:
    large, small = with_summary(played(0, [0.9]), batch_size=32), with_summary(played(0, [0.8]), batch_size=8)
    summary = comparison_of([contender("large", large), contender("small", small)], [0], (1.0,))
    assert (summary.batch_size, summary.model) == (None, "mlp")
