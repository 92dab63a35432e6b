"""What a network's tiers cost, in every format: nothing cut, nothing unsaid, and the page whole and escaped."""

import csv
import io
import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from made_cost_rows import layer, make_rows, on_devices, tier_row
from pages import Page, charts_of, data_of, drawn, labels, printed, rows, series

from edgefl.errors import InputError, UnknownNameError
from edgefl.report.cost_page import cost_page
from edgefl.report.cost_rows import (
    COST_COLUMNS,
    DEVICE_COLUMNS,
    LAYER_COLUMNS,
    ProfileRow,
    TensorBytes,
    costliest,
    layer_rows,
    macs_of_step,
)
from edgefl.report.cost_tables import about, cost_table, layer_table, per_device, per_tier
from edgefl.report.page import vega

EVIL = "<script>alert(1)</script><b>&\"'|"


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def read_markdown(text: str) -> list[dict[str, str]]:
    head, _, *lines = ([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines())
    return [dict(zip(head, cells, strict=True)) for cells in lines]


def test_json_is_the_rows_themselves_layers_and_tensors_included() -> None:
    assert json.loads(cost_table(on_devices(), "json")) == {
        "rows": json.loads(json.dumps([row.to_dict() for row in on_devices()]))
    }


@pytest.mark.parametrize(("format", "read"), [("csv", read_csv), ("markdown", read_markdown)])
@pytest.mark.parametrize(("rows", "columns"), [(make_rows(), COST_COLUMNS), (on_devices(), (*COST_COLUMNS, *DEVICE_COLUMNS))])
def test_text_has_one_line_per_row_and_the_declared_columns(format: str, read: Any, rows: Any, columns: Any) -> None:
    parsed = read(cost_table(rows, format))
    assert len(parsed) == len(rows)
    for row, line in zip(rows, parsed, strict=True):
        assert tuple(line) == tuple(key for key in columns if key in row.to_dict())
        for key, value in row.to_dict().items():
            if isinstance(value, bool):
                assert line[key] == str(value).lower()
            elif isinstance(value, int | float):
                assert float(line[key]) == value
    assert [line["uncounted_ops"] for line in parsed[:3]] == ["", "Erf Einsum", ""]


def test_no_method_and_no_budget_are_empty_cells() -> None:
    row = replace(on_devices()[0], method=None, limiting_budget=None, budget_share=None)
    line = read_csv(cost_table([row], "csv"))[0]
    assert line["method"] == line["limiting_budget"] == line["budget_share"] == ""
    assert "none, the network as it is" in printed(cost_table([row], "table"), 100)
    assert "What cnn costs as it is" in Page(cost_page([row])).text


@pytest.mark.parametrize("width", [80, 100])
def test_the_terminal_shows_every_figure_within_its_width(width: int) -> None:
    text = printed(cost_table(on_devices(), "table"), width)
    assert max(map(len, text.splitlines())) <= width
    for figure in ("2.05 k", "968 k", "40.1 kB", "14.4 kB", "8.40 kB", "2.25 kB", "8.20 kB", "13.0 k", "4.05 k", "13.3 kB"):
        assert figure in text
    assert text.index("What a tier costs") < text.index("Compute") < text.index("Memory") < text.index("On devices")
    assert "…" not in text


def test_devices_have_a_line_per_tier_and_the_tier_taken_is_marked() -> None:
    text = printed(cost_table(on_devices(), "table"), 100)
    assert text.count("takes it") == 1
    assert re.search(r"Raspberry Pi 4 +0\.5 +21\.0 ms +5\.30 s +1 min 20 s +1 min 32 s +takes it +60\.0 %", text)
    assert text.count("4.2–6.6 s") == text.count("1.1–1.7 min") == text.count("1.3–1.9 min") == 6, "wrong by 1.25 either way"
    assert text.count("Micro-controller") == 3
    assert "deadline" in text
    assert "memory" in text
    assert "On devices" not in printed(cost_table(make_rows(), "table"), 100)


def test_the_tiers_of_a_device_stand_together() -> None:
    by_tier = sorted(on_devices(), key=lambda row: -row.tier)
    assert [row.device for row in by_tier[:2]] == ["pi-4", "chip"]
    assert per_device(by_tier) == on_devices()
    assert cost_page(by_tier) == cost_page(on_devices())


def test_a_device_takes_nothing_that_is_not_wholly_counted() -> None:
    row = replace(on_devices()[1], fits=False, takes=False, limiting_budget="uncounted_ops", budget_share=None)
    text = " ".join(Page(cost_page([row]).replace(vega().packed, "")).text.split())
    assert "Raspberry Pi 4 takes no tier: not every operation of tier 0.5 is counted." in text
    assert "uncounted operations" in text


def test_what_a_tier_costs_is_said_once_whatever_the_number_of_devices() -> None:
    assert [row.tier for row in per_tier(list(reversed(on_devices())))] == [1, 0.5, 0.25]


@pytest.mark.parametrize("table", [lambda f: cost_table(make_rows(), f), lambda f: layer_table(make_rows()[1], f)])
def test_uncounted_operations_are_in_every_format(table: Any) -> None:
    for format in ("json", "csv", "markdown"):
        assert "Erf" in table(format)
        assert "Einsum" in table(format)
    shown = " ".join(printed(table("table"), 100).split())
    assert "Not counted, so no budget can be claimed met: tier 0.5: Erf, Einsum" in shown
    assert table("table").renderables[-1].style == "bold red"


def test_layers_parse_back_in_every_format() -> None:
    row = tier_row(1)
    document = json.loads(layer_table(row, "json"))
    assert document["tier"] == 1
    assert document["layers"] == [{key: getattr(item, key) for key in LAYER_COLUMNS} for item in layer_rows(row)]
    for parsed in (read_csv(layer_table(row, "csv")), read_markdown(layer_table(row, "markdown"))):
        assert [tuple(line) for line in parsed] == [LAYER_COLUMNS] * 5
        assert [line["layer"] for line in parsed] == [item.layer for item in row.layers]
        assert sum(int(line["macs_train_step"]) for line in parsed) == row.macs_train_step
        assert sum(float(line["macs_share"]) for line in parsed) == pytest.approx(1)
    text = printed(layer_table(row, "table"), 100)
    assert max(map(len, text.splitlines())) <= 100
    assert re.search(r"body\.conv +Conv2d +1\.00 k +9\.00 k +0 +9\.00 k +0 +59\.5 % +8\.19 kB +2\.05 kB +4\.00 kB", text)


def test_the_rest_of_the_layers_is_summed() -> None:
    row = tier_row(1)
    lines = costliest(layer_rows(row), 2, lambda layer: layer.macs_train_step)
    assert [line.layer for line in lines] == ["body.conv", "body.conv.v", "(other)"]
    assert lines[-1].kind == "3 layers"
    for key in ("params", "macs_train_step", "saved_bytes_at_peak", "download_bytes"):
        assert sum(getattr(line, key) for line in lines) == sum(getattr(item, key) for item in layer_rows(row))
    assert costliest(layer_rows(row), 5, lambda item: 0) == layer_rows(row)


def test_a_tensor_belongs_to_the_layer_whose_name_is_its_longest_prefix() -> None:
    names = ("body.conv.v.weight", "body.conv.bias", "body.convolution", "fc", "stray.weight")
    row = tier_row(1, tensors=tuple(TensorBytes(name, (1,), 10**i, 0) for i, name in enumerate(names)))
    sent = {item.layer: item.download_bytes for item in layer_rows(row)}
    assert sent == {"(network)": 10_000, "body": 100, "body.conv": 10, "body.conv.v": 1, "fc": 1000, "(loss)": 0}


def test_an_unknown_format_is_refused() -> None:
    for write in (lambda: cost_table(make_rows(), "cvs"), lambda: layer_table(tier_row(1), "cvs")):
        with pytest.raises(UnknownNameError, match=r"unknown format 'cvs'; did you mean 'csv'\?"):
            write()


def test_the_page_has_its_sections_charts_and_tables() -> None:
    rendered = cost_page(on_devices())
    page = Page(rendered)
    sections = ["Cost per tier", "On devices", "Where the cost sits", "Uncounted operations"]
    assert [text for level, text in page.headings if level == 2] == sections
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert page.tags.count("figure") == page.tags.count("figcaption") == len(charts_of(rendered)) == 12
    assert page.tags.count("table") == page.tags.count("caption") == 7
    assert page.tags.count("option") == 3
    assert [name for name, _ in page.attributes].count("hidden") == 2
    assert "Raspberry Pi 4 takes tier 0.5. Micro-controller takes no tier: tier 0.25 needs 30.0 %" in page.text
    assert "No budget can be called met" in page.text


def test_the_page_loads_nothing_from_a_network() -> None:
    rendered = cost_page(on_devices())
    assert rendered.count(vega().packed) == 1
    rest = rendered.replace(vega().packed, "")
    page = Page(rest)
    assert not {"link", "img", "iframe", "object", "embed", "base"}.intersection(page.tags)
    assert not {"src", "srcset", "action", "data"}.intersection(name for name, _ in page.attributes)
    assert {value for name, value in page.attributes if name == "href"} == {"#tiers", "#devices", "#layers", "#uncounted"}
    assert any("default-src 'none'" in (value or "") for _, value in page.attributes)
    assert not re.search(r"https?://|@import|url\((?!#)", rest)
    assert rendered == cost_page(on_devices())


def test_charts_pass_vega_lite_s_schema_and_every_one_has_a_sentence() -> None:
    rendered = cost_page(make_rows())
    assert all(map(drawn, charts_of(rendered).values()))
    captions = re.findall(r"<figcaption[^>]*>(.*?)</figcaption>", rendered.replace("\xa0", " "))
    assert len(captions) == 12
    assert all(re.fullmatch(r"[^.].*[a-z0-9 %)]\.", caption) for caption in captions)
    assert captions[0] == "Tier 0.25 computes 248 k MACs of a step: 25.6 % of the 968 k of tier 1."
    assert captions[3] == "1 of 4 layers holds half of the 968 k MACs of a step; the costliest is body.conv with 59.5 %."


def test_bars_are_the_figures_of_the_rows() -> None:
    tiers = make_rows()
    charts = charts_of(cost_page(tiers))
    for key, total in (("compute", "macs_train_step"), ("memory", "training_memory_bytes")):
        parts: dict[str, int] = {}
        for row in rows(charts[f"tiers-{key}"], "bar"):
            parts[row["slot"]] = parts.get(row["slot"], 0) + row["value"]
        assert list(parts.values()) == [getattr(row, total) for row in tiers]
        assert [row["value"] for row in rows(charts[f"tiers-{key}"], "text") if "text" in row] == list(parts.values())
        assert labels(charts[f"tiers-{key}"]) == ["tier 1", "tier 0.5", "tier 0.25"]
    assert sum(row["value"] for row in rows(charts["layers-1-compute"], "bar")) == tiers[1].macs_train_step
    traffic = {part: sum(values) for part, values in series(rows(charts["layers-2-traffic"], "bar"), "value").items()}
    assert traffic == {"down": sum(t.download_bytes for t in tiers[2].tensors), "up": tiers[2].params}


def test_activations_that_are_computed_again_are_a_part_of_a_step() -> None:
    plain = tier_row(1)
    layers = [replace(item, macs_recompute=item.macs_forward) for item in plain.layers]
    again = sum(item.macs_forward for item in layers)
    row = replace(plain, layers=layers, macs_recompute=again, **{"macs_train_step": plain.macs_train_step + 32 * again})
    charts = charts_of(cost_page([row]))
    for key in ("tiers-compute", "layers-0-compute"):
        bars = rows(charts[key], "bar")
        assert sum(bar["value"] for bar in bars) == row.macs_train_step
        assert sum(bar["value"] for bar in bars if bar["series"] == "activations again") == 32 * again


def test_a_step_has_the_macs_of_all_samples_and_the_composition_of_every_pass() -> None:
    item = layer("conv", "Conv2d", 1, (10, 9, 10, 7), (0, 0))
    assert sum(macs_of_step(tier_row(1, batch_size=4, micro_batch=2), item)) == 4 * 29 + 2 * 7


def test_what_no_row_has_is_not_said_of_the_costs() -> None:
    said = dict(about([replace(tier_row(1), method=None, samples=500, local_epochs=1)]))
    assert (said["method"], said["samples per client"], said["local epochs per round"]) == (
        "none, the network as it is",
        "500",
        "1",
    )
    assert not {"samples per client", "local epochs per round"} & {name for name, _ in about([tier_row(1)])}


def test_a_step_that_trains_one_of_several_networks_is_their_mean_and_says_so() -> None:
    whole = tier_row(1)
    row = replace(whole, macs_drawn=9000, **{"macs_train_step": 32 * 9000 + 4 * whole.macs_compose})
    bars = rows(charts_of(cost_page([row, tier_row(0.5)]))["tiers-compute"], "bar")
    totals = [sum(bar["value"] for bar in bars if bar["slot"] == slot) for slot in ("0|tier 1", "1|tier 0.5")]
    assert totals == [row.macs_train_step, tier_row(0.5).macs_train_step]
    drawn_networks = [bar for bar in bars if bar["series"] == "forward and gradients, mean of the networks drawn"]
    assert [(bar["slot"], bar["value"]) for bar in drawn_networks] == [("0|tier 1", 32 * 9000)]
    page = " ".join(Page(cost_page([row]).replace(vega().packed, "")).text.split())
    terminal = " ".join(printed(cost_table([row], "table"), 100).split())
    for text in (page, terminal):
        assert "one of several networks, drawn: its MACs are their mean, all else is the tier's own network's" in text
    # The layers are those of the tier's own network, and so is the step that they share.
    assert "1 of 4 layers holds half of the 968 k MACs of a step of the tier's own network" in page
    assert "the share is that of a training step of the tier's own network" in page
    assert "share of a step of the tier's own network" in " ".join(printed(layer_table(row, "table"), 100).split())
    for text in (
        Page(cost_page([whole])).text,
        printed(cost_table([whole], "table"), 100),
        printed(layer_table(whole, "table"), 100),
    ):
        assert "own network" not in text


def test_an_inference_is_that_of_the_network_that_a_device_runs() -> None:
    row = tier_row(1, macs_inference=7_000_000, weights_bytes_inference=5_000_000)
    text = printed(cost_table([row], "table"), 100)
    assert "7.00 M" in text
    assert "5.00 MB" in text


def test_hostile_names_are_escaped_everywhere() -> None:
    def hostile(row: ProfileRow) -> ProfileRow:
        texts = ("method", "model", "optimizer", "codec", "device", "device_title", "limiting_budget")
        texts += ("peak_layer_training", "peak_layer_inference")
        first, second, *others = row.layers
        layers = (first, replace(second, layer=EVIL, kind=EVIL), *others)
        tensors = (replace(row.tensors[0], name=f"{EVIL}.weight"), *row.tensors[1:])
        return replace(row, uncounted_ops=(EVIL,), layers=layers, tensors=tensors, **dict.fromkeys(texts, EVIL))

    rows = [hostile(row) for row in on_devices()]
    rendered = cost_page(rows)
    rest = rendered.replace(vega().packed, "")
    assert "<script>alert" not in rendered
    assert rest.count("<script") == 3
    assert "b" not in Page(rest).tags
    assert "<" not in data_of(rendered)
    assert EVIL in Page(rest).text
    assert read_csv(cost_table(rows, "csv"))[0]["model"] == EVIL
    assert "\\<script" in cost_table(rows, "markdown")
    assert {len(line) for line in read_markdown(layer_table(rows[0], "markdown"))} == {len(LAYER_COLUMNS) + 1}
    assert "<script>" in printed(cost_table(rows, "table"), 200)


def test_one_row_without_devices_needs_no_switch() -> None:
    rendered = cost_page([tier_row(1)])
    page = Page(rendered.replace(vega().packed, ""))
    assert "select" not in page.tags
    assert "On devices" not in page.text
    assert "budget" not in page.text
    assert len(charts_of(rendered)) == 6


def test_of_three_hundred_layers_forty_are_drawn_and_the_rest_is_summed() -> None:
    layers = [layer(f"block{i}.conv", "Conv2d", 100 + i, (1000 + i, 0, 1000, 0), (64 + i, 0)) for i in range(300)]
    row = tier_row(1, layers)
    rendered = cost_page([row])
    for key in ("compute", "memory", "traffic"):
        spec = charts_of(rendered)[f"layers-0-{key}"]
        assert len(labels(spec)) == 41
        assert labels(spec)[-1] == "other: 260 layers"
    bars = rows(charts_of(rendered)["layers-0-compute"], "bar")
    assert sum(bar["value"] for bar in bars) == row.macs_train_step
    assert "block7.conv" in Page(rendered.replace(vega().packed, "")).text


def test_a_network_that_multiplies_nothing_is_shown() -> None:
    row = tier_row(1, [layer("norm", "Norm", 0, (0, 0, 0, 0), (0, 0)), layer("act", "ReLU", 0, (0, 0, 0, 0), (512, 0))])
    rendered = cost_page([row, replace(row, tier=0.5)])
    text = Page(rendered.replace(vega().packed, "")).text
    assert text.count("No layer has any, so there is nothing to draw.") == 4
    assert "All of the 512 B of activations and weights at the peak sits in act." in text
    assert {line["macs_share"] for line in read_csv(layer_table(row, "csv"))} == {"0.0"}
    assert "0 %" in printed(layer_table(row, "table"), 100)


def test_a_page_without_a_tier_is_refused() -> None:
    with pytest.raises(InputError, match="at least one tier, got none"):
        cost_page([])
    assert cost_table([], "json") == '{\n  "rows": []\n}'
