"""A run with real devices beside its simulation: means and counts worked out by hand, and what cannot be compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made_records import rounds_in, summary_in
from pages import Page, charts_of, drawn, rows

from edgefl.contrib.flower.twin import twin_of, twin_table
from edgefl.contrib.flower.twin_page import twin_page
from edgefl.errors import InputError
from edgefl.records import Metric

SUMMARY = summary_in({
    "method": "fedhm", "model": "mlp", "dataset": "digits", "clients": 2, "per_round": 2, "local_epochs": 1, "batch_size": 32,
    "codec": "fp32", "objective": "none", "fleet": "small", "tiers": [{"tier": 1}],
    "download_bytes": 500, "upload_bytes": 260, "global_accuracy": 0.5,
})  # fmt: skip


def session(status, train_s=None, **more):
    keys = {"device": "board", "tier": 1, "download_s": 1.0, "upload_s": 2.0, "download_bytes": 100, "upload_bytes": 80}
    return {**keys, "status": status, "train_s": train_s, **more}


REAL = rounds_in(
    [
        {
            "round_s": 4.0,
            "observed": {"setup_bytes": 70},
            "clients": [session("trained", 3.0), session("dropped", 9.0, tier=0.5)],
        },
        {
            "round_s": 6.0,
            "observed": {"setup_bytes": 0},
            "clients": [session("trained", 5.0, upload_bytes=100), session("refused", tier=0.5)],
        },
    ]
)
SIMULATED = rounds_in(
    [{"round_s": 2.5, "clients": [session("trained", 2.0, download_s=0.25), session("trained", 1.0, tier=0.5)]}]
)


def test_means_are_of_the_sessions_that_trained_and_losses_are_counted():
    twin = twin_of((SUMMARY, REAL), (SUMMARY, SIMULATED))
    half, full = twin.rows
    assert (half.tier, full.tier) == (0.5, 1)
    assert (full.real.train_s, full.real.way_s, full.real.upload_bytes) == (4.0, 3.0, 90.0)
    assert (full.simulated.train_s, full.simulated.way_s, full.simulated.upload_bytes) == (2.0, 2.25, 80.0)
    assert (half.real.sessions, half.real.trained, half.real.refused, half.real.lost, half.real.train_s) == (2, 0, 1, 1, None)
    assert (twin.real.rounds, twin.real.round_s, twin.real.setup_bytes, twin.simulated.setup_bytes) == (2, 5.0, 70, 0)
    told = twin_table(twin).to_plain()
    assert (
        "device board; tier 0.5; trained real 0, simulated 1; lost real 1, simulated 0; training real –, simulated 1.00 s" in told
    )
    assert "real: 2 rounds of 5.00 s each; 500 B down, 260 B up, 70 B of training graphs; accuracy 50.0 %" in told


def test_the_page_has_predicted_and_real_seconds_bytes_and_losses():
    page = twin_page(twin_of((SUMMARY, REAL), (SUMMARY, SIMULATED)))
    text, charts = Page(page).text, charts_of(page)
    assert charts.keys() == {"times", "ends"}
    assert "Training differs most on board, tier 1: 4.00 s, 2 times the simulated 2.00 s." in text
    assert "The real run lost 1 session, the simulation 0." in text
    assert "simulated: 2.50 s" in text
    told = {row["told"] for chart in charts.values() for row in rows(chart, "bar")}
    assert "board, tier 1, real, start and way: 3.00 s" in told
    assert "board, tier 0.5, real, refused: 1" in told
    for chart in charts.values():
        assert drawn(chart).startswith("<svg")


def test_the_metric_of_an_own_loss_is_told_as_it_is():
    own = replace(SUMMARY, metric=Metric("r2", share=False), global_accuracy=-0.25)
    twin = twin_of((own, REAL), (own, SIMULATED))
    assert "70 B of training graphs; r2 -0.25" in twin_table(twin).to_plain()
    assert "r2-0.25simulated: -0.25" in Page(twin_page(twin)).text
    with pytest.raises(InputError, match="the runs differ: metric is 'r2' and 'accuracy'"):
        twin_of((own, REAL), (SUMMARY, SIMULATED))


@pytest.mark.parametrize(
    ("real", "simulated", "message"),
    [
        ((SUMMARY, SIMULATED), (SUMMARY, SIMULATED), "the first folder: got a simulation, expected a run with real devices"),
        ((SUMMARY, REAL), (SUMMARY, REAL), "the second folder: got a run with real devices, expected a simulation"),
        ((SUMMARY, REAL), (replace(SUMMARY, codec="int8"), SIMULATED), "the runs differ: codec is 'fp32' and 'int8'; simulate"),
        (
            (SUMMARY, REAL),
            (replace(SUMMARY, tiers=summary_in({"tiers": [{"tier": 0.5}]}).tiers), SIMULATED),
            r"tiers is \[1\] and \[0.5\]",
        ),
    ],
)
def test_what_is_no_pair_is_refused(real, simulated, message):
    with pytest.raises(InputError, match=message):
        twin_of(real, simulated)
