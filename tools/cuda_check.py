"""What a graphics card does to edgefl: the same training as on the processor, its speed beside a bare loop, and its memory.

Usage: python tools/cuda_check.py [--write]      (about five minutes; --device cpu rehearses it without a card)

1. Six methods train one round on both. The distance of their weights, over that of the round, is at most TOLERANCE.
2. Rounds of S (a 5×5 CNN, 10 clients × 600 samples) beside a bare loop on the card, in turns; and rounds of ResNet-18.
3. The most bytes that torch holds on the card while a client trains, beside the predicted peak.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from speed.loops import Plain, sequential_network
from speed.simulated import config_of, play
from speed.work import BATCH_SIZE, WORKS, material

from edgefl import RunConfig, simulate
from edgefl.data.mix import load
from edgefl.run.prepare import prepare
from edgefl.server.checkpoint import of_file

METHODS = "fedavg", "fedhm", "heterofl", "flanc", "fedpara", "prism"
TOLERANCE = 0.01
"""Convolutions may compute with 10 bits of mantissa on a card, which is 1e-3 in each sum."""
SMALL = {
    "dataset": "digits",
    "rounds": 1,
    "clients": 4,
    "per_round": 4,
    "local_epochs": 1,
    "conditions": "ideal",
    "bundle": False,
}
TURNS, ROUNDS = 3, 6
RESULT = Path(__file__).parent / "results" / "cuda.json"


def weights_after(method: str, device: str, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return all trained weights before and after a round on ``device``."""
    config = RunConfig.of({**SMALL, "method": method, "device": device})
    before = prepare(config).start().model.tensors
    simulate(config, folder)
    after = of_file(folder / "model.safetensors").model.tensors
    names = [name for name, tensor in before.items() if tensor.is_floating_point()]
    return torch.cat([before[name].flatten() for name in names]), torch.cat([after[name].flatten() for name in names])


def distances(device: str, folder: Path) -> dict[str, float]:
    """Return method → the distance of the weights that both devices train, over the distance that the round goes."""
    found = {}
    for method in METHODS:
        (begun, one), (_, other) = (weights_after(method, of, folder / f"{method}-{at}") for at, of in enumerate(("cpu", device)))
        found[method] = float((other - one).norm() / (one - begun).norm())
    return found


def loop_round(device: str) -> Callable[[], float]:
    """Return what plays a round of S as a bare loop on ``device``, and returns its seconds."""
    work, used = WORKS["S"], material(WORKS["S"])
    data = load(used.dataset, used.data_dir)
    x, y = (torch.tensor(part[: work.samples * work.per_round], device=device) for part in (data.train.x, data.train.y))
    network = sequential_network(used.model, tuple(x.shape[1:]), data.classes).to(device)
    loop = Plain(network)
    weights = loop.weights()
    sums = [torch.zeros_like(weight) for weight in weights]
    clients = list(zip(x.split(work.samples), y.split(work.samples), strict=True))

    def play_round() -> float:
        begun = time.perf_counter()
        samples = loop.train(clients, weights, sums)
        for weight, total in zip(weights, sums, strict=True):
            weight.copy_(total / samples)
        _finish(device)
        return time.perf_counter() - begun

    return play_round


def speeds(device: str) -> dict[str, Any]:
    """Return the median seconds of a round of S, of the bare loop, and of ResNet-18 on the same clients."""
    work, used, once = WORKS["S"], material(WORKS["S"]), loop_round(device)
    once()  # the first round chooses algorithms
    ours, loops = list[float](), list[float]()
    for _ in range(TURNS):
        ours += _rounds(play(config_of(work, used, ROUNDS + 1, device=device, engine="inline"))["marks"])
        loops += [once() for _ in range(ROUNDS)]
    resnet = RunConfig.of({**SMALL, "model": "resnet18", "rounds": 4, "device": device, "engine": "inline", "eval_every": 4})
    found = {"round_s": median(ours), "loop_round_s": median(loops), "ratio": median(ours) / median(loops)}
    return {**found, "resnet18_round_s": median(_rounds(play(resnet)["marks"]))}


def _rounds(marks: list[float]) -> list[float]:
    """Return the seconds of all rounds but the first."""
    return [end - begin for begin, end in itertools.pairwise(marks[1:])]


def memory(device: str, folder: Path) -> dict[str, Any]:
    """Return the peak of a training client on the card, and the predicted one."""
    found = {}
    for model in ("cnn-digits", "resnet18"):
        config = RunConfig.of({**SMALL, "model": model, "method": "fedavg", "device": device, "batch_size": BATCH_SIZE})
        run = prepare(config)
        predicted = run.plan.costs[run.tiers[0]].training_memory_bytes
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        simulate(config, folder / f"memory-{model}")
        measured = torch.cuda.max_memory_allocated() if device == "cuda" else None
        found[model] = {"predicted_bytes": predicted, "measured_bytes": measured}
    return found


def _finish(device: str) -> None:
    """Wait until the card has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Check all three, print them, and exit with 1 if a method is too far off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--write", action="store_true", help="store the result, of a card only")
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no card here; --device cpu rehearses the check")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        far = distances(given.device, Path(folder))
        result = {
            "card": torch.cuda.get_device_name() if given.device == "cuda" else "none",
            "torch": torch.__version__,
            "distances": far,
            "tolerance": TOLERANCE,
            "speed": speeds(given.device),
            "memory": memory(given.device, Path(folder)),
        }
    text = json.dumps(result, indent=2) + "\n"
    print(text)
    if given.write and given.device == "cuda":
        RESULT.write_text(text, encoding="utf-8")
    if wrong := [method for method, distance in far.items() if not distance <= TOLERANCE]:
        raise SystemExit(f"too far from the processor's weights: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
