"""Updates that differ from the others of their tier, in words, tables and on a run's page."""

from __future__ import annotations

import json
from dataclasses import replace

from client_records import client_record
from made_records import rounds_in

from edgefl import RunConfig, simulate
from edgefl.records import RoundRecord, Screened
from edgefl.report.html import render
from edgefl.report.outliers import ScreenedFile, client_table, remarks, screened_clients, update_table
from edgefl.report.run_files import read_rounds, read_trained

USUAL = {"change_norm": 1.0, "clipped": False, "dropped": False, "counted_samples": None, "norm_ratio": 1.0, "cosine": 0.5}


def entry(client: int, **found) -> dict:
    return {"client": client, "tier": 0.5, "screened": {**USUAL, **found}}


def row(number: int, **found) -> ScreenedFile:
    return ScreenedFile(**{**USUAL, **found}, file=f"{number}.safetensors", client=str(number), tier=0.5, samples=1200)


def test_remarks_are_about_what_no_honest_client_does():
    usual = Screened(**USUAL)
    assert remarks(usual) == []
    assert remarks(replace(usual, norm_ratio=3.0, cosine=0.0, clipped=True)) == []
    assert remarks(replace(usual, norm_ratio=1234.5, cosine=-0.875, dropped=True, counted_samples=3600)) == [
        "change 1.23e+03 times the tier's median",
        "opposite to its tier (cosine -0.88)",
        "left out by the defence",
    ]
    assert remarks(replace(usual, norm_ratio=None, cosine=None)) == []


def test_a_capped_update_is_shown_and_not_suspected():
    (shown,) = update_table([row(1, counted_samples=3600)]).rows
    assert ("3,600" in shown, shown[-1]) == (True, "")
    (of_client,) = screened_clients(rounds_in([{"clients": [entry(1, counted_samples=3600)]}]))
    assert (of_client.capped, of_client.remarked) == (1, 0)


def test_a_round_is_read_back_with_an_update_that_is_opposite_to_its_tier(tmp_path):
    found = Screened(**{**USUAL, "cosine": -0.875})
    record = RoundRecord(1, (replace(client_record(0, "board", "trained"), screened=found),), 1.0, 0.0, {}, 0.1)
    path = tmp_path / "rounds.jsonl"
    path.write_text(json.dumps(record.to_json()) + "\n")
    (line,) = read_rounds(path)
    assert line.clients[0].screened == found


def test_clients_with_the_most_remarks_come_first():
    rounds = [
        {"clients": [entry(1), entry(2, cosine=-0.5), {"client": 9, "tier": 1, "screened": None}]},
        {"clients": [entry(1, norm_ratio=2.0, clipped=True), entry(2, norm_ratio=8.0, dropped=True), entry(3, norm_ratio=9.0)]},
    ]
    rows = screened_clients(rounds_in(rounds))
    assert [(row.client, row.rounds, row.remarked) for row in rows] == [(2, 2, 2), (3, 1, 1), (1, 2, 0)]
    assert (rows[2].norm_ratio, rows[2].clipped, rows[0].dropped) == (1.5, 1, 1)  # the median of 1 and 2
    assert not client_table(rounds_in([{"clients": [{"client": 1, "tier": 1}]}, {}])).rows


def test_many_updates_are_shortened_to_those_with_remarks():
    few = [row(n, cosine=-0.9 if n == 7 else 0.5) for n in range(20)]
    assert len(update_table(few).rows) == 20
    (only,) = update_table([*few, row(20)]).rows
    assert (only[0], only[2], only[-1]) == ("7.safetensors", "1,200", "opposite to its tier (cosine -0.90)")


def test_the_page_of_a_run_has_the_table_if_updates_were_screened(tmp_path):
    keys = {"model": "mlp", "method": "fedavg", "tiers": (1.0,), "clients": 4, "per_round": 4, "rounds": 1, "local_epochs": 1}
    config = RunConfig.of({**keys, "conditions": "ideal", "eval_samples": 20, "outliers": True})
    folder = simulate(config, tmp_path / "run").folder
    rounds = read_rounds(folder / "rounds.jsonl")
    assert "Updates beside those of their tier" in (folder / "report.html").read_text(encoding="utf-8")
    assert [len(row) for row in client_table(rounds).rows] == [9] * 4
    assert all(row.cosine is not None for row in screened_clients(rounds))
    plain = [replace(line, clients=tuple(replace(client, screened=None) for client in line.clients)) for line in rounds]
    assert "Updates beside those of their tier" not in render(read_trained(folder / "summary.json"), plain)
