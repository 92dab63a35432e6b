"""Runs to audit: a small network that trains for a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgefl import RunConfig, simulate

SMALL = {
    "model": "mlp", "clients": 6, "per_round": 3, "rounds": 2, "local_epochs": 1, "data_share": 0.2, "bundle": False,
    "conditions": "ideal", "eval_every": 2,
}  # fmt: skip
CENTRAL = {"privacy": "central", "clip_norm": 0.5, "noise_multiplier": 2.0, "norm": "none"}
LOCAL = {"privacy": "local", "privacy_clip": 0.5, "noise_multiplier": 2.0, "norm": "none"}
EXAMPLE = {"privacy": "example", "privacy_clip": 0.5, "noise_multiplier": 2.0, "norm": "none"}


def made(folder: Path, **keys: Any) -> Path:
    """Return the folder of a finished run."""
    return simulate(RunConfig.of({**SMALL, **keys}), folder, on_round=lambda record: None).folder
