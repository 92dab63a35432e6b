"""The formats of ``edgefl profile`` hold the same numbers, and name operations in no table."""

import csv
import io
import json

import pytest
from command import told

from edgefl import profile


@pytest.mark.parametrize("format_", ["table", "json", "csv", "markdown", "html"])
def test_an_operation_in_no_table_is_named_and_fits_nowhere(format_, here):
    devices = ("--device", "laptop", "--profile", "home")
    status, out, _ = told("profile", "own_networks:Exotic", "--input", "4", *devices, "--format", format_)
    assert status == 0
    assert "aten.linalg_matrix_exp" in out
    if format_ == "json":
        rows = json.loads(out)["rows"]
        assert len(rows) > 1
        assert {row["fits"] for row in rows} == {False}
        assert {row["limiting_budget"] for row in rows} == {"uncounted_ops"}
    if format_ == "csv":
        assert {row["fits"] for row in csv.DictReader(io.StringIO(out))} == {"false"}


def test_a_network_that_is_counted_fits_a_laptop(here):
    assert profile("own_networks:Net", (4,), device="laptop")[0].fits is True


def test_formats_hold_the_same_numbers_and_layers_have_rows(here):
    macs = 64 * 9 * (3 * 8 + 8 * 16) + 16 * 5  # two convolutions over 8×8 positions, and the head
    network = ("own_networks:Image", "--input", "3x8x8", "--batch-size", "2")
    rows = json.loads(told("profile", *network, "--format", "json")[1])["rows"]
    assert [row["macs_forward"] for row in rows] == [macs]
    assert [row["macs_forward"] for row in csv.DictReader(io.StringIO(told("profile", *network, "--format", "csv")[1]))] == [
        str(macs)
    ]
    heads, _, values = (
        line.strip("| ").split(" | ") for line in told("profile", *network, "--format", "markdown")[1].splitlines()
    )
    assert values[heads.index("macs_forward")] == str(macs)
    assert "87.6 k" in told("profile", *network)[1]
    layers = json.loads(told("profile", *network, "--layers", "--format", "json")[1])["layers"]
    assert {layer["layer"]: layer["macs_forward"] for layer in layers if layer["macs_forward"]} == {
        "body.0": 64 * 9 * 3 * 8,
        "body.2": 64 * 9 * 8 * 16,
        "head": 16 * 5,
    }
    assert "body.2" in told("profile", *network, "--layers")[1]


@pytest.mark.parametrize(("format_", "start"), [("table", ""), ("json", "{"), ("csv", "tier,"), ("html", "<!doctype html>")])
def test_out_writes_the_file(format_, start, here):
    status, out, error = told("profile", "own_networks:Net", "--input", "4", "--format", format_, "--out", "costs")
    assert (status, out, error) == (0, "", "written: costs\n")
    text = (here / "costs").read_text()
    assert text.lower().startswith(start)
    assert "own_networks:Net" in text


def test_a_deadline_of_a_fleet_is_the_same_for_every_method_as_in_runs(here):
    """The fastest class needs the same for the dense network, whatever the largest tier of a method is."""
    deadlines = {
        row.round_seconds / row.budget_share for of in ("fedavg", "fedpara") for row in profile("mlp", method=of, fleet="mixed")
    }
    assert len({round(seconds, 9) for seconds in deadlines}) == 1
