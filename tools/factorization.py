"""How long a server takes to decompose ResNet-18 for FedHM's tiers, beside one ``torch.linalg.svd`` for every layer and tier.

Usage: python tools/factorization.py [--tiers R,…;R,…] [--rounds N] [--move SHARE] [--full] [--json FILE]

Rounds are real ones: each tier's client takes gradient steps on synthetic images, scaled so that every tensor of it moves by ``--move`` of
its length; FedHM aggregates. Timed is what a round's first sub-model makes the server do: in the first round, whose weights are random and
of which nothing is known, and in later ones, which begin with the vectors of the round before. ``torch.linalg.svd`` works on the weights of
the last round, with one thread, as runs do; the decomposition of the same weights is timed again between its passes. It is run for each
tier below 1, since a tier of 1 is dense; the fourth column counts that tier too. The excess is the largest of any layer and tier: the error
of what is sent over the least possible, less 1. Seconds are the clock's; on a machine that does other work processor time says more.

``--full`` also times the same rounds by full decompositions, the fallback, and PriSM's kernels, all of them, beside ``torch.linalg.svd``.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from edgefl.contrib.calibrate.bench import torch_threads
from edgefl.factor.svd import Factors, counted, factorize, unroll
from edgefl.methods.create import create
from edgefl.methods.fedhm import FedHM
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator
from edgefl.util.compute import in_parallel

T = TypeVar("T")
ARCHITECTURE = Architecture("resnet18", (3, 32, 32), 10)
STEPS, BATCH = 2, 8


def timed(work: Callable[[], T]) -> tuple[np.ndarray, T]:
    """Return seconds by the clock and of processor time, (2,), and the result."""
    started = np.array([time.perf_counter(), time.process_time()])
    result = work()
    return np.array([time.perf_counter(), time.process_time()]) - started, result


def round_of(method: FedHM, state: GlobalState, number: int, move: float) -> GlobalState:
    """Return the state after one round with a client of every tier."""
    updates = []
    for client, tier in enumerate(state.tiers):
        rng = generator(0, number, client)
        templates = generator(0, "classes").standard_normal((10, *ARCHITECTURE.input_shape), np.float32)
        submodel = method.submodel(state, tier, rng, client)
        module = submodel.build()
        module.load_state_dict(submodel.tensors)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        for _ in range(STEPS):
            y = rng.integers(10, size=BATCH)
            x = templates[y] + rng.standard_normal((BATCH, *ARCHITECTURE.input_shape), np.float32)
            optimizer.zero_grad()
            method.local_loss(module, Batch(torch.from_numpy(x), torch.from_numpy(y))).backward()
            optimizer.step()
        updates.append(Update(client, tier, moved(submodel.tensors, method.upload(module), move), submodel.places, BATCH))
    return method.aggregate(state, updates)


def moved(before: Any, after: Any, share: float) -> dict[str, Tensor]:
    """Return ``before`` with each tensor moved towards ``after`` by ``share`` of its length."""
    changes = {name: after[name] - before[name] for name in after}
    return {
        name: before[name] + change * (share * before[name].norm() / change.norm().clamp_min(1e-12))
        for name, change in changes.items()
    }


def fresh(state: GlobalState, warm: bool = True) -> GlobalState:
    """Return the same state with nothing worked out of it; not ``warm``: as if it were the first."""
    return state.replace(state.tensors, warm=state.warm if warm else {})


def excess(method: FedHM, state: GlobalState, factors: dict[str, Factors], tails: dict[str, Tensor]) -> float:
    """Return the largest error over the least possible, less 1; ``tails``: layer → squared errors at ranks 0, 1, …, exact."""
    worst = -1.0
    for tier in state.tiers:
        for layer, rank in method._state_ranks(state, tier).items():
            left, right = (factor.double() for factor in factors[layer].leading(rank))
            error = (unroll(state.tensors[f"{layer}.weight"]).double() - left @ right).norm()
            worst = max(worst, float(error / tails[layer][rank].sqrt()) - 1)
    return worst


def rows_of(ratios: tuple[float, ...], rounds: int, move: float, full: bool) -> list[dict[str, Any]]:
    """Measure one set of tiers."""
    tiers, method = tuple(map(Tier, ratios)), create("fedhm", tiers=ratios)
    assert isinstance(method, FedHM)
    state = method.init(ARCHITECTURE, tiers, generator(0, "init"))
    first, _ = timed(partial(method._factors, state))
    later, fallbacks = [], 0
    for number in range(1, rounds + 1):
        state = round_of(method, state, number, move)
        seconds, factors = timed(partial(method._factors, state))
        later.append(seconds)
        fallbacks += counted(factors.values())["fallback"]
    matrices = {layer: unroll(state.tensors[f"{layer}.weight"]).contiguous() for layer in factors}
    below, passes, again, tails = [t for t in tiers if t.ratio < 1], [], [], {}
    for tier in tiers:
        total = np.zeros(2)
        for layer in method._state_ranks(state, tier) or matrices:  # a dense tier is timed for the last column
            seconds, (_, values, _) = timed(partial(torch.linalg.svd, matrices[layer], full_matrices=False))
            total += seconds
        passes.append(total)
        again.append(timed(lambda: method._factors(fresh(state)))[0])
    for layer, matrix in matrices.items():
        values = torch.linalg.svdvals(matrix.double()).square()
        tails[layer] = torch.cat([values.flip(0).cumsum(0).flip(0), torch.zeros(1)])
    baseline = np.sum([seconds for tier, seconds in zip(tiers, passes, strict=True) if tier in below], 0)
    cases = {"torch.linalg.svd": baseline, "first round": first, "later rounds": np.median(later, 0)}
    cases["the last round again, in turns with it"] = np.median(again, 0)
    if full:
        tasks = {layer: lambda m=m, layer=layer: factorize(m, factors[layer].left.shape[1]) for layer, m in matrices.items()}
        cases["full decompositions"] = timed(lambda: in_parallel(tasks))[0]
    worst = excess(method, state, factors, tails)
    label = ", ".join(f"{ratio:g}" for ratio in ratios)
    extra = {"excess": worst, "fallbacks": fallbacks, "warm_bytes": sum(t.nbytes for t in state.warm.values())}
    return [
        row(
            f"{label}: {case}",
            seconds,
            baseline,
            {"ratio_of_all_tiers": float(np.sum(passes, 0)[0] / seconds[0])} | (extra if case == "later rounds" else {}),
        )
        for case, seconds in cases.items()
    ]


def row(case: str, seconds: np.ndarray, baseline: np.ndarray, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a row; ratios are of the baseline."""
    clock, processor = map(float, seconds)
    ratios = {"ratio": float(baseline[0]) / clock, "processor_ratio": float(baseline[1]) / processor}
    return {"case": case, "seconds": clock, "processor_s": processor, **ratios, **(extra or {})}


def kernel_rows() -> list[dict[str, Any]]:
    """Measure PriSM's kernels: every layer's, all of them."""
    method, tiers = create("prism"), (Tier(0.4), Tier(0.2))
    state = method.init(ARCHITECTURE, tiers, generator(0, "init"))
    layers = method._kernel_layers(state, tiers[0])  # type: ignore[attr-defined]
    matrices = [state.tensors[layer.target].flatten(1) for layer in layers]
    baseline = np.sum([timed(partial(torch.linalg.svd, m, full_matrices=False))[0] for m in matrices], 0)
    seconds, _ = timed(lambda: method._factors(state, layers[0]))  # type: ignore[attr-defined]
    return [row(f"prism: {case}", s, baseline) for case, s in {"torch.linalg.svd once": baseline, "all kernels": seconds}.items()]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = ["| case | s | ratio | of all tiers | processor s | ratio | excess | fallbacks | MB kept |", "|" + " --- |" * 9]
    for row in rows:
        of_all = f"{row['ratio_of_all_tiers']:.1f}" if "ratio_of_all_tiers" in row else ""
        known = f"{row['excess']:.1e} | {row['fallbacks']} | {row['warm_bytes'] / 1e6:.1f}" if "excess" in row else " | | "
        times = f"{row['seconds']:.3f} | {row['ratio']:.1f} | {of_all} | {row['processor_s']:.3f} | {row['processor_ratio']:.1f}"
        lines.append(f"| {row['case']} | {times} | {known} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiers", default="1,0.5,0.25;0.5,0.25,0.125", help="sets of rank ratios [1,0.5,0.25;0.5,0.25,0.125]")
    parser.add_argument("--rounds", type=int, default=5, help="after the first [5]")
    parser.add_argument("--move", type=float, default=0.03, help="how far a client moves each tensor, of its length [0.03]")
    parser.add_argument("--full", action="store_true", help="time full decompositions and PriSM too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with torch_threads(1):
        for ratios in options.tiers.split(";"):
            rows += rows_of(tuple(map(float, ratios.split(","))), options.rounds, options.move, options.full)
        rows += kernel_rows() if options.full else []
    print(f"ResNet-18, 3x32x32, torch {torch.__version__}, {os.cpu_count()} cores.\n")
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
