"""A finished run at a Python prompt, in a notebook, as frames and as tables."""

from __future__ import annotations

import pytest
from requirements import require

import edgefl
from edgefl.errors import InputError

SMALL = {"rounds": 2, "clients": 3, "local_epochs": 1, "data_share": 0.2, "model": "mlp", "method": "heterofl"}

TABLES = ["classes.csv", "clients.csv", "rounds.csv", "sessions.csv", "tiers.csv"]


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return edgefl.simulate(edgefl.RunConfig(**SMALL), tmp_path_factory.mktemp("result") / "run")


def test_a_run_is_loaded_again_from_its_folder(result):
    again = edgefl.load_run(str(result.folder))
    assert (again.tiers, again.rounds, again.classes) == (result.tiers, result.rounds, result.classes)
    assert [row.round for row in again.rounds] == [1, 2]


def test_rounds_and_tiers_are_frames_of_pandas_and_polars(result):
    require("notebook")
    rounds = result.rounds.to_pandas()
    assert list(rounds["accuracy.0.5"]) == [row.accuracy["0.5"] for row in result.rounds]
    assert result.rounds.to_polars()["clock_s"].to_list() == list(rounds["clock_s"])
    assert list(result.tiers.to_pandas()["params"]) == [row.params for row in result.tiers]
    assert result.classes.to_polars().shape[0] == len(result.classes)


def test_sessions_add_up_to_their_rounds(result):
    for row in result.rounds:
        sessions = [session for session in result.sessions if session.round == row.round]
        assert len({session.client for session in sessions}) == len(sessions) > 0
        assert sum(session.status == "trained" for session in sessions) == row.trained
        assert sum(session.macs for session in sessions) == row.macs
        assert sum(session.upload_bytes for session in sessions) == row.upload_bytes
        assert all(session.train_loss > 0 and session.steps > 0 for session in sessions if session.status == "trained")
    assert {session.round for session in result.sessions} == {1, 2}


def test_every_client_is_evaluated_with_the_model_of_its_tier(result):
    assert [row.client for row in result.clients] == [0, 1, 2]
    assert {row.device: row.tier for row in result.clients} == {row.device: row.tier for row in result.classes if row.clients}
    assert all(0 <= row.accuracy <= 1 and row.samples > 0 for row in result.clients)


def test_what_a_prompt_shows_fits_a_screen(result):
    for shown in (result, result.rounds, result.tiers, result.classes, result.sessions, result.clients):
        lines = repr(shown).splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 120
    assert "heterofl, mlp on digits, 2 rounds, accuracy" in repr(result)
    page = result._repr_html_()
    assert page.count("<tr>") == 1 + len(result.tiers)
    assert "<svg" in page
    assert "var(--" not in page


def test_tables_are_written_whole_or_not_at_all(result, tmp_path):
    result.to_csv(tmp_path / "tables")
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == TABLES
    assert len((tmp_path / "tables" / "rounds.csv").read_text().splitlines()) == 3
    with pytest.raises(InputError, match="exists and is not an empty folder; give another"):
        result.to_csv(tmp_path / "tables")
    broken = edgefl.RunResult(tmp_path / "none", result.summary)
    with pytest.raises(InputError, match=r"rounds\.jsonl: no such file"):
        broken.to_csv(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_notebook_shows_progress_the_table_and_a_plot(tmp_path):
    require("notebook", "nbclient")
    import nbclient as client
    import nbformat as notebooks

    train = f"import edgefl\nresult = edgefl.simulate(edgefl.RunConfig(**{SMALL!r}), {str(tmp_path / 'run')!r})"
    cells = [notebooks.v4.new_code_cell(train), notebooks.v4.new_code_cell("result")]
    book = notebooks.v4.new_notebook(cells=cells)
    client.NotebookClient(book, timeout=120).execute()
    (progress,), (shown,) = (cell.outputs for cell in book.cells)
    assert 'value="2" max="2"' in progress["data"]["text/html"]
    assert "<table>" in shown["data"]["text/html"]
    assert "<svg" in shown["data"]["text/html"]
    assert "heterofl" in shown["data"]["text/plain"]
