"""Finished runs: grouped by their settings, compared, read back, and written as tables."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import Page

from edgefl import RunConfig, compare_runs, load_comparison, simulate
from edgefl.cli.compare import command as compare_command
from edgefl.cli.export import command as export_command
from edgefl.cli.report import command as report_command
from edgefl.errors import ConfigError, InputError

SMALL = RunConfig(method="fedavg", model="mlp", rounds=1, clients=3, local_epochs=1, data_share=0.2, bundle=False, profile="lab")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one setting, two of another learning rate, and a run of other samples."""
    home = tmp_path_factory.mktemp("runs")
    for name, keys in {
        "a0": {},
        "a1": {"seed": 1},
        "b0": {"lr": 0.01},
        "b1": {"lr": 0.01, "seed": 1},
        "other": {"validation_share": 0.2},
    }.items():
        simulate(SMALL.model_copy(update=keys), home / name)
    return home


def test_runs_that_differ_in_their_seeds_are_one_method_and_settings_that_differ_are_columns(runs, tmp_path):
    names = ("a0", "b0", "a1", "b1")
    found = compare_runs([runs / name for name in names], tmp_path / "both", rank_by="global")
    first, second = found.methods
    assert [(row.label, row.seeds, row.settings) for row in (first, second)] == [
        ("fedavg lr=0.05", (0, 1), {"lr": "0.05"}),
        ("fedavg lr=0.01", (0, 1), {"lr": "0.01"}),
    ]
    assert first.folders == (str(runs / "a0"), str(runs / "a1"))
    assert first.accuracy.values == tuple(
        json.loads((runs / n / "summary.json").read_text())["global_accuracy"] for n in ("a0", "a1")
    )
    text = " ".join(Page((tmp_path / "both" / "compare.html").read_text()).text.split())
    assert f"edgefl compare {runs / 'a0'} {runs / 'a1'}" in text
    assert "fedavg lr=0.05" in text
    again = load_comparison(tmp_path / "both")
    assert again.summary == found.summary
    assert repr(again) == repr(found)


def test_a_comparison_is_shown_again_and_written_as_tables(runs, tmp_path):
    folder = tmp_path / "both"
    arguments = [str(runs / name) for name in ("a0", "b0")]
    told = CliRunner().invoke(compare_command, [*arguments, "--out", str(folder), "--budget-bytes", "1GB"])
    assert told.exit_code == 0, told.output
    assert "with one seed, which decides nothing" in " ".join(told.output.split())
    page = folder / "compare.html"
    before = page.read_bytes()
    page.unlink()
    assert CliRunner().invoke(report_command, [str(folder)]).output == f"{page}: written\n"
    assert page.read_bytes() == before
    told = CliRunner().invoke(export_command, [str(folder), "--format", "csv", "--out", str(tmp_path / "tables")])
    assert told.exit_code == 0, told.output
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["methods.csv", "pairs.csv", "verdict.csv"]
    for kind, first in (("svg", b"<svg"), ("pdf", b"%PDF")):
        told = CliRunner().invoke(export_command, [str(folder), "--format", kind, "--out", str(tmp_path / kind)])
        assert told.exit_code == 0, told.output
        figures = sorted((tmp_path / kind).iterdir())
        assert {path.stem for path in figures} >= {"compare-bytes", "compare-tiers", "front-simulated_s"}
        assert all(path.read_bytes().startswith(first) and b"var(--" not in path.read_bytes() for path in figures)
    rows = list(csv.DictReader((tmp_path / "tables" / "methods.csv").read_text().splitlines()))
    assert [row["label"] for row in rows] == ["fedavg lr=0.05", "fedavg lr=0.01"]


@pytest.mark.parametrize(
    ("form", "first"), [("latex", "% Of each run counts its last round"), ("csv", "method,method rank,"), ("json", "{")]
)
def test_the_ranking_has_forms_for_a_paper(form, first, runs):
    told = CliRunner().invoke(compare_command, [str(runs / "a0"), str(runs / "b0"), "--format", form])
    assert told.exit_code == 0, told.output
    assert told.output.startswith(first)
    assert told.output.endswith({"latex": "\\end{tabular}\n}\n", "csv": "\n", "json": "}\n"}[form])


def test_what_cannot_be_compared_is_named_and_nothing_is_written(runs, tmp_path):
    out = tmp_path / "both"
    for names, message in (
        (("a0", "other"), "other: its validation share is 0.2, that of .*a0 is 0.0; give runs of the same validation share"),
        (("a0", "a0"), "fedavg: seed 0 is there twice .*a0, .*a0"),
        (("a0",), "runs: got 1, expected at least two"),
        (("a0", "none"), "none/summary.json: no such file"),
    ):
        with pytest.raises((ConfigError, InputError), match=message):
            compare_runs([runs / name for name in names], out)
        assert not out.exists()
    with pytest.raises(InputError, match="a0: exists and holds something else"):
        compare_runs([runs / "a0", runs / "b0"], runs / "a0")
    told = CliRunner().invoke(compare_command, [str(runs / "a0"), str(runs / "b0"), "--methods", "fedavg"])
    assert (told.exit_code, "only budgets, --rank-by, --format and --out" in told.output) == (2, True)


def test_a_damaged_or_older_comparison_is_refused_with_the_remedy(runs, tmp_path):
    compare_runs([runs / "a0", runs / "b0"], tmp_path / "both")
    for change, message in (({"format": 1}, "format 1, expected 2"), ({"methods": 3}, "methods")):
        shutil.copytree(tmp_path / "both", tmp_path / "changed", dirs_exist_ok=True)
        path = Path(tmp_path / "changed" / "compare.json")
        path.write_text(json.dumps({**json.loads((tmp_path / "both" / "compare.json").read_text()), **change}))
        with pytest.raises(InputError, match=f"{message}.*edgefl compare --out .* --resume, which trains nothing again"):
            load_comparison(tmp_path / "changed")
