"""Measure this device, in Chromium: the rows, their table and file, and what stops it."""

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from hand_bundle import HIDDEN, tier_of, write_bundle, write_text_bundle
from serving import reload, serving

HEADER = "network,method,tier,batch,phase,seconds,sustained_seconds,low_seconds,high_seconds,repeats,input,classes,optimizer,macs"
CASES = [
    *(
        (tier, phase, batch)
        for tier in ("1", "0.5")
        for phase, batch in (("step", 16), ("step", 4), ("forward", 16), ("forward", 1))
    ),
    ("0.25", "forward", 16),
    ("0.25", "forward", 1),
]
QUICK = {"seconds": 0.01, "minutes": 0}


def cases_of(rows: list[dict[str, Any]]) -> list[tuple[Any, Any, Any]]:
    return [(row["tier"], row["phase"], row["batch"]) for row in rows]


def test_every_tier_is_measured_and_the_model_of_the_page_stays(page):
    x = [[0.5] * 64] * 3
    before = page.evaluate("x => edgefl.predict(x)", x)
    downloaded = page.evaluate("() => edgefl.model.downloadedBytes")
    rows = page.evaluate("options => edgefl.measure(options)", QUICK)
    assert cases_of(rows) == CASES
    for row in rows:
        assert (row["network"], row["method"], row["sustained_seconds"], row["macs"]) == ("by-hand", "fedavg", None, None)
        assert (row["input"], row["classes"]) == ("1x8x8", 4)
        assert row["optimizer"] == ({"1": "momentum", "0.5": "sgd"}[row["tier"]] if row["phase"] == "step" else None)
        assert 0 < row["low_seconds"] <= row["seconds"] <= row["high_seconds"] < 10
        assert row["repeats"] >= 5
    assert page.evaluate("x => edgefl.predict(x)", x) == before
    assert page.evaluate("() => [edgefl.model.steps, edgefl.model.entry.label]") == [0, "1"]
    assert page.evaluate("() => edgefl.model.downloadedBytes") == downloaded


def test_load_gives_a_second_column_and_the_file_its_form(page):
    page.evaluate("options => edgefl.measure(options)", {**QUICK, "minutes": 0.002})
    with page.expect_download() as download:
        page.click("#measure-download")
    assert download.value.suggested_filename == "steps.csv"
    text = Path(download.value.path()).read_text()
    assert text.startswith(HEADER + "\nby-hand,fedavg,1,16,step,")
    rows = list(csv.DictReader(text.splitlines()))
    assert [(row["tier"], row["phase"], int(row["batch"])) for row in rows] == CASES
    assert all(0 < float(row["sustained_seconds"]) < 10 for row in rows)


def test_rows_have_the_macs_of_the_manifest(ort_web, opened, tmp_path):
    entry, files = tier_of(1, HIDDEN, "momentum")
    costs = {"macs_forward": 100, "macs_backward": 150, "macs_compose": 7, "macs_inference": 90}
    write_bundle(tmp_path / "bundle", made=[({**entry, "costs": costs}, files)], method='by "hand", mine')
    with serving(tmp_path / "bundle", ort_web) as server:
        page = opened(server.url)
        rows = page.evaluate("options => edgefl.measure(options)", QUICK)
        text = page.evaluate("async (rows) => (await import('/measurement.js')).toCsv(rows)", rows)
    assert [row["macs"] for row in rows] == [16 * 250 + 7, 4 * 250 + 7, 16 * 90, 90]
    assert next(csv.DictReader(text.splitlines()))["method"] == 'by "hand", mine'


def test_a_model_of_text_is_measured_in_inference(ort_web, opened, tmp_path):
    write_text_bundle(tmp_path / "bundle")
    with serving(tmp_path / "bundle", ort_web) as server:
        rows = opened(server.url).evaluate("options => edgefl.measure(options)", QUICK)
    assert cases_of(rows) == [("1", "forward", 16), ("1", "forward", 1)]
    assert {row["input"] for row in rows} == {"7"}


def test_a_stored_page_measures_without_a_network(bundle, ort_web, opened):
    with serving(bundle, ort_web) as server:
        page = opened(server.url)
        page.wait_for_selector("html[data-stored]")
    reload(page)  # the server is gone
    page.wait_for_selector("#tier:not([disabled])")
    assert cases_of(page.evaluate("options => edgefl.measure(options)", QUICK)) == CASES


def test_repeats_are_long_enough_for_the_clock_of_a_browser(page):
    found = page.evaluate(
        """async () => {
          const { spread, median } = await import('/timing.js');
          let [now, runs, calls] = [0, 0, 0];
          const clock = () => { calls += 1; return Math.floor(now * 10) / 10_000; };  // in steps of 0.1 ms
          const found = await spread(() => { runs += 1; now += 0.3; }, 1, clock);
          return { found, middle: median(found), even: median([1, 2, 4, 9]), runs };
        }"""
    )
    assert found["found"] == sorted(found["found"])
    assert found["middle"] == pytest.approx(0.3e-3, rel=0.01)
    assert len(found["found"]) * 128 * 0.3e-3 == pytest.approx(1, abs=0.05)
    assert found["even"] == 3


def test_the_button_measures_shows_a_table_and_leads_to_the_file(page):
    page.evaluate("async () => { window.rows = (await import('/measurement.js')).Measurement.prototype; }")
    page.evaluate("() => { rows.every_ = rows.every; rows.every = function (_, onRow) { return this.every_(0.01, onRow); }; }")
    try:
        page.click("#measure")
        assert page.locator("#measure").is_disabled()
        assert page.locator("#train").is_disabled()
        page.wait_for_selector("#measure-download:not([disabled])")
    finally:
        page.evaluate("() => { rows.every = rows.every_; }")
    assert page.evaluate("() => document.activeElement.id") == "measure-download"
    assert page.text_content("#status") == "Measured: 10 rows. Nothing was sent; download steps.csv to use them."
    first = page.locator("#measure-rows tr").first.locator("th, td").all_text_contents()
    assert first[:3] == ["1", "training", "16"]
    assert re.fullmatch(r"[\d.]+ (µs|ms|s)", first[3])
    assert re.fullmatch(r"[\d.]+–[\d.]+ (µs|ms|s)", first[5])
    assert not page.locator("#measure-table .load").first.is_visible()
    assert not page.locator("#train").is_disabled()


def test_stop_ends_it_and_its_rows_stay(page):
    page.evaluate("() => { window.done = edgefl.measure({ seconds: 0.01, minutes: 60 }); }")
    page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Under load')")
    assert page.text_content("#status") == "Under load: 0 of 60 minutes …"
    page.click("#measure-stop")
    assert len(page.evaluate("() => done")) == len(CASES)
    assert page.text_content("#status") == "Stopped after 10 rows."
    assert not page.locator("#measure-download").is_disabled()
    assert page.locator("#problem").is_hidden()


def test_wrong_minutes_and_a_busy_device_are_messages(page):
    page.fill("#load-minutes", "-1")
    page.click("#measure")
    assert page.text_content("#problem-text") == "Minutes of load, then measure again: -1, expected a number from 0 to 1440."
    page.fill("#load-minutes", "0")
    assert page.locator("#measure-stop").is_disabled()
    page.evaluate("options => { window.done = edgefl.measure(options); }", QUICK)
    with pytest.raises(Exception, match="This device is busy: measure it afterwards"):
        page.evaluate("options => edgefl.measure(options)", QUICK)
    assert len(page.evaluate("() => done")) == len(CASES)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_table_is_not_wider_than_the_screen(page, width):
    page.evaluate("options => edgefl.measure(options)", {**QUICK, "minutes": 0.0001})
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.locator("#measure-rows tr").count() == len(CASES)
    assert page.locator("#measure-table .load").first.is_visible()
    page.set_viewport_size({"width": 1000, "height": 800})
