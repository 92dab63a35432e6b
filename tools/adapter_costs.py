"""What LoRA adapters of several ranks cost, beside full training and what lowers memory: the tables of docs/costs.md. Nothing is trained.

Usage: python tools/adapter_costs.py [--write | --check]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from counters.markdown import arguments, publish, table

from edgefl.methods.adapters import Adapted
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.planning.network import architecture_of
from edgefl.planning.practice import Practice
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import recomputed_cost, tier_cost
from edgefl.records import Cost, Tier
from edgefl.util.compute import one_thread
from edgefl.util.units import human_bytes
from edgefl.wire.payload import payload_bytes

NETWORKS = {"gpt2-small": 4, "gpt2-medium": 4, "gpt2-large": 4, "gpt2-xl": 4, "bert-small": 32, "deit-tiny": 32}
"""Network → samples of a training step."""
RANKS = (64, 16, 4)
STACKED = {"10 of FLoRA's paper": (64, 32, 16, 16, 8, 8, 4, 4, 4, 4), "100 of rank 4": (4,) * 100}
"""Clients of a round → their ranks."""


@dataclass(frozen=True)
class Row:
    """How a network is trained, and what that costs."""

    how: str
    cost: Cost


def rows(architecture: Architecture, batch: int) -> Iterator[Row]:
    """Yield full training, adapters of each rank, then the smallest rank and the full network with what lowers memory."""
    whole = Tier(1.0)
    plain, split = (training_for(batch, micro, "adam") for micro in (None, 1 if batch < 8 else batch // 8))
    cost = partial(tier_cost, architecture=architecture, training=plain)
    yield Row("full training", cost(create("fedavg"), tier=whole))
    for rank in RANKS:
        yield Row(f"rank {rank}", cost(lora(rank), tier=whole))
    smallest = lora(RANKS[-1])
    yield Row(f"rank {RANKS[-1]}, micro-batches of {split.micro_batch}", tier_cost(smallest, architecture, whole, split))
    yield Row(f"rank {RANKS[-1]}, recomputing", recomputed_cost(Practice(smallest, architecture, plain), whole, "fp32"))
    yield Row("last quarter of the blocks", cost(create("last-blocks", tiers=(0.25,)), tier=Tier(0.25)))


def lora(rank: int) -> Adapted:
    """Return FlexLoRA; HetLoRA and FLoRA train the same networks."""
    method = create("flexlora", {"rank": rank})
    assert isinstance(method, Adapted)
    return method


def costs() -> str:
    """Return the table of costs, as shares of full training."""
    lines: list[tuple[str, ...]] = []
    for name, batch in NETWORKS.items():
        full, *others = rows(architecture_of(name), batch)
        whole = full.cost
        peak, macs = whole.training_memory_bytes, whole.macs_train_step
        lines.append(
            (f"{name}, {batch} samples: {full.how}", human_bytes(whole.download_bytes), human_bytes(peak), f"{macs / 1e9:,.0f} G")
        )
        for row in others:
            shares = (
                row.cost.upload_bytes / whole.upload_bytes,
                row.cost.training_memory_bytes / peak,
                row.cost.macs_train_step / macs,
            )
            lines.append((row.how, *(f"{100 * share:.3g} %" for share in shares)))
    return table(("training", "bytes each way", "peak of a training step", "MACs of a step"), lines)


def stacks() -> str:
    """Return the table of what FLoRA sends to every client after one round."""
    lines: list[tuple[str, ...]] = []
    for name in NETWORKS:
        architecture = architecture_of(name)
        full = payload_bytes(download_shapes(create("fedavg"), architecture, Tier(1.0)))
        sent = []
        for ranks in STACKED.values():
            layers = lora(1).dense_reasons(architecture.skeleton())
            stacked = {layer: sum(ranks) for layer, why in layers.items() if not why}
            flora = create("flora", {"stacked": stacked})
            sent.append(payload_bytes(download_shapes(flora, architecture, Tier(1.0))))
        own = payload_bytes(upload_shapes(create("flora", {"rank": 4}), architecture, Tier(1.0)))
        lines.append((name, human_bytes(own), *(f"{human_bytes(size)} ({100 * size / full:.3g} %)" for size in sent)))
    return table(("network", "up, rank 4", *(f"down after {clients}" for clients in STACKED)), lines)


def main() -> None:
    """Print the tables, write them into their page or compare them with it."""
    options = arguments(argparse.ArgumentParser(description=__doc__.partition("\n")[0]))
    with one_thread():
        publish("adapters", f"{costs()}\n\n{stacks()}", options)


if __name__ == "__main__":
    main()
