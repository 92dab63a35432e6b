"""Set edgefl's predicted memory of inference and of a training step beside what onnxruntime and the training loop measure.

A page of docs/ holds the table between ``<!-- memory:begin -->`` and ``<!-- memory:end -->``.

Usage: python tools/compare_memory.py [--check | --write] [--page FILE]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import numpy as np
import torch
from counters.markdown import arguments, percent, publish, table
from torch import Tensor, nn

from edgefl.bundle.forms import GRAPH, form_files
from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.onnxgrad.predict import predict_capped
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.registry import models
from edgefl.rng import generator

SHAPES = {"cnn-digits": (1, 8, 8), "mlp": (1, 8, 8), "cnn-fashion": (1, 28, 28)}
METHODS = ("fedavg", "heterofl", "fedhm")


@dataclass(frozen=True)
class Memory:
    """Bytes of one tier: predicted and measured, of an inference's activations and of all that a training step holds."""

    inference: tuple[int, int]
    training: tuple[int, int]


def memory_of(model: str, method_name: str) -> list[Memory]:
    """Predict and measure every default tier of a method, on one batch."""
    method, batch_size = create(method_name), 8 if model.startswith("resnet") else 32
    architecture = Architecture(model, SHAPES.get(model, (3, 32, 32)), 10)
    training = Training(epochs=1, batch_size=batch_size, lr=0.05, momentum=0.9, weight_decay=1e-4)
    tiers = tuple(Tier(ratio) for ratio in method.default_tiers)
    state = method.init(architecture, tiers, generator(0, "init"))
    rng = generator(0, "memory")
    x = rng.standard_normal((batch_size, *architecture.input_shape)).astype(np.float32)
    y = torch.from_numpy(rng.integers(10, size=batch_size))
    found = []
    for tier in tiers:
        cost = tier_cost(method, architecture, tier, training)
        graph = form_files(method.deploy(state, tier), architecture.input_shape, fold=True)[GRAPH]
        ran = predict_capped(graph, x, batch_size=batch_size, memory_bytes=10**11).peak_activation_bytes
        module = method.network(architecture, tier)
        optimizer = optimizer_of(method, module, training)
        loss = partial(_loss, method)
        held = train(
            LocalTraining(module, loss, torch.from_numpy(x), y, torch.ones(10) > 0, training, rng), optimizer
        ).memory_bytes
        # The caller's array of inputs is not onnxruntime's.
        inference = cost.peak_activation_bytes_inference - x.nbytes
        found.append(Memory((inference, ran), (cost.training_memory_bytes, held)))
    return found


def _loss(method: Method, module: nn.Module, batch: Batch) -> Tensor:
    return method.local_loss(module, batch)


def memory_markdown() -> str:
    """Return the table of predicted and measured memory: a line per network and method, its largest tier and the worst of all."""
    rows = []
    for model in models.names():
        for method in METHODS:
            tiers = memory_of(model, method)
            row = [model, method]
            for pairs in ([tier.inference for tier in tiers], [tier.training for tier in tiers]):
                worst = max((predicted / measured - 1 for predicted, measured in pairs), key=abs)
                row += [*(f"{n / 1e6:,.2f}" for n in pairs[0]), percent(worst)]
            rows.append(row)
    part = ["predicted", "measured", "worst tier"]
    titles = ["network", "method", *(f"inference: {part[0]}", *part[1:]), *(f"training: {part[0]}", *part[1:])]
    return "\n\n".join(
        [
            f"MB of the largest tier, and the largest difference over a method's default tiers; batches of 32, ResNets 8; "
            f"onnxruntime {version('onnxruntime')}, torch {version('torch').partition('+')[0]}. Inference: activations besides weights and "
            "input, as onnxruntime reports them of the exported tier. Training: parameters, gradients, optimizer state and activations "
            "at the peak of a real step, as the local loop meters it.",
            table(titles, rows),
        ]
    )


def main() -> None:
    """Print the table, write it into its page, or compare its page with it."""
    options = arguments(argparse.ArgumentParser(description="Predicted and measured memory."))
    torch.set_num_threads(1)
    publish("memory", memory_markdown(), options)


if __name__ == "__main__":
    main()
