"""What attacks begin with: small runs, their bundles and updates, made once by the commands themselves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from attacks.harness import Bench

SMALL = (
    *("--rounds", 3, "--clients", 6, "--per-round", 3, "--local-epochs", 1, "--model", "mlp", "--seed", 3, "--data-share", 0.1),
    *("--profile", "lab", "--eval-every", 3),
)
"""A run of a second."""
MODES: dict[str, tuple[Any, ...]] = {
    "inline": ("--tiers", "1,0.5"),
    "pool": ("--tiers", "1,0.5", "--workers", 2),
    "onnx": ("--tiers", "1,0.5", "--runtime", "onnx"),
    "async": ("--method", "heterofl", "--tiers", "1,0.5", "--mode", "async", "--workers", 2),
    "per-fedavg": ("--method", "per-fedavg"),
    "client store": ("--method", "pfedpara", "--workers", 2),
}
"""How clients train: name → flags."""
HOST = ("host_s", "stages", "host_stages")
"""Keys of records about this computer's time."""


def simulated(bench: Bench, mode: str = "inline") -> Path:
    """Return the finished run of a mode."""
    return bench.once(f"run-{mode}", lambda path: bench.run("simulate", *SMALL, *MODES[mode], "--out", path))


def interrupted(bench: Bench, mode: str = "inline") -> Path:
    """Return a run that was killed after its second round, one of twenty."""

    def make(path: Path) -> None:
        running = bench.edgefl.start("simulate", *SMALL, *MODES[mode], "--rounds", 20, "--out", path, cwd=bench.home)
        while not list(path.glob("checkpoints/round-000002-*")) and running.runs():
            time.sleep(0.002)
        running.kill()
        if (path / "summary.json").exists():
            raise RuntimeError(f"{path}: the run ended before it was killed")

    return bench.once(f"interrupted-{mode}", make)


def data(bench: Bench) -> Path:
    """Return samples for the device client."""

    def make(path: Path) -> None:
        rng = np.random.default_rng(0)
        np.savez(path, x=rng.normal(size=(12, 1, 8, 8)).astype(np.float32), y=np.arange(12) % 10)

    return bench.once("data.npz", make)


def updates(bench: Bench) -> Path:
    """Return a folder of two updates of the bundle of :func:`simulated`, trained by the client of devices."""

    def make(path: Path) -> None:
        path.mkdir()
        samples, bundle = data(bench), simulated(bench) / "bundle"
        for tier in ("1", "0.5"):
            state, client = bench.home / f"{tier}.state", bench.client
            client.run("train", bundle, tier, samples, "--allow-unsigned", "--out", state, cwd=bench.home).check((0,))
            client.run("update", state, "--out", path / f"{tier}.safetensors", cwd=bench.home).check((0,))

    return bench.once("updates", make)


def lines(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run's rounds, without this computer's time."""
    content = (run / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in HOST} for line in content]


def summary(run: Path) -> dict[str, Any]:
    """Return the summary of a run, without this computer's time."""
    found = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    return {key: value for key, value in found.items() if key not in HOST}


def aged(folder: Path) -> None:
    """Make all files of ``folder`` an hour old: what is new may be in use."""
    then = time.time() - 3600
    for path in folder.iterdir():
        os.utime(path, (then, then))
