"""What a rank per layer keeps over a uniform ratio: ResNet-18 trained on Fashion-MNIST, at the cost of each uniform ratio.

Usage: python tools/planner_gain.py --train weights.safetensors      (trains, about 20 minutes on two cores)
       python tools/planner_gain.py weights.safetensors [--write]    (prints the table, or puts it into its page)
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from counters.markdown import arguments, publish
from torch import Tensor, nn

from edgefl.client.training import Training
from edgefl.data.sources import Dataset
from edgefl.factor.layers import factor_weights
from edgefl.factor.svd import factorize, unroll
from edgefl.fleet.budget import Budget
from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.methods.ranks import ranked
from edgefl.models.base import Architecture
from edgefl.models.norm import calibrate
from edgefl.planning.plan import Planned, plan
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.registry import datasets
from edgefl.rng import generator, torch_seeded
from edgefl.wire.payload import decode, encode

ARCHITECTURE = Architecture("resnet18", (1, 28, 28), 10)
RATIOS = (0.5, 0.25, 0.125, 0.0625)
TEST_SAMPLES = 2000


def train(out: Path, samples: int) -> None:
    """Train with SGD for one pass over ``samples`` images and write the weights."""
    data: Dataset = datasets.load("fashion-mnist")(None)
    order = torch.from_numpy(generator(0, "order").permutation(len(data.train.y))[:samples])
    with torch_seeded(generator(0, "init")):
        network = ARCHITECTURE.build().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    batches = order.split(64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(batches))
    for number, index in enumerate(batches):
        x, y = torch.from_numpy(data.train.x[index]), torch.from_numpy(data.train.y[index])
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if number % 20 == 0:
            print(f"{number}/{len(batches)} loss {loss.item():.3f}", flush=True)
    out.write_bytes(encode({name: tensor.detach() for name, tensor in network.state_dict().items()}))


def accuracy(weights: dict[str, Tensor], ranks: dict[str, int], data: Dataset) -> float:
    """Return the share of held-out images that the truncated network classifies correctly, without any further training."""
    network = ranked(ARCHITECTURE.build(), ranks)
    tensors = {name: tensor for name, tensor in weights.items() if name.removesuffix(".weight") not in ranks}
    for name, rank in ranks.items():
        weight = weights[f"{name}.weight"]
        u, v = factor_weights(*factorize(unroll(weight), rank).leading(rank), tuple(weight.shape))
        tensors |= {f"{name}.u.weight": u, f"{name}.v.weight": v}
    network.load_state_dict(tensors)
    calibrate(network, torch.tensor(data.train.x[:2048]).split(256))
    return _right(network.eval(), data)


@torch.no_grad()
def _right(network: nn.Module, data: Dataset) -> float:
    x, y = torch.tensor(data.test.x[:TEST_SAMPLES]), torch.tensor(data.test.y[:TEST_SAMPLES])
    return sum(int((network(a).argmax(1) == b).sum()) for a, b in zip(x.split(250), y.split(250), strict=True)) / len(y)


def table(path: Path, error: Literal["absolute", "relative"]) -> str:
    """Return the Markdown table: per ratio, what both plans keep within the uniform one's own costs."""
    method = create("fedhm")
    weights = decode(path.read_bytes(), download_shapes(method, ARCHITECTURE, Tier(1.0)), str(path))
    data: Dataset = datasets.load("fashion-mnist")(None)
    rows = []
    for ratio in RATIOS:
        cost = tier_cost(method, ARCHITECTURE, Tier(ratio), Training(1, 32))
        budget = Budget(
            memory_bytes=cost.training_memory_bytes,
            macs_forward=cost.macs_forward,
            macs_train_step=cost.macs_train_step,
            upload_bytes=cost.upload_bytes,
        )
        uniform, spectral = plan("resnet18", (1, 28, 28), budget=budget, allocate="spectral", weights=weights, error=error)
        rows.append(_row(ratio, uniform, spectral, weights, data))
    dense = accuracy(weights, {}, data)
    head = "| budget: the costs of γ | params | energy: uniform | rank per layer | upper bound | accuracy: uniform | rank per layer |"
    note = (
        f"Weights: one pass over a part of Fashion-MNIST, {100 * dense:.1f} % on {TEST_SAMPLES:,} held-out images; accuracy after "
        "truncation, without further training. Each plan needs at most the uniform ratio's training memory, forward MACs, step MACs and "
        "bytes."
    )
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows, "", note])


def _row(ratio: float, uniform: Planned, spectral: Planned, weights: dict[str, Tensor], data: Dataset) -> str:
    kept = [p.energy_share or 0.0 for p in (uniform, spectral)]
    right = [accuracy(weights, dict(p.ranks), data) for p in (uniform, spectral)]
    params = f"{uniform.cost.params / 1e6:.2f} M / {spectral.cost.params / 1e6:.2f} M"
    cells = [f"{ratio:g}", params, *(f"{100 * k:.1f} %" for k in (*kept, kept[1] + (spectral.gap or 0.0)))]
    return "| " + " | ".join([*cells, *(f"{100 * r:.1f} %" for r in right)]) + " |"


def main() -> None:
    """Train, print the table, write it into its page, or compare its page with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--error", choices=("absolute", "relative"), default="absolute")
    options = arguments(parser)
    if options.train:
        train(options.weights, options.samples)
        return
    publish("planner", table(options.weights, options.error), options)


if __name__ == "__main__":
    main()
