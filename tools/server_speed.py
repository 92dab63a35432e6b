"""How fast payloads are written and read, updates are summed, and weights are composed, against plain copies, NumPy and dense networks.

Usage: python tools/server_speed.py [--updates N] [--turns N] [--json FILE]

One thread; processor time, the system's part included. What is compared takes turns, so that a machine that slows down slows all of it;
figures are medians over turns, ratios medians of the ratios of each turn.

- wire: GB/s of a payload that is encoded and decoded, ResNet-18's and one of six tensors.
- aggregate: the time of aggregating updates from their payloads, over that of NumPy, which reads each tensor's bytes and adds it to a
  float64 sum by ``sum += weight * array``, with no check; of FedHM's factors it first multiplies the full weights. ``float32`` is NumPy
  with float32 sums, which is less exact and no bar.
- step: a training step, as clients take it, over that of the dense network; "of MACs" is that divided by the ratio of their MACs.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from edgefl.client.fast.capture import Inputs, capture, gradient_of
from edgefl.client.fast.layout import in_layout, lay_out, layout_of
from edgefl.client.isolation.limits import keep_freed_memory
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.parts import first_personal
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.models.base import Architecture, named_tensors
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Submodel, Tier
from edgefl.records import Update as Arrived
from edgefl.wire.payload import decode, encode

Shapes = Mapping[str, tuple[int, ...]]
Cases = dict[str, Callable[[], object]]
GB_S, AGGREGATE, COMPOSED, PER_MAC = 1.0, 1.3, 1.15, 1.15
RESNET, VGG = Architecture("resnet18", (3, 32, 32), 10), Architecture("vgg16", (3, 32, 32), 10)
CNN = Architecture("cnn-5x5", (1, 28, 28), 10)


class Sent(NamedTuple):
    """What the clients of a tier send: the sub-model that they had, the shapes, and two payloads that take turns."""

    submodel: Submodel
    shapes: Shapes
    payloads: tuple[bytes, bytes]


def seconds(cases: Cases, turns: int) -> dict[str, list[float]]:
    """Return the processor seconds of each case in every turn but the first, which warms up."""
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            started = time.process_time()
            case()
            if turn:
                taken[name].append(time.process_time() - started)
    return taken


def row(case: str, figure: float, unit: str, bar: float | None, at_least: bool = False) -> dict[str, Any]:
    """Return a row; ``bar`` is None for a figure that is held to nothing."""
    met = None if bar is None else figure >= bar if at_least else figure <= bar
    return {"case": case, "figure": round(figure, 4), "unit": unit, "bar": bar, "at_least": at_least, "met": met}


def wire_rows(turns: int) -> Iterator[dict[str, Any]]:
    """Yield GB/s of writing and reading payloads."""
    networks = {
        "resnet18": {name: t.detach() for name, t in RESNET.build().state_dict().items()},
        "20 K in 6 tensors": {f"w{i}": torch.randn(57, 57) for i in range(6)},
    }
    for name, tensors in networks.items():
        shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
        payload = encode(tensors)
        repeats = max(1, 2_000_000 // len(payload))

        def both(tensors: Any = tensors, shapes: Any = shapes, repeats: int = repeats) -> None:
            for _ in range(repeats):
                decode(encode(tensors), shapes, "")

        for taken in seconds({"": both}, turns).values():
            yield row(f"wire {name}", repeats * len(payload) / 1e9 / median(taken), "GB/s", GB_S, at_least=True)


def aggregate_rows(name: str, ratios: tuple[float, ...], updates: int, turns: int) -> Iterator[dict[str, Any]]:
    """Yield the time of aggregating over that of NumPy; clients of every tier take turns."""
    rng = np.random.default_rng(0)
    tiers = tuple(Tier(ratio) for ratio in ratios)
    method = create(name, tiers=ratios)
    state = method.init(RESNET, tiers, rng)
    sent = []
    for tier in tiers:
        shapes = upload_shapes(method, RESNET, tier)
        drawn = [
            {key: torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for key, shape in shapes.items()} for _ in "ab"
        ]
        sent.append(Sent(method.submodel(state, tier, rng), shapes, (encode(drawn[0]), encode(drawn[1]))))

    def arrivals() -> Iterator[tuple[int, Sent, bytes]]:
        for number in range(updates):
            of = sent[number % len(sent)]
            yield number, of, of.payloads[number // len(sent) % 2]

    def ours() -> None:
        came = (
            Arrived(number, of.submodel.tier, decode(payload, of.shapes, "", copy=False), of.submodel.places, 1 + number)
            for number, of, payload in arrivals()
        )
        method.aggregate(state, came)

    def numpy(kind: Any) -> None:
        sums = {key: np.zeros(tensor.shape, kind) for key, tensor in state.tensors.items()}
        for number, _, payload in arrivals():
            arrays, weight = arrays_of(payload), 1.0 + number
            for key, total in sums.items():
                array = arrays[key] if key in arrays else multiplied(arrays, key, total.shape)
                total[tuple(slice(0, size) for size in array.shape)] += weight * array

    taken = seconds({"ours": ours, "float64": lambda: numpy(np.float64), "float32": lambda: numpy(np.float32)}, turns)
    case = f"aggregate {updates} updates of {name}"
    for other, bar in (("float64", AGGREGATE), ("float32", None)):
        ratio = median(mine / theirs for mine, theirs in zip(taken["ours"], taken[other], strict=True))
        yield row(f"{case}, of NumPy in {other}", ratio, "ratio", bar)
    yield row(f"{case}, each", 1e3 * median(taken["ours"]) / updates, "ms", None)


def arrays_of(payload: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of a payload, views of it, unchecked."""
    begin = 8 + int.from_bytes(payload[:8], "little")
    entries = json.loads(payload[8:begin])
    return {
        name: np.frombuffer(payload, np.float32, math.prod(e["shape"]), begin + e["data_offsets"][0]).reshape(e["shape"])
        for name, e in entries.items()
    }


def multiplied(arrays: Mapping[str, np.ndarray[Any, Any]], name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the full weight of FedHM's two factors."""
    layer = name.removesuffix(".weight")
    u, v = arrays[f"{layer}.u.weight"], arrays[f"{layer}.v.weight"]
    n, m, k1, k2 = shape
    product = u.reshape(len(u), -1).T @ v.transpose(1, 0, 2, 3).reshape(len(u), -1)
    found: np.ndarray[Any, Any] = product.reshape(m, k1, n, k2).transpose(2, 0, 1, 3)
    return found


def step_rows(architecture: Architecture, batch: int, methods: Mapping[str, float], turns: int) -> Iterator[dict[str, Any]]:
    """Yield a step of each method, at one ratio, over a step of the dense network."""
    ratios = {"fedavg": 1.0, **methods}
    training = Training(1, batch, 0.001, 0.9, 0.0)
    macs = {
        name: tier_cost(create(name, tiers=(ratio,)), architecture, Tier(ratio), training).macs_train_step
        for name, ratio in ratios.items()
    }
    taken = seconds({name: step_of(name, architecture, ratio, batch) for name, ratio in ratios.items()}, turns)
    for name in methods:
        ratio = median(own / dense for own, dense in zip(taken[name], taken["fedavg"], strict=True))
        case = f"step of {name} at {ratios[name]:g}, {architecture.model}, batch {batch}"
        if architecture is VGG:
            yield row(f"{case}, of dense", ratio, "ratio", COMPOSED)
        else:
            yield row(f"{case}, of MACs", ratio * macs["fedavg"] / macs[name], "ratio", PER_MAC)
            yield row(f"{case}, of dense", ratio, "ratio", None)


def step_of(name: str, architecture: Architecture, ratio: float, samples: int) -> Callable[[], None]:
    """Return a training step of a method on random samples, as clients take it."""
    method, tier, rng = create(name, tiers=(ratio,)), Tier(ratio), np.random.default_rng(0)
    state = method.init(architecture, (tier,), rng)
    received = method.submodel(state, tier, rng).tensors
    module = method.network(architecture, tier).train()
    module.load_state_dict({**received, **first_personal(method, architecture, tier, 0)})
    x = torch.from_numpy(rng.normal(size=(samples, *architecture.input_shape)).astype(np.float32))
    y = torch.from_numpy(rng.integers(architecture.classes, size=samples))
    batch = Batch(x, y, torch.ones(architecture.classes, dtype=torch.bool))
    layout, loss = layout_of(module, x[:1]), loss_of(method, PLAIN)
    lay_out(module, layout)
    trained = {key: parameter for key, parameter in module.named_parameters() if parameter.requires_grad}
    inputs = Inputs(named_tensors(module), batch)
    gradient = capture(gradient_of(module, in_layout(loss, layout), list(trained)), inputs)
    update = FusedOptimizer(Training(1, samples, 0.001, 0.9, 0.0), trained, ())

    def step() -> None:
        update.apply(dict(zip(trained, gradient(inputs)[1:], strict=True)))

    return step


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table."""
    lines = ["| case | figure | bar |", "|" + " --- |" * 3]
    for r in rows:
        bar = "" if r["bar"] is None else f"{'≥' if r['at_least'] else '≤'} {r['bar']:g}: {'met' if r['met'] else '**missed**'}"
        lines.append(f"| {r['case']} | {r['figure']:.3g} {r['unit']} | {bar} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=300, help="updates that are aggregated [300]")
    parser.add_argument(
        "--turns", type=int, default=3, help="turns of which the medians are taken; small networks take ten times as many [3]"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as the command simulate and its workers do
    rows = list(wire_rows(10 * options.turns))
    for name, ratios in (("fedavg", (1.0,)), ("heterofl", (1.0, 0.5, 0.25)), ("fedhm", (1.0, 0.5, 0.25))):
        rows += aggregate_rows(name, ratios, options.updates, options.turns)
    rows += step_rows(VGG, 64, {"fedpara": 0.1}, options.turns)
    rows += step_rows(CNN, 32, {"fedpara": 0.4, "flanc": 1.0, "factorized-fl": 1.0}, 10 * options.turns)
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
