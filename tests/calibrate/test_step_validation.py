"""Predicted steps are compared with measured ones: their errors, the bar, and the order of tiers."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from command import edgefl
from made_measurements import Known, figure

from edgefl.cli.main import group
from edgefl.errors import InputError


def test_a_prediction_is_compared_with_a_measured_step(monkeypatch):
    from edgefl.contrib.calibrate import validate as validating
    from edgefl.registry import models

    monkeypatch.setattr(models, "names", lambda: ["mlp"])
    monkeypatch.setattr(validating, "_TIERED", ())
    result = validating.validate(Known(), threads=1, seconds=0.1)
    (row,) = result.rows
    assert (row.model, row.batch_size, row.calibrated_on) == ("mlp", 16, False)
    assert row.predicted_by_rate_s == pytest.approx(row.macs / 2e9)
    assert row.low_s <= row.measured_s <= row.high_s
    assert result.to_json()["median_error"] == abs(row.predicted_s / row.measured_s - 1)


def test_a_network_too_slow_for_its_batch_is_measured_at_a_smaller_one(monkeypatch):
    from edgefl.contrib.calibrate import validate as validating
    from edgefl.registry import models

    class Slow:
        training_gmacs_per_s = figure(2e-3)
        training_step = None

    monkeypatch.setattr(models, "names", lambda: ["mlp"])
    monkeypatch.setattr(validating, "_TIERED", ())
    assert validating.validate(Slow(), threads=1, seconds=0.1).rows[0].batch_size == 4


def test_validation_says_its_median_and_the_bar(monkeypatch, tmp_path):
    from edgefl.contrib.calibrate import validate as validating

    rows = tuple(
        validating.StepComparison(name, "", 16, 1000, predicted, 3.0, 1.0, 0.9, 1.5, 7, own)
        for name, predicted, own in (("cnn-digits", 1.1, True), ("mlp", 1.4, False), ("vgg16", 0.7, False))
    )
    monkeypatch.setattr(validating, "validate", lambda *_, **__: validating.Validation(rows, 0.25))
    done = edgefl("devices", "--validate", "laptop")
    assert done.returncode == 0
    assert "median error 30.0%, at most 12% wanted: not met; 90th percentile 38.0%" in done.stdout
    assert "35.0%; by one rate 200.0%" in done.stdout
    assert "other programs took 25%" in done.stdout
    assert "cnn-digits (calibrated on)" in done.stdout
    printed = json.loads(edgefl("devices", "--validate", "laptop", "--json").stdout)
    assert printed["met"] is False
    assert [row["model"] for row in printed["models"]] == ["cnn-digits", "mlp", "vgg16"]


def test_tiers_of_one_network_are_compared_in_their_order():
    from edgefl.contrib.calibrate.validate import StepComparison, Validation

    def row(tier, predicted, measured, model="mlp"):
        return StepComparison(model, tier, 16, 1000, predicted, 3.0, measured, 0.9, 1.5, 7, False)

    rows = row("fedhm 1", 4.0, 4.0), row("fedhm 0.5", 2.0, 5.0), row("fedhm 0.25", 1.7, 6.0), row("heterofl 0.5", 1.0, 9.0)
    found = Validation((*rows, row("", 0.5, 8.0), row("fedhm 1", 9.0, 1.0, "vgg16")), 0.0)
    # 2.0 against 1.7 is closer than 1.25; other methods, networks and whole networks are not compared.
    assert [(fast.tier, slow.tier) for fast, slow in found.pairs] == [("fedhm 0.25", "fedhm 1"), ("fedhm 0.5", "fedhm 1")]
    assert found.inversions == ["mlp: fedhm 0.25 is not faster than fedhm 1", "mlp: fedhm 0.5 is not faster than fedhm 1"]
    assert found.to_json()["met"] is False


def test_wrong_uses_of_validation():
    assert edgefl("devices", "laptop", "--validate", "host").returncode == 2
    assert edgefl("devices", "--threads", "2").returncode == 2
    with pytest.raises(InputError, match="unknown device 'hots'"):
        CliRunner().invoke(group, ["devices", "--validate", "hots"], catch_exceptions=False)
