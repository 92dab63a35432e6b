"""Runs with devices that are too small: metered, limited by the system, refused, or given less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from command import edgefl, flags_of
from fleet_runs import SMALL, TIERS, device, fleet, sessions_of
from runs import checkpoint_of, lines_of, model_of, stopped_after

from edgefl import RunConfig, simulate
from edgefl.server.checkpoint import of_file

# The perceptron's largest tier takes 296,056 bytes, the convolutional network's 3,350,912; with half of each batch 2,110,212, with half
# of the widths 1,532,160.
TINY_BYTES, TINY_CONVOLUTIONAL_BYTES = 250_000, 2_300_000


def fleet_with_tiny(folder: Path, training_bytes: float) -> str:
    tiny = device(folder, "tiny", "low-end-phone", training_bytes=training_bytes)
    return fleet(folder, "tiny-and-large", (tiny, 0.5), ("flagship-phone", 0.5))


ENFORCED: dict[str, Any] = {**SMALL, "conditions": "ideal", "over_selection": 1}


def of_tiny(folder: Path) -> list[dict[str, Any]]:
    found = [session for session in sessions_of(folder) if session["device"] == "tiny"]
    assert found
    return found


def test_what_is_sent_to_a_device_that_is_too_small_is_metered_away(tmp_path: Path) -> None:
    profile = fleet_with_tiny(tmp_path, TINY_BYTES)
    runs = {step: tmp_path / step for step in ("send", "refuse")}
    done = edgefl("simulate", *flags_of({**ENFORCED, "profile": profile, "on_shortfall": "send"}), "--out", str(runs["send"]))
    assert done.returncode == 0, done.stderr
    simulate(RunConfig.of({**ENFORCED, "profile": profile, "on_shortfall": ("refuse",)}), runs["refuse"])
    sent, refused = of_tiny(runs["send"]), of_tiny(runs["refuse"])
    assert {session["status"] for session in sent} == {"out_of_memory"}
    assert {session["status"] for session in refused} == {"refused"}
    for session in sent:
        assert session["tier"] == 1
        assert session["memory_bytes"] == TINY_BYTES
        assert session["predicted_memory_bytes"] > TINY_BYTES
        assert TINY_BYTES < session["measured_training_memory_bytes"] <= session["predicted_memory_bytes"]
        # It had been sent the model and worked for a step: that was for nothing.
        assert session["download_bytes"] > session["upload_bytes"] == 0
        assert session["macs"] > 0
        assert session["energy_j"] > 0
    for session in refused:
        assert (session["download_bytes"], session["macs"], session["energy_j"]) == (0, 0, None)
        assert {short["budget"] for short in session["refusal"]} == {"memory_bytes"}
    # Whoever was killed or refused left no trace in the model.
    assert model_of(runs["send"]) == model_of(runs["refuse"])
    first, second = (lines_of(runs[step]) for step in ("send", "refuse"))
    assert [line["useful"] for line in first] == [line["useful"] for line in second]
    assert [line["round_s"] for line in first] == [line["round_s"] for line in second]
    assert all(line["wasted"]["clients"] == 0 for line in second)


def test_a_limit_of_the_system_ends_them_and_leaves_the_same_model(tmp_path: Path) -> None:
    # Less than half of what it needs: what a process had freed before, and uses again, is not seen to grow.
    limit_bytes = 1_400_000
    profile = fleet_with_tiny(tmp_path, limit_bytes)
    common = {**ENFORCED, "profile": profile, "model": "cnn-digits", "rounds": 2}
    folders = {}
    for level, steps in (("hard", "send"), ("meter", "send"), ("plan", "refuse")):
        folders[level] = stopped_after(RunConfig.of({**common, "enforce": level, "on_shortfall": (steps,)}), tmp_path / level, 2)
    statuses = {level: {session["status"] for session in of_tiny(folder)} for level, folder in folders.items()}
    assert statuses == {"hard": {"out_of_memory"}, "meter": {"out_of_memory"}, "plan": {"refused"}}
    assert all(session["host_memory_bytes"] > limit_bytes for session in of_tiny(folders["hard"]))
    last = [of_file(checkpoint_of(folder, 2)).model.tensors for folder in folders.values()]
    assert all(torch.equal(tensor, other[name]) for other in last[1:] for name, tensor in last[0].items())
    # What is charged to whoever was ended is the same, whichever way it was found out.
    hard, metered = (lines_of(folders[level]) for level in ("hard", "meter"))
    assert [line["wasted"] for line in hard] == [line["wasted"] for line in metered]


@pytest.mark.parametrize(
    ("steps", "tier", "micro_batch"),
    [
        (("micro-batch", "tier"), 1, 16),
        (("micro-batch", "refuse"), 1, 16),
        (("tier", "micro-batch"), 0.5, None),
        (("tier",), 0.5, None),
        (("tier", "send"), 0.5, None),
        (("micro-batch", "send"), 1, 16),
    ],
)
def test_a_device_that_is_too_small_takes_what_the_order_says(
    steps: tuple[str, ...], tier: float, micro_batch: int | None, tmp_path: Path
) -> None:
    profile = fleet_with_tiny(tmp_path, TINY_CONVOLUTIONAL_BYTES)
    values = {
        **ENFORCED,
        **TIERS,
        "method": "heterofl",
        "model": "cnn-digits",
        "profile": profile,
        "on_shortfall": steps,
        "eval_every": 3,
    }
    folder = stopped_after(RunConfig.of(values), tmp_path / "meter", 3)
    for session in of_tiny(folder):
        assert (session["status"], session["tier"], session["micro_batch"]) == ("trained", tier, micro_batch)
        assert session["measured_training_memory_bytes"] <= session["predicted_memory_bytes"] <= TINY_CONVOLUTIONAL_BYTES
    if "send" not in steps:
        planned = stopped_after(RunConfig.of({**values, "enforce": "plan"}), tmp_path / "plan", 3)
        assert lines_of(planned) == lines_of(folder)
        assert checkpoint_of(planned, 3).name == checkpoint_of(folder, 3).name
