"""Training graphs against PyTorch: the loss and every gradient of one batch, in onnxruntime and in torch, both against torch in float64.

    python tools/parity.py                         # every method at each of its tiers, on every reference network: an hour
    python tools/parity.py --model cnn-digits --method fedpara --method flanc

Prints a line for each and writes tools/results/parity.jsonl. A row fails where the loss is off by more than 1e-5 (relative to losses above
1), or a gradient by more than 1e-4 of its norm and twice what torch's own float32 is off by.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.models.base import Architecture, small_models
from edgefl.records import Tier
from edgefl.registry import methods, models
from edgefl.testing.parity import measured

RESULTS = Path(__file__).parent / "results" / "parity.jsonl"


def cases(chosen_methods: list[str], chosen_models: list[str]) -> Iterator[tuple[str, Method, Architecture, tuple[Tier, ...]]]:
    """Yield every method with every network that it can train, at its usual input or a shorter window of it."""
    for model in chosen_models:
        facts = models.facts(model)
        shape = tuple(facts["usual_input"])
        shape = (min(shape[0], 12),) if facts.get("vocabulary") else shape
        architecture = Architecture(model, shape, int(facts.get("usual_classes", 10)))
        for name in chosen_methods:
            ratios: tuple[float, ...] = methods.load(name).default_tiers
            method, tiers = create(name, tiers=ratios), tuple(map(Tier, ratios))
            try:
                method.check(architecture, tiers, 4)
            except ConfigError as error:
                print(f"{name:18} {model:18} cannot train it: {str(error).splitlines()[0]}")
                continue
            yield name, method, architecture, tiers


def main() -> int:
    """Measure what is asked for; exit with 1 where a row fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", action="append", choices=methods.names(), help="a method; may be repeated [all]")
    parser.add_argument("--model", action="append", choices=models.names(), help="a network; may be repeated [all]")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, failed = [], 0
    for name, method, architecture, tiers in cases(options.method or methods.names(), options.model or small_models()):
        for tier in tiers:
            started = time.perf_counter()
            try:
                found = list(measured(method, name, architecture, tiers, tier))
            except EdgeflError as error:
                failed += 1
                print(f"{name:18} {architecture.model:18} {tier.label:5} {error}", flush=True)
                continue
            for row in found:
                rows.append({**asdict(row), "passes": row.passes})
                failed += not row.passes
                print(
                    f"{name:18} {row.model:18} {tier.label:5} loss off {row.loss_error:.1e}, gradient {row.gradient_error:.1e}"
                    f" (torch {row.torch_gradient_error:.1e}) {row.worst} {'' if row.passes else 'FAILS '}"
                    f"{time.perf_counter() - started:.1f} s",
                    flush=True,
                )
    if not options.method and not options.model:
        RESULTS.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} rows, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
