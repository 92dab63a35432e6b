"""A run's page: its sections and sentences, whole, escaped and without a network."""

import base64
import itertools
import re
import sys
import zlib
from pathlib import Path

import pytest
from client_records import client_record
from made_records import rounds_in, run_page, summary_in
from made_run import ADDED, SECTIONS, SHORT, make_rounds, make_run, make_summary
from pages import Page, charts_of, data_of, rows, series

from edgefl.records import RoundRecord
from edgefl.report import html
from edgefl.report.page import vega


def test_page_has_every_section_chart_and_heading_in_order() -> None:
    rendered = run_page(make_summary(), make_rounds())
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
    assert text in Page(run_page(make_summary(), make_rounds())).text


def test_page_loads_nothing_from_a_network() -> None:
    rendered = run_page(make_summary(), make_rounds())
    assert rendered.count(vega().packed) == 1
    page = Page(rendered.replace(vega().packed, ""))
    assert not {"link", "img", "iframe", "object", "embed", "base"}.intersection(page.tags)
    assert not {"src", "srcset", "action", "data"}.intersection(name for name, _ in page.attributes)
    assert all((value or "").startswith("#") for name, value in page.attributes if name == "href")
    assert any("default-src 'none'" in (value or "") for _, value in page.attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", rendered.replace(vega().packed, ""))


def test_vega_ships_with_the_package_as_the_tested_vl_convert_bundles_it() -> None:
    assert re.fullmatch(r"Vega 6\.\S+, Vega-Lite 6\.\S+ and Vega-Embed 7\.\S+", vega().versions)
    library = pytest.importorskip("vl_convert")
    found = library.get_vega_version(), library.get_vegalite_versions()[-1], library.get_vega_embed_version()
    assert vega().versions == "Vega {}, Vega-Lite {} and Vega-Embed {}".format(*found), "run tools/vega.py"
    assert b"vegaEmbed" in zlib.decompress(base64.b64decode(vega().packed, validate=True))
    assert len(vega().packed) < 450_000
    licences = (Path(html.__file__).parent / "vega-licence.md").read_text()
    assert vega().versions in licences
    assert licences.count("Redistribution and use in source and binary forms") >= 3


def test_a_page_draws_without_vl_convert(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = run_page(make_summary(), make_rounds())
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    vega.cache_clear()
    assert run_page(make_summary(), make_rounds()) == with_it


def test_the_same_run_gives_the_same_page() -> None:
    assert run_page(make_summary(), make_rounds()) == run_page(make_summary(), make_rounds())


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
    rendered = run_page(summary, rounds)
    assert "<script>alert" not in rendered
    assert rendered.count("<script") == 3
    assert "b" not in Page(rendered.replace(vega().packed, "")).tags
    assert "<" not in data_of(rendered)
    assert evil in Page(rendered.replace(vega().packed, "")).text


def test_a_run_without_evaluation_says_so_instead_of_drawing() -> None:
    summary, rounds = make_summary(), make_rounds()
    summary["global_accuracy"] = None
    for tier in summary["tiers"]:
        tier |= {"accuracy": None, "torch_accuracy": None}
    for record in rounds:
        record["accuracy"] = {}
    rendered = run_page(summary, rounds)
    assert Page(rendered).text.count("No round was evaluated, so there is no accuracy to draw.") == 3
    assert not any(key.startswith("accuracy") for key in charts_of(rendered))


def test_a_run_in_which_every_client_was_refused_is_reported() -> None:
    summary = make_summary()
    summary["tiers"] = []
    summary["classes"] = [summary["classes"][3] | {"clients": 20}]
    refused = [client_record(client, "micro-controller", "refused", samples=0, refusal=(SHORT,)) for client in range(10)]
    rendered = run_page(summary, [RoundRecord(1, tuple(refused), 0.0, 0.0, {}, 0.1).to_json()])
    text = Page(rendered).text
    assert "The run has no tier, so there is no cost to draw." in text
    assert "0 of 10 sessions trained; 10 refused." in text
    assert "Selected, but never trained: Micro-controller (Cortex-M4)." in text
    cards = {name: number for name, number, _ in html._cards(summary_in(summary), [])}
    assert cards["Clients refused"] == "20"


def test_a_run_without_rounds_or_classes_is_reported() -> None:
    summary = make_summary() | {"classes": [], "deadline_s": None}
    text = Page(run_page(summary, [])).text
    for sentence in (
        "No client was selected.",
        "No device class of this run has a budget.",
    ):
        assert sentence in text


def test_write_makes_the_page_of_a_run_folder(tmp_path: Path) -> None:
    page = html.write(make_run(tmp_path / "run"))
    assert page == tmp_path / "run" / "report.html"
    assert page.read_text(encoding="utf-8") == run_page(make_summary(), make_rounds())
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "rounds.jsonl", "summary.json"]


def test_the_page_says_how_clients_and_server_optimize_and_what_travels() -> None:
    about = dict(html._about(summary_in(make_summary() | ADDED), measured=False, sections=()))
    assert {about[key] for key in ("method", "objective", "server optimizer", "codec")} == {"fedhm", "prox", "adam", "int8"}
    assert (about["labels"], about["accuracy of"]) == ("each client's own", "the mean over clients, each on its own")
    about = dict(html._about(summary_in(make_summary()), measured=False, sections=()))
    assert {about[key] for key in ("objective", "server optimizer", "codec")} == {"none", "avg", "fp32"}
    assert about["accuracy of"] == "the global model"


@pytest.mark.parametrize("accuracy_of", ["clients", "global"])
def test_accuracy_after_training_is_shown_where_it_was_measured(accuracy_of: str) -> None:
    summary, rounds = make_summary() | {"accuracy_of": accuracy_of}, make_rounds()
    assert "after local training" not in Page(run_page(summary, rounds)).text.lower()
    rounds[-1]["accuracy_after_training"] = summary["accuracy_after_training"] = 0.9754
    text = Page(run_page(summary, rounds)).text
    assert "Right after local training, the round's clients are right on 97.5 % of their own." in text
    assert ("After local training", "97.5 %") in [card[:2] for card in html._cards(summary_in(summary), rounds_in(rounds))]


def test_accuracies_of_clients_are_never_called_the_global_model_s() -> None:
    rendered = run_page(make_summary() | ADDED, make_rounds())
    text = Page(rendered).text
    assert "on average, each on its own held-out samples" in text
    assert "clients are right on" in text
    assert "The clients' mean came within one point of its best" in text
    assert "global model is right" not in text
    assert list(series(rows(charts_of(rendered)["accuracy-round"], "line"), "round"))[-1] == "mean of clients"
