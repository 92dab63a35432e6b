"""``--runtime onnx``: a run whose clients train in onnxruntime is the run that torch's would be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pages import Page

from edgefl import RunConfig, RunResult, simulate

OWN = {"train_loss", "predicted_memory_bytes", "measured_peak_activation_bytes", "measured_training_memory_bytes"}
"""What a runtime has of its own in a client's record: its rounding, and its memory."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunResult]:
    """The job that the README begins with, eight of its rounds, by either runtime, evaluated at its end."""
    folder = tmp_path_factory.mktemp("both")
    return {
        runtime: simulate(RunConfig.of({"runtime": runtime, "rounds": 8, "eval_every": 8}), folder / runtime)
        for runtime in ("torch", "onnx")
    }


def simulated(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds, without the host's time and what a runtime has of its own, such as the last bits of weights."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record in rounds:
        record["clients"] = [{key: value for key, value in client.items() if key not in OWN} for client in record["clients"]]
        del record["host_s"], record["stages"], record["accuracy"]
        record["observed"] = {key: value for key, value in record["observed"].items() if not key.startswith("energy")}
    return rounds


def test_outcomes_and_bytes_are_the_same(both: dict[str, RunResult]) -> None:
    torch_rounds, onnx_rounds = (simulated(result.folder) for result in both.values())
    assert torch_rounds == onnx_rounds
    assert {client["status"] for record in onnx_rounds for client in record["clients"]} >= {"trained"}


def test_accuracies_agree_within_a_point(both: dict[str, RunResult]) -> None:
    accuracies = [result.global_accuracy for result in both.values()]
    assert min(accuracies) > 0.9
    assert abs(accuracies[0] - accuracies[1]) <= 0.01


def test_the_report_has_onnxruntimes_memory_beside_the_predicted(both: dict[str, RunResult]) -> None:
    for result in both.values():
        page = Page((result.folder / "report.html").read_text(encoding="utf-8"))
        assert "activations of a training step, in onnxruntime" in page.text
        for row in result.tiers:
            assert row.measured_peak_activation_bytes_onnx > 0.5 * row.peak_activation_bytes_training
            assert row.macs_forward_onnx == row.macs_forward
        assert "by ONNX" in page.text


def test_the_same_seed_gives_the_same_bits_by_one_worker_or_two(tmp_path: Path) -> None:
    small = {"runtime": "onnx", "rounds": 2, "clients": 6, "per_round": 3, "local_epochs": 1, "model": "mlp", "tiers": (1.0, 0.5)}
    first, second = (simulate(RunConfig.of({**small, "workers": workers}), tmp_path / str(workers)) for workers in (1, 2))
    assert (first.folder / "model.safetensors").read_bytes() == (second.folder / "model.safetensors").read_bytes()
