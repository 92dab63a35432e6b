"""Runs of earlier versions are read: report, comparison, what-if and tables of a run that version 0.2.0 wrote.

``edgefl-0.2.0`` holds what that version wrote for ``edgefl compare --methods fedhm,fedavg --model mlp --clients 2 --per-round 2
--rounds 1`` and for a dry run of the same, without models, bundles and pages.
"""

import json
import re
import shutil
from pathlib import Path

import pytest

from edgefl.errors import InputError
from edgefl.records.cost import cost_columns
from edgefl.report import html
from edgefl.report.run_files import read_rounds, read_summary
from edgefl.report.whatif_page import render
from edgefl.run.compare_finished import compare_runs
from edgefl.run.folder import RunFolder
from edgefl.run.result import load_run
from edgefl.run.whatif import whatif

STORED = Path(__file__).parent / "edgefl-0.2.0"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "stored"))


@pytest.mark.parametrize(
    ("name", "told"), [("fedhm", "The global model reached 76.4 % accuracy after 397 ms"), ("dry", "50.0 % of 2 sessions train")]
)
def test_the_page_of_a_stored_run_is_written_again(stored: Path, name: str, told: str) -> None:
    page = html.write(stored / name).read_text().replace("\xa0", " ")
    assert told in page
    assert "edgefl 0.2.0" in page


def test_stored_runs_are_compared(stored: Path) -> None:
    runs = [stored / "fedhm", stored / "fedavg"]
    found = compare_runs(runs, stored / "both")
    last = {
        row.label: read_rounds(run / "rounds.jsonl")[-1].accuracy["global"] for row, run in zip(found.methods, runs, strict=True)
    }
    assert {row.label: row.accuracy.mean for row in found.methods if row.accuracy} == last


def test_accuracies_of_policies_are_read_off_a_stored_run(stored: Path) -> None:
    run = stored / "fedhm"
    found = whatif(RunFolder(run).config(), deadlines_s=(2.0,), run_folder=run)
    assert found.surrogate is not None
    assert found.surrogate.rows[0].accuracy == pytest.approx(read_summary(run / "summary.json").global_accuracy)
    assert "76.4" in render(found)


def test_the_tables_of_a_stored_run_are_written(stored: Path) -> None:
    tables = load_run(stored / "fedhm").to_csv(stored / "tables")
    assert {path.stem for path in tables.iterdir()} == {"classes", "clients", "rounds", "sessions", "tiers"}


def test_a_cost_that_the_version_did_not_know_is_missing_and_no_error(stored: Path) -> None:
    """A cost that is derived from others, or has a default, may be missing: it is one that was added later."""
    path, later = stored / "dry" / "summary.json", [name for name, _, default in cost_columns() if default is None]
    summary = json.loads(path.read_text())
    for row in summary["tiers"]:
        for name in later:
            row.pop(name, None)
    path.write_text(json.dumps(summary))
    assert {getattr(row, name) for row in read_summary(path).tiers for name in later} == {None}
    assert "macs_train_step" in later


def test_what_every_version_wrote_is_required(stored: Path) -> None:
    path = stored / "dry" / "summary.json"
    summary = json.loads(path.read_text())
    del summary["tiers"][0]["params"]
    path.write_text(json.dumps(summary))
    with pytest.raises(InputError, match=re.escape("tiers.0.params: missing; restore the file or run the simulation again")):
        read_summary(path)
