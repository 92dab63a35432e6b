"""Small networks to plan, their needs from a trace of their own, and the energy that their ranks keep."""

import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from edgefl.fleet.clock import round_timing
from edgefl.fleet.load import load_device
from edgefl.methods.create import create
from edgefl.methods.ranks import rank_candidates, ranked
from edgefl.planning.network import architecture_of
from edgefl.planning.practice import Practice
from edgefl.planning.profile import training_for
from edgefl.records import Cost
from edgefl.wire.payload import payload_bytes

SAMPLES, BATCH = 50, 4
DEVICE = "raspberry-pi-4"
NEEDS = ("memory_bytes", "macs_forward", "macs_train_step", "upload_bytes", "download_bytes", "deadline_s", "energy_j")


def convolutional(*channels: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for one, more in itertools.pairwise((1, *channels)):
        layers += [nn.Conv2d(one, more, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 3)), (1, 6, 6)


def linear(*widths: int) -> tuple[nn.Module, tuple[int, ...]]:
    layers: list[nn.Module] = []
    for one, more in itertools.pairwise(widths):
        layers += [nn.Linear(one, more), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 3)), (widths[0],)


def filled(network: nn.Module, seed: int, kind: str = "random") -> nn.Module:
    rng = np.random.default_rng(seed)
    candidates: dict[str, Any] = dict(rank_candidates(network))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape))).float())
        for number, layer in enumerate(candidates.values()):
            if kind == "zero":
                layer.weight.zero_()
            elif kind == "low rank":
                flat = layer.weight.flatten(1)
                layer.weight.copy_((flat[:, :1] @ flat[:1]).reshape(layer.weight.shape))
            elif kind == "dominant" and number == 0:
                layer.weight.mul_(1000)
    return network


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Two or three small layers in front of a classifier, as a module, with weights of one kind."""
    make = draw(st.sampled_from((convolutional, linear)))
    widths = draw(st.lists(st.integers(2, 12), min_size=2, max_size=2 if make is convolutional else 3))
    network, shape = make(*widths)
    return filled(network, draw(st.integers(0, 99)), draw(st.sampled_from(["random", "low rank", "zero", "dominant"]))), shape


def needs_of(cost: Cost) -> dict[str, Any]:
    steps = -(-SAMPLES // BATCH)
    timing = round_timing(load_device(DEVICE), cost, SAMPLES, steps, steps)
    return {
        "memory_bytes": cost.training_memory_bytes,
        "macs_forward": cost.macs_forward,
        "macs_train_step": cost.macs_train_step,
        "upload_bytes": cost.upload_bytes,
        "download_bytes": cost.download_bytes,
        "deadline_s": timing.total_s,
        "energy_j": timing.total_j,
    }


def traced(network: nn.Module, shape: tuple[int, ...], ranks: dict[str, int], codec: str = "fp32") -> Cost:
    """The cost of a network with these ranks, from a trace of its own."""
    architecture = architecture_of(network, shape)
    sizes = {name: tuple(t.shape) for name, t in ranked(architecture.build(), dict(ranks)).state_dict().items()}
    payloads = (payload_bytes(sizes), payload_bytes(sizes, codec))
    build = lambda: ranked(architecture.build(), dict(ranks))  # noqa: E731
    return Practice(create("fedhm"), architecture, training_for(BATCH, None, "momentum")).cost(build, payloads)


def kept(network: nn.Module, ranks: dict[str, int]) -> tuple[float, float]:
    """Energy that ranks keep and all of it, from NumPy's own singular values of the unrolled weights."""
    some = whole = 0.0
    layers: dict[str, Any] = dict(rank_candidates(network))
    for name, layer in layers.items():
        w = layer.weight.detach().double().numpy()
        if w.ndim == 4:
            n, m, k1, k2 = w.shape
            w = w.transpose(1, 2, 0, 3).reshape(m * k1, n * k2)
        squares = np.linalg.svd(w, compute_uv=False) ** 2
        whole += squares.sum()
        some += squares[: ranks.get(name, len(squares))].sum()
    return some, whole


@cache
def every_plan(make: Callable[..., Any], *widths: int) -> tuple[nn.Module, tuple[int, ...], list[tuple[float, dict[str, float]]]]:
    """A network, its input, and the share of the energy and the needs of each plan of it, from a trace of its own."""
    network, shape = make(*widths)
    filled(network, 5)
    whole = kept(network, {})[1]
    options: list[list[int | None]] = []
    layers: dict[str, Any] = dict(rank_candidates(network))
    for layer in layers.values():
        out, into, *sides = layer.weight.shape
        rows, columns = into * (sides[0] if sides else 1), out * (sides[1] if sides else 1)
        options.append([*range(1, -(-rows * columns // (rows + columns))), None])
    plans = [{layer: rank for layer, rank in zip(layers, picks, strict=True) if rank} for picks in itertools.product(*options)]
    assert len(plans) >= 9
    return network, shape, [(kept(network, one)[0] / whole, needs_of(traced(network, shape, one))) for one in plans]
