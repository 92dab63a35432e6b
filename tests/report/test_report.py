"""The report room: tables in every format, and a run's page: whole, escaped, sensible when there is little to show."""

import base64
import itertools
import json
import re
import subprocess
import zlib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from client_records import client_record
from pages import Page, charts_of, data_of, drawn, labels, layers, looks, printed, rows, series

from edgefl.errors import InputError
from edgefl.records import RoundRecord, Shortfall, Tier, Timing, Totals
from edgefl.report import html
from edgefl.report.energy import energy_sentence
from edgefl.report.fleet_charts import outcome_charts
from edgefl.report.observed import observed_charts
from edgefl.report.page import vega
from edgefl.report.run_charts import accuracy_charts, budget_chart
from edgefl.report.run_files import read_summary
from edgefl.report.run_tables import compact_tiers, stage_table, tier_table

CLASSES = (
    ("flagship-phone", "Flagship phone", 0.15, 3, 1.0),
    ("mid-range-phone", "Mid-range phone", 0.45, 9, 0.5),
    ("low-end-phone", "Low-end phone", 0.3, 6, 0.25),
    ("micro-controller", "Micro-controller (Cortex-M4)", 0.1, 2, None),
)
SHORT = Shortfall("memory_bytes", 1_310_000, 640_000, "micro-controller", 0.25)
STAGES = {
    "server": {"wait": 30.0, "evaluate": 9.0, "report": 4.0, "<b>of a later version</b>": 1.0},
    "background": {"checkpoint": 2.0},
    "workers": {"1": {"train": 25.0}, "2": {"train": 24.0}},
}
SECTIONS = [
    "Accuracy",
    "Tiers and their costs",
    "Budgets of the device classes",
    "A round on the clock",
    "Who takes part",
    "Outcomes of clients",
    "Where this computer's time went",
    "Assumed figures",
]


def tier_row(tier: float, device: str, title: str, clients: int) -> dict[str, Any]:
    held = {"parameter_bytes": 154_000, "gradient_bytes": 154_000, "optimizer_bytes": 154_000}
    held = {key: int(value * tier) for key, value in held.items()}
    peak = int(1_920_000 * tier**0.7)
    return {
        "tier": Tier(tier).number,
        "device": device,
        "device_title": title,
        "clients": clients,
        "accuracy": 0.968 - 0.02 * (1 - tier),
        "torch_accuracy": 0.968 - 0.02 * (1 - tier),
        "params": int(38_442 * tier),
        "params_inference": int(38_442 * tier),
        "macs_backward_input": int(1_106_000 * tier),
        "macs_backward_weight": int(1_204_000 * tier),
        "macs_drawn": None,
        "macs_inference": int(1_204_000 * tier),
        "elementwise_ops": 900,
        "elementwise_ops_backward": 700,
        "elementwise_ops_step": 100,
        "buffer_bytes": 0,
        "weights_bytes_inference": held["parameter_bytes"],
        "peak_gradient_bytes": held["gradient_bytes"],
        "peak_saved_bytes": peak,
        "peak_temporary_bytes": 0,
        "peak_layer_training": "conv1",
        "peak_layer_inference": "conv1",
        "batch_size": 32,
        "micro_batch": None,
        "measured_peak_activation_bytes_onnx": None,
        "macs_forward": int(1_204_000 * tier),
        "macs_backward": int(2_310_000 * tier),
        "macs_compose": 0 if tier == 1 else 48_000,
        "macs_train_step": int(32 * 3_514_000 * tier) + (0 if tier == 1 else 48_000),
        "peak_activation_bytes_inference": peak // 3,
        "peak_activation_bytes_training": peak,
        "measured_peak_activation_bytes_training": None if tier == 0.5 else peak - 61_000,
        "measured_training_memory_bytes": None if tier == 0.5 else sum(held.values()) + peak - 70_000,
        "measured_peak_activation_bytes_inference": peak // 3,
        **held,
        "training_memory_bytes": sum(held.values()) + peak,
        "inference_memory_bytes": held["parameter_bytes"] + peak // 3,
        "download_bytes": int(155_392 * tier),
        "upload_bytes": int(155_392 * tier),
        "round_seconds": 71.2 * tier**0.1,
        "round_joules": 8.51 * tier,
        "budget_share": 0.62 + 0.3 * tier,
        "limiting_budget": "deadline_s",
        "uncounted_ops": [],
    }


def class_entry(device: str, title: str, share: float, clients: int, tier: float | None) -> dict[str, Any]:
    used = 0.2 if tier is None else 0.62 + 0.3 * tier
    budgets = [
        {"budget": "memory_bytes", "need": 6.4e5, "have": 2.56e7, "share": 0.025},
        {"budget": "deadline_s", "need": 80 * used, "have": 80.0, "share": used},
    ]
    refusals = [asdict(SHORT)] if tier is None else []
    if tier not in (None, 1.0):
        refusals = [asdict(Shortfall("deadline_s", 101.5, 80, device, 1.0))]
    return {
        "device": device,
        "title": title,
        "share": share,
        "clients": clients,
        "tier": tier,
        "micro_batch": None,
        "considered": [],
        "budgets": [] if tier is None else budgets,
        "refusals": refusals,
        "assumed": ["compute.training_gmacs_per_s", "memory.app_bytes", "power.idle_w"],
        "clock_error": 1.25,
    }


def make_summary() -> dict[str, Any]:
    return {
        "format": 1,
        "method": "fedhm",
        "model": "cnn-digits",
        "dataset": "digits",
        "fleet": "phone",
        "partition": "dirichlet:0.5",
        "seed": 0,
        "rounds": 30,
        "clients": 20,
        "per_round": 10,
        "batch_size": 32,
        "local_epochs": 2,
        "tier_assignment": "auto",
        "objective": "none",
        "server_optimizer": "avg",
        "codec": "fp32",
        "permute_labels": False,
        "conditions": "fleet",
        "availability": "always",
        "start_hour": 0.0,
        "mode": "sync",
        "buffer": None,
        "enforce": "meter",
        "dynamic_devices": False,
        "over_selection": 1.3,
        "assumed": [],
        "accuracy_of": "global",
        "global_accuracy": 0.968,
        "simulated_s": 2136.0,
        "host_s": 41.7,
        "energy_j": 1204.2,
        "end_to_end_j": 1900.0,
        "waited_s": 0.0,
        "macs": 2_000_000_000,
        "download_bytes": 21_400_000,
        "upload_bytes": 20_900_000,
        "useful": {**asdict(Totals(280, 9, 20, 20, 1190.0, 1800.0, 900.0))},
        "wasted": {**asdict(Totals(2, 0, 0, 0, 14.2, 100.0, 12.0))},
        "edgefl_version": "0.1.0",
        "deadline_s": 80.0,
        "tiers": [tier_row(tier, device, title, n) for device, title, _, n, tier in CLASSES if tier is not None],
        "classes": [class_entry(*entry) for entry in CLASSES],
        "participation": [participation_entry(*entry) for entry in CLASSES],
        "host_stages": STAGES,
    }


def participation_entry(device: str, title: str, share: float, clients: int, tier: float | None) -> dict[str, Any]:
    trained = 0 if tier is None else 14 * clients
    return {
        "device": device,
        "title": title,
        "share": share,
        "clients": clients,
        "sessions": 15 * clients,
        "distinct": clients if trained else 0,
        "statuses": {"trained": trained, "refused": 15 * clients - trained},
        "useful": asdict(Totals(trained, 9, 20, 20, 10.0, 20.0, 30.0)),
        "wasted": asdict(Totals.of([])),
        "tier": tier,
        "accuracy": None if tier is None else 0.968 - 0.02 * (1 - tier),
    }


def make_rounds(count: int = 30) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    devices = [(device, tier) for device, _, _, n, tier in CLASSES for _ in range(n)]
    records = []
    for number in range(1, count + 1):
        outcomes = []
        for client in sorted(rng.choice(len(devices), 10, replace=False).tolist()):
            device, tier = devices[client]
            if tier is None:
                outcomes.append(client_record(client, device, "refused", samples=0, refusal=(SHORT,)))
                continue
            status = "diverged" if rng.random() < 0.02 else "trained"
            sent = int(155_392 * tier)
            timing = Timing(4.1, 60 * tier**0.1, 7.1, 5.0, 2.0)
            outcomes.append(
                client_record(client, device, status, Tier(tier), timing, macs=9, download_bytes=sent, upload_bytes=sent)
            )
        best = 0.97 - 0.75 * np.exp(-number / 5) + 0.008 * rng.standard_normal()
        accuracy = {"global": float(best)} | {f"{t:g}": float(best - 0.03 * (1 - t)) for t in (1, 0.5, 0.25)}
        record = RoundRecord(number, tuple(outcomes), 71.2, 71.2 * number, accuracy if number % 2 == 0 else {}, 1.4)
        records.append(json.loads(json.dumps(record.to_json())))
    return records


def make_run(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").write_text(json.dumps(make_summary()))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in make_rounds()))
    return folder


def test_page_has_every_section_chart_and_heading_in_order() -> None:
    rendered = html.render(make_summary(), make_rounds())
    page = Page(rendered)
    assert [text for level, text in page.headings if level == 2] == SECTIONS
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(charts_of(rendered)) == 21
    assert page.tags.count("table") == page.tags.count("caption") == 8
    assert ("lang", "en") in page.attributes
    assert ("name", "viewport") in page.attributes


@pytest.mark.parametrize(
    "text",
    [
        "96.8 %",
        "35 min 36 s",
        "42.3 MB",
        "1.20 kJ",
        "this computer's time",
        "of 20 clients",
        "+3.3 %",
        "needs 1.31 MB, has 640 kB",
        "tier 1: deadline needs 1 min 42 s, has 1 min 20 s",
        "compute.training_gmacs_per_s",
        "92.0 % deadline",
        "edgefl 0.1.0",
    ],
)
def test_page_says(text: str) -> None:
    assert text in Page(html.render(make_summary(), make_rounds())).text


def test_page_loads_nothing_from_a_network() -> None:
    rendered = html.render(make_summary(), make_rounds())
    assert rendered.count(vega().packed) == 1
    page = Page(rendered.replace(vega().packed, ""))
    assert not {"link", "img", "iframe", "object", "embed", "base"}.intersection(page.tags)
    assert not {"src", "srcset", "action", "data"}.intersection(name for name, _ in page.attributes)
    assert all((value or "").startswith("#") for name, value in page.attributes if name == "href")
    assert any("default-src 'none'" in (value or "") for _, value in page.attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", rendered.replace(vega().packed, ""))


def test_vega_is_bundled_once_and_read_from_the_user_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"Vega 6\.\S+, Vega-Lite 6\.\S+ and Vega-Embed 7\.\S+", vega().versions)
    assert b"vegaEmbed" in zlib.decompress(base64.b64decode(vega().packed, validate=True))
    assert len(vega().packed) < 450_000
    made: list[int] = []

    def bundle(*command: Any, **options: Any) -> SimpleNamespace:
        made.append(1)
        return SimpleNamespace(stdout=b"Vega 6\npacked")

    monkeypatch.setattr(subprocess, "run", bundle)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [vega.__wrapped__() for _ in range(2)] == [("Vega 6", "packed")] * 2
    assert len(made) == 1
    # A cache that cannot be written costs time, not the page.
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert [vega.__wrapped__() for _ in range(2)] == [("Vega 6", "packed")] * 2
    assert len(made) == 3


def test_the_same_run_gives_the_same_page() -> None:
    assert html.render(make_summary(), make_rounds()) == html.render(make_summary(), make_rounds())


def test_whatever_comes_from_a_run_is_escaped() -> None:
    evil = "<script>alert(1)</script><b>&\"'"
    summary, rounds = make_summary(), make_rounds()
    for key in ("method", "model", "dataset", "fleet", "partition", "tier_assignment", "edgefl_version"):
        summary[key] = evil
    for tier in summary["tiers"]:
        tier |= {"device_title": evil, "limiting_budget": evil, "uncounted_ops": [evil]}
    for item in summary["classes"]:
        item |= {"title": evil, "assumed": [evil]}
    rounds[0]["clients"][0]["status"] = rounds[0]["groups"][0]["status"] = evil
    rounds[0]["clients"][1]["device"] = rounds[0]["groups"][1]["device"] = evil
    rendered = html.render(summary, rounds)
    assert "<script>alert" not in rendered
    assert rendered.count("<script") == 3
    assert "b" not in Page(rendered.replace(vega().packed, "")).tags
    assert "<" not in data_of(rendered)
    assert evil in Page(rendered.replace(vega().packed, "")).text


def test_charts_pass_vega_lite_s_schema_and_are_drawn() -> None:
    for spec in charts_of(html.render(make_summary(), make_rounds())).values():
        assert drawn(spec).startswith("<svg")


def test_a_tier_has_one_colour_in_every_chart() -> None:
    charts = charts_of(html.render(make_summary(), make_rounds()))
    lines = looks(layers(charts["accuracy-bytes"], "line")[0], "color")
    (bars,) = layers(charts["cost-compute"], "bar")
    assert looks(bars, "fill").items() <= lines.items()
    assert [row["series"] for row in bars["data"]["values"]] == list(looks(bars, "fill")) == ["tier 1", "tier 0.5", "tier 0.25"]
    assert labels(charts["cost-compute"]) == ["tier 1", "tier 0.5", "tier 0.25"]
    assert len(set(lines.values())) == len(lines) == 4
    assert lines["tier 1"] == "var(--tier-0)"
    assert [row["colour"] for row in rows(charts["budget-use"], "bar")[:2]] == [lines["tier 1"]] * 2


def test_accuracy_is_drawn_over_all_bytes_up_to_each_evaluated_round() -> None:
    rounds = make_rounds(4)
    sent = [record["download_bytes"] + record["upload_bytes"] for record in rounds]
    charts = accuracy_charts(make_summary(), rounds)
    shown = [rows(chart.spec, "line") for chart in charts]
    assert [layers(chart.spec, "line")[0]["encoding"]["x"]["field"] for chart in charts] == ["round", "bytes", "clock"]
    assert series(shown[0], "round")["tier 1"] == [2, 4]
    assert series(shown[1], "bytes")["tier 1"] == [sum(sent[:2]), sum(sent)]
    assert series(shown[2], "clock")["tier 1"] == pytest.approx([142.4 / 60, 284.8 / 60])
    assert series(shown[0], "accuracy")["global"] == [rounds[1]["accuracy"]["global"], rounds[3]["accuracy"]["global"]]


def test_a_budget_far_exceeded_is_cut_but_says_its_figure() -> None:
    summary = make_summary()
    summary["classes"][3]["refusals"][0]["need"] = 64e6
    spec = budget_chart(summary).spec
    (bars,) = layers(spec, "bar")
    assert bars["data"]["values"][-1]["share"] == 1.5 == bars["encoding"]["x"]["scale"]["domain"][1]
    assert bars["data"]["values"][-1]["text"] == "10,000 %"
    assert layers(spec, "rule")[0]["encoding"]["x"]["datum"] == 1
    assert "10,000 %" in drawn(spec)


def test_outcomes_count_every_client_turn() -> None:
    rounds = make_rounds()
    per_round, per_class = (rows(chart.spec, "bar") for chart in outcome_charts(make_summary(), rounds))
    assert sum(row["value"] for row in per_round) == sum(len(record["clients"]) for record in rounds)
    assert sum(row["value"] for row in per_class) == 300
    assert series(per_round, "value")["trained"] == [record["trained"] for record in rounds]


def test_a_run_without_evaluation_says_so_instead_of_drawing() -> None:
    summary, rounds = make_summary(), make_rounds()
    summary["global_accuracy"] = None
    for tier in summary["tiers"]:
        tier |= {"accuracy": None, "torch_accuracy": None}
    for record in rounds:
        record["accuracy"] = {}
    rendered = html.render(summary, rounds)
    assert Page(rendered).text.count("No round was evaluated, so there is no accuracy to draw.") == 3
    assert not any(key.startswith("accuracy") for key in charts_of(rendered))


def test_a_run_in_which_every_client_was_refused_is_reported() -> None:
    summary = make_summary()
    summary["tiers"] = []
    summary["classes"] = [summary["classes"][3] | {"clients": 20}]
    refused = [client_record(client, "micro-controller", "refused", samples=0, refusal=(SHORT,)) for client in range(10)]
    rendered = html.render(summary, [RoundRecord(1, tuple(refused), 0.0, 0.0, {}, 0.1).to_json()])
    text = Page(rendered).text
    assert "The run has no tier, so there is no cost to draw." in text
    assert "0 of 10 sessions trained; 10 refused." in text
    assert "Selected, but never trained: Micro-controller (Cortex-M4)." in text
    cards = {name: number for name, number, _ in html._cards(summary, [])}
    assert cards["Clients refused"] == "20"


def test_a_run_without_rounds_or_classes_is_reported() -> None:
    summary = make_summary() | {"classes": [], "deadline_s": None}
    text = Page(html.render(summary, [])).text
    for sentence in (
        "No client was selected.",
        "No device class of this run has a budget.",
    ):
        assert sentence in text


def test_write_makes_the_page_of_a_run_folder(tmp_path: Path) -> None:
    page = html.write(make_run(tmp_path / "run"))
    assert page == tmp_path / "run" / "report.html"
    assert page.read_text(encoding="utf-8") == html.render(make_summary(), make_rounds())
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "rounds.jsonl", "summary.json"]


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


def test_the_tier_table_has_a_text_for_every_column_largest_tier_first() -> None:
    summary = make_summary()
    summary["tiers"].reverse()
    table = tier_table(summary)
    assert [row[0] for row in table.rows] == ["1", "0.5", "0.25"]
    assert {len(row) for row in table.rows} == {len(table.columns)}
    half = {f"{c.group} {c.head}".strip(): text for c, text in zip(table.columns, table.rows[1], strict=True)}
    assert half["peak activations training, measured"] == "–"
    assert half["MACs per step composition"] == "48.0 k"
    assert half["round on its device budget used"] == "77.0 % deadline"


@pytest.mark.parametrize("width", [80, 120])
def test_the_terminal_table_fits_and_cuts_nothing(width: int) -> None:
    text = printed(compact_tiers(make_summary()), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for figure in (
        "96.8 %",
        "38.4 k",
        "1.20 M",
        "112 M",
        "1.92 MB",
        "1.86 MB",
        "155 kB",
        "1 min 11 s",
        "8.51 J",
        "92.0 %",
    ):
        assert figure in text
    assert "deadline" in text


def test_a_device_title_is_no_markup_in_the_terminal() -> None:
    summary = make_summary()
    summary["tiers"][0]["device_title"] = "[red]"
    assert "[red]" in printed(compact_tiers(summary), 80)


def test_plain_lines_hold_the_same_figures() -> None:
    summary = make_summary()
    first, *rest = compact_tiers(summary).to_plain().splitlines()
    assert len(rest) == 2
    assert first.startswith("tier 1; device Flagship phone; accuracy 96.8 %; params 38.4 k; MACs forward 1.20 M, step 112 M")
    assert first.endswith("a round time 1 min 11 s, energy 8.51 J; budget used 92.0 %, deadline")
    summary["tiers"][2]["uncounted_ops"] = ["Erf"]
    assert compact_tiers(summary).to_plain().endswith("Not counted, so no budget can be claimed met: tier 0.25: Erf")


def test_a_tier_that_no_class_takes_has_dashes() -> None:
    summary = make_summary()
    keys = ("device", "device_title", "round_seconds", "round_joules", "budget_share", "limiting_budget")
    summary["tiers"][1] |= dict.fromkeys(keys)
    line = compact_tiers(summary).to_plain().splitlines()[1]
    assert "device –;" in line
    assert "a round time –, energy –; budget used –" in line
    assert html.render(summary, make_rounds())


ADDED = {
    "objective": "prox",
    "server_optimizer": "adam",
    "codec": "int8",
    "permute_labels": True,
    "macs": 9,
    "accuracy_of": "clients",
}


def test_a_summary_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert read_summary(run / "summary.json") == make_summary()
    (run / "summary.json").write_text(json.dumps(make_summary() | ADDED))
    assert read_summary(run / "summary.json") == make_summary() | ADDED
    assert html.write(run).exists()
    (run / "summary.json").write_text(json.dumps(make_summary() | {"accuracy_of": "nobody"}))
    with pytest.raises(InputError, match=r"summary\.json: accuracy_of must be 'global' or 'clients', got 'nobody'"):
        html.write(run)


def test_the_page_says_how_clients_and_server_optimize_and_what_travels() -> None:
    about = dict(html._about(make_summary() | ADDED, measured=False))
    assert {about[key] for key in ("method", "objective", "server optimizer", "codec")} == {"fedhm", "prox", "adam", "int8"}
    assert (about["labels"], about["accuracy of"]) == ("each client's own", "the mean over clients, each on its own")
    about = dict(html._about(make_summary(), measured=False))
    assert {about[key] for key in ("objective", "server optimizer", "codec")} == {"none", "avg", "fp32"}
    assert about["accuracy of"] == "the global model"


@pytest.mark.parametrize("accuracy_of", ["clients", "global"])
def test_accuracy_after_training_is_shown_where_it_was_measured(accuracy_of: str) -> None:
    summary, rounds = make_summary() | {"accuracy_of": accuracy_of}, make_rounds()
    assert "after local training" not in Page(html.render(summary, rounds)).text.lower()
    rounds[-1]["accuracy_after_training"] = summary["accuracy_after_training"] = 0.9754
    text = Page(html.render(summary, rounds)).text
    assert "Right after local training, the round's clients are right on 97.5 % of their own." in text
    assert ("After local training", "97.5 %") in [card[:2] for card in html._cards(summary, rounds)]


def test_accuracies_of_clients_are_never_called_the_global_model_s() -> None:
    rendered = html.render(make_summary() | ADDED, make_rounds())
    text = Page(rendered).text
    assert "on average, each on its own held-out samples" in text
    assert "clients are right on" in text
    assert "The clients' mean came within one point of its best" in text
    assert "global model is right" not in text
    assert list(series(rows(charts_of(rendered)["accuracy-round"], "line"), "round"))[-1] == "mean of clients"


def observing(*observed: Any) -> list[dict[str, Any]]:
    return [{**record, "observed": of} for record, of in zip(make_rounds(len(observed)), observed, strict=True)]


def test_what_a_method_says_of_its_layers_is_drawn() -> None:
    layers = {"conv1": {"effective_rank": 3.5, "draws": [2, 1]}, "conv2": {"effective_rank": 6.25, "draws": [2, 0, 1]}}
    later = {"conv1": {"effective_rank": 3.0, "draws": [1, 1]}, "conv2": {"effective_rank": 5.5, "draws": [2, 1, 0]}}
    rounds = observing({"kernels": layers}, {"kernels": later})
    rank, draws = observed_charts(rounds)
    assert (rank.title, rank.takeaway) == ("Effective rank per layer", "In round 2: conv1 3, conv2 5.5.")
    lines = rows(rank.spec, "line")
    assert series(lines, "value") == {"conv1": [3.5, 3.0], "conv2": [6.25, 5.5]}
    assert series(lines, "round") == {"conv1": [1, 2], "conv2": [1, 2]}
    cells = [(row["slot"].partition("|")[2], row["at"], row["value"]) for row in rows(draws.spec, "rect")]
    assert cells == [("conv1", 0, 3), ("conv1", 1, 2), ("conv2", 0, 4), ("conv2", 1, 1), ("conv2", 2, 1)]
    assert "the largest is kernel 0 of conv2, 4; its smallest is 1" in draws.takeaway
    rendered = html.render(make_summary(), rounds)
    assert [text for level, text in Page(rendered).headings if level == 2] == [
        *SECTIONS[:6],
        "Figures that fedhm reports of its rounds",
        *SECTIONS[6:],
    ]
    assert all(map(drawn, charts_of(rendered).values()))


def with_energy(*shares: float | None) -> dict[str, Any]:
    """A summary of tiers 1, 0.5 and 0.25 with shares of energy, smallest tier first."""
    summary = make_summary()
    tiers = zip((0.25, 0.5, 1.0), shares, (100, 150, 400), strict=False)
    summary["tiers"] = [
        tier_row(tier, "phone", "Phone", 3) | {"energy_share": of, "macs_train_step": macs} for tier, of, macs in tiers
    ]
    return summary


IDLE = (
    "Tier {} has learned almost nothing that tier {} cannot hold, but costs {} times the MACs: "
    "its extra ranks hold {} of the sum of squares of its factorized weights."
)
SHARES = "Sum of squares of the factorized weights: {} in the ranks of tier 0.25, {} in those that tier 0.5 adds, {}."


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.6, 0.3, 0.1), SHARES.format("60.0 %", "30.0 %", "10.0 % in those that tier 1 adds")),
        ((0.5, 0.4), SHARES.format("50.0 %", "40.0 %", "10.0 % in ranks that no tier has")),
        ((0.6, 0.395, 0.005), IDLE.format("1", "0.5", "2.7", "0.5 %")),
        ((0.9999, 0.0001, 0.0), IDLE.format("1", "0.25", "4.0", "<0.1 %")),
        ((0.5, 0.001), IDLE.format("0.5", "0.25", "1.5", "0.2 %")),
        ((1.0,), ""),
        ((None, None, None), ""),
    ],
)
def test_what_larger_tiers_hold_is_a_sentence_below_the_tiers(shares: tuple[float | None, ...], sentence: str) -> None:
    summary = with_energy(*shares)
    assert energy_sentence(summary["tiers"]) == sentence
    assert compact_tiers(summary).note == sentence
    text = Page(html.render(summary, make_rounds())).text
    assert sentence in text
    assert ("factorized weights" in text) == bool(sentence)


def test_energy_per_band_is_a_chart() -> None:
    figure = {"energy first held by tier 0.5": 0.75, "energy first held by tier 1": 0.25}
    rounds = observing({"energy": figure, "energy_by_layer": {"conv2": figure, "conv3": figure}})
    whole, *by_layer = observed_charts(rounds)
    assert whole.title == "Share of the factorized layers' energy per band of ranks"
    assert series(rows(whole.spec, "line"), "value") == {name: [value] for name, value in figure.items()}
    assert [chart.title for chart in by_layer] == [name.capitalize() for name in figure]
    assert series(rows(by_layer[1].spec, "line"), "value") == {"conv2": [0.25], "conv3": [0.25]}


def test_numbers_and_lists_are_lines_and_many_layers_a_map() -> None:
    number, clusters = observed_charts(observing({"matched": 2.5, "clusters": [3]}, {"matched": 3, "clusters": [2, 1]}))
    assert series(rows(number.spec, "line"), "value") == {"matched": [2.5, 3.0]}
    assert clusters.takeaway == "In round 2: 0 2, 1 1."
    (ranks,) = observed_charts(observing({"rank": {f"layer{n}": n for n in range(12)}}))
    assert [row["value"] for row in rows(ranks.spec, "rect")] == list(range(12))
    assert ranks.takeaway.endswith("and 8 more.")


@pytest.mark.parametrize(
    "observed", [{}, {"note": "words"}, {"flag": True}, {"mixed": {"a": [1], "b": 2}}, {"deep": {"a": {"b": {"c": 1}}}}]
)
def test_what_has_no_known_form_is_left_out_without_harm(observed: dict[str, Any]) -> None:
    assert html.render(make_summary(), observing(observed, observed))


def test_names_in_observations_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    for observed in ({evil: 1}, {"rank": {evil: 1}}, {"draws": {evil: [1]}}, {"kernels": {evil: {evil: 1}}}):
        rendered = html.render(make_summary(), observing(observed))
        assert "<script>alert" not in rendered.replace(vega().packed, "")
        assert "<" not in data_of(rendered)


def test_the_page_says_where_this_computer_s_time_went() -> None:
    rendered = html.render(make_summary(), make_rounds())
    page = Page(rendered)
    assert [text for level, text in page.headings if level == 2] == SECTIONS
    rows = [
        row
        for row in re.findall(r'<tr role="row">(.*?)</tr>', rendered.replace("\xa0", " "))
        if "held-out samples</th>" in row or "local training" in row
    ]
    assert [re.sub(r"(<[^>]*>)+", "|", row) for row in rows] == [
        "|train: local training|–|–|–|49.0 s|",
        "|evaluate: accuracies on held-out samples|9.00 s|22.5 %|–|–|",
    ]
    assert "in 2 worker processes" in rendered
    assert "report: summary and page" not in rendered
    assert "<b>of a later" not in rendered


def test_a_run_in_one_process_has_no_empty_columns() -> None:
    table = stage_table({"host_stages": {"server": {"wait": 0.0}}})
    assert tuple(column.group for column in table.columns) == ("stage", "this process", "share")
    assert stage_table({"host_stages": {"server": {}}}).rows == ()


def test_malformed_stages_are_refused_where_they_are(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (run / "summary.json").write_text(json.dumps({**make_summary(), "host_stages": {"server": {"wait": -1.0}}}))
    with pytest.raises(InputError, match=r"host_stages\.server\.wait must be at least 0"):
        html.write(run)
