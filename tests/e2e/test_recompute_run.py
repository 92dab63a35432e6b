"""A run whose devices hold no step of the network unless its activations are computed again."""

import json

from safetensors.torch import load_file
from small_fleet import write_device, write_fleet
from torch import equal

from edgefl import RunConfig, simulate


def tensors_and_clients(folder, memory_bytes, **keys):
    folder.mkdir()
    write_device(folder, "board", training_bytes=float(memory_bytes))
    profile = write_fleet(folder, {"board": 1.0}, behaviour={})
    own = {"method": "fedavg", "norm": "batch", "rounds": 1, "clients": 6, "per_round": 3, "local_epochs": 1, "tiers": (1.0,)}
    simulate(RunConfig.of({"profile": profile, "model": "cnn-digits", **own, **keys}), folder / "run")
    (line,) = (json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines())
    return load_file(folder / "run" / "model.safetensors"), line["clients"]


def test_the_model_has_the_same_bits_and_the_records_say_how_it_was_trained(tmp_path):
    roomy, saved = tensors_and_clients(tmp_path / "roomy", 1e9)
    tight, again = tensors_and_clients(tmp_path / "tight", 3.2e6, on_shortfall=("recompute",), workers=2)
    assert all(equal(tight[name], tensor) for name, tensor in roomy.items())
    for one, other in zip(saved, again, strict=True):
        assert one["measured_training_memory_bytes"] > 3.2e6 > other["measured_training_memory_bytes"]
        assert other["measured_training_memory_bytes"] == other["predicted_memory_bytes"]
        assert (one["recompute"], other["recompute"]) == ([], ["conv2"])
        assert other["macs"] == one["macs"] + 64 * 9 * 32 * other["samples"]  # the first convolution runs twice
        assert other["train_s"] > one["train_s"]
    summary = json.loads((tmp_path / "tight" / "run" / "summary.json").read_text())
    (tier,), (board,) = summary["tiers"], summary["classes"]
    assert (tier["recompute"], board["recompute"], tier["macs_recompute"]) == (["conv2"], ["conv2"], 64 * 9 * 32)
    assert [(step["recompute"], bool(step["refusals"])) for step in board["considered"]] == [([], True), (["conv2"], False)]
    assert "1, recomputed" in (tmp_path / "tight" / "run" / "report.html").read_text()
