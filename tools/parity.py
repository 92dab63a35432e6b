"""Training graphs against PyTorch: the loss and every gradient of one batch, in onnxruntime and in torch, both against torch in float64.

    python tools/parity.py                         # every method at each of its tiers, on every reference network: an hour
    python tools/parity.py --model cnn-digits --method fedpara --method flanc

Prints a line for each and writes tools/results/parity.jsonl. A row fails where the loss is off by more than 1e-5 (relative to losses above
1), or a gradient by more than 1e-4 of its norm and twice what torch's own float32 is off by.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from edgefl.bundle.tier_graphs import tier_graphs
from edgefl.client.client import loss_of
from edgefl.client.objective import Objective
from edgefl.client.objectives.none import PLAIN
from edgefl.client.parts import first_personal
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.models.base import Architecture, named_tensors
from edgefl.onnxgrad.stepper import StepGraphs, Stepper
from edgefl.records import Batch, Tier
from edgefl.registry import methods, models
from edgefl.rng import generator

LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
RESULTS = Path(__file__).parent / "results" / "parity.jsonl"


@dataclass(frozen=True)
class Parity:
    """How far onnxruntime and torch are from float64: the loss, absolute, and the worst gradient by its norm, with that of torch beside it.

    Errors of gradients are relative to the tensor's own norm, or where that is under a thousandth of the largest, to this: what scales a
    layer in front of a normalisation has a gradient of rounding errors only.
    """

    method: str
    model: str
    tier: float
    kind: int
    loss: float
    loss_error: float
    gradient_error: float
    torch_gradient_error: float
    worst: str

    @property
    def passes(self) -> bool:
        """Whether the row meets the tolerances."""
        bound = max(GRADIENT_TOLERANCE, 2 * self.torch_gradient_error)
        return self.loss_error <= LOSS_TOLERANCE * max(1.0, abs(self.loss)) and self.gradient_error <= bound


def measured(
    method: Method,
    name: str,
    architecture: Architecture,
    tiers: tuple[Tier, ...],
    tier: Tier,
    *,
    objective: Objective = PLAIN,
    samples: int = 6,
    seed: int = 0,
) -> Iterator[Parity]:
    """Yield a row for each kind of step of a tier, on a batch that has half of the labels."""
    rng = generator(seed, "parity", name, architecture.model, tier.label)
    state = method.init(architecture, tiers, generator(seed, "init"))
    module = method.trained(state, tier, first_personal(method, architecture, tier, seed), 0)
    shape = (samples, *architecture.input_shape)
    x: np.ndarray = rng.integers(architecture.vocabulary, size=shape) if architecture.vocabulary else rng.standard_normal(shape)
    y = rng.integers((architecture.classes + 1) // 2, size=samples)
    present = np.arange(architecture.classes) < (architecture.classes + 1) // 2
    x = x if architecture.vocabulary else x.astype(np.float32)
    names = {name: parameter for name, parameter in module.named_parameters() if name not in method.personal(module)}
    memory = {f"memory:{n}": torch.from_numpy(rng.standard_normal(tuple(p.shape))).float() * 0.01 for n, p in names.items()}
    objective.attach(module, names, memory, {})
    with torch.no_grad():  # away from where the round began, or a pull towards it is not seen
        for parameter in module.parameters():
            parameter.add_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))).float(), alpha=0.01)
    graphs = tier_graphs(method, architecture, tier, "sgd", 0.0, objective, parts=True).steps
    for kind, draw in enumerate(method.draws(tier)):
        batch = Batch(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(present), draw)
        exact, exact_loss = _in_torch(method, objective, module, batch, torch.float64)
        single, _ = _in_torch(method, objective, module, batch, torch.float32)
        found, loss = _in_onnx(graphs, module, x, y, present, kind)
        floor = 1e-3 * max(float(np.linalg.norm(g)) for g in exact.values())
        ours = {n: _off(found[graphs.roles.trained[n]], g, floor) for n, g in exact.items()}
        theirs = {n: _off(single[n], g, floor) for n, g in exact.items()}
        worst = max(ours, key=lambda n: ours[n] / max(GRADIENT_TOLERANCE, 2 * theirs[n]))
        yield Parity(
            name, architecture.model, tier.ratio, kind, exact_loss, abs(loss - exact_loss), ours[worst], theirs[worst], worst
        )


def _off(found: np.ndarray, exact: np.ndarray, floor: float) -> float:
    return float(np.linalg.norm(found - exact) / max(float(np.linalg.norm(exact)), floor, 1e-30))


def _in_torch(
    method: Method, objective: Objective, module: nn.Module, batch: Batch, dtype: torch.dtype
) -> tuple[dict[str, np.ndarray], float]:
    own = copy.deepcopy(module).to(dtype).train()
    x = batch.x.to(dtype) if batch.x.is_floating_point() else batch.x
    value = loss_of(method, objective)(own, Batch(x, batch.y, batch.present, batch.draw))
    value.backward()
    trained = [(name, parameter) for name, parameter in own.named_parameters() if parameter.requires_grad]
    found = {name: (torch.zeros_like(p) if p.grad is None else p.grad).double().numpy() for name, p in trained}
    return found, value.item()


def _in_onnx(
    graphs: StepGraphs, module: nn.Module, x: np.ndarray, y: np.ndarray, present: np.ndarray, kind: int
) -> tuple[dict[str, np.ndarray], float]:
    """Return gradients by the graphs' names, and the loss."""
    tensors = named_tensors(module)
    arrays = {role: tensors[name].detach().numpy() for name, role in graphs.roles.tensors.items() if name in tensors}
    stepper = Stepper(graphs, {**arrays, "present": present}, 1.0, parts=True)
    loss = stepper.step(x, y, kind=kind)
    return stepper.sums(), loss


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
    for name, method, architecture, tiers in cases(options.method or methods.names(), options.model or models.names()):
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
