"""How long the tiers of a method take to infer in onnxruntime, beside their share of the full network's MACs, in every form.

Usage: python tools/inference_shares.py [--method NAME] [--model NAME] [--input CxHxW] [--tiers R,…] [--runs N] [--int8]
                                          [--batch N] [--json FILE]

A sub-model with the share s of the MACs is held to s + 0.10 of the full network's time, in the form ``auto``. Figures are medians of
``--runs`` inferences of one sample (``--batch``: more) on one thread; the graphs take turns, so that a machine that slows down slows
all of them. Weights are the first ones: time does not depend on them. ``--int8`` adds the 8-bit variant of the form ``auto``, as bundles
have it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

from edgefl.bundle.form_choice import choose, layer_forms
from edgefl.bundle.forms import FORMS, GRAPH, form_files, formed
from edgefl.bundle.quantize import int8_kind, quantized
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.macs import count_macs
from edgefl.records import Tier

SLACK = 0.10
WARM_UP = 5


def session_of(graph: bytes) -> ort.InferenceSession:
    """Return the graph, ready to run on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def drawn(architecture: Architecture, count: int) -> np.ndarray:
    """Return samples for time and ranges only."""
    shape = architecture.samples(count).shape
    return np.zeros(shape, np.int64) if architecture.vocabulary else np.random.default_rng(0).random(shape, np.float32)


def graphs_of(method: str, architecture: Architecture, ratio: float, int8: bool = False) -> dict[str, dict[str, Any]]:
    """Return form → graph, and how many of its factorized layers are multiplied out in it."""
    network = create(method).network(architecture, Tier(ratio)).eval()
    layers = layer_forms(network, architecture.samples(1))
    chosen = choose(layers).composed
    found: dict[str, dict[str, Any]] = {}
    for form in FORMS:
        made = formed(network, form, chosen)
        graph = form_files(made.module, InputSpec(architecture.input_shape, architecture.samples(1).dtype))[GRAPH]
        found[form] = {"graph": graph, "composed": len(made.composed_layers), "layers": len(layers), "counted": graph}
    if int8:
        graph = found["auto"]["graph"]
        found["int8"] = {**found["auto"], "graph": quantized(graph, int8_kind(graph), drawn(architecture, 32))}
    return found


def measure(graphs: dict[tuple[float, str], bytes], x: np.ndarray, runs: int) -> dict[tuple[float, str], float]:
    """Return the median seconds of an inference of ``x`` by every graph."""
    sessions = {key: session_of(graph) for key, graph in graphs.items()}
    seconds: dict[tuple[float, str], list[float]] = {key: [] for key in sessions}
    for number in range(WARM_UP + runs):
        for key, session in sessions.items():
            started = time.perf_counter()
            session.run(None, {"x": x})
            if number >= WARM_UP:
                seconds[key].append(time.perf_counter() - started)
    return {key: median(of) for key, of in seconds.items()}


def rows_of(
    method: str, architecture: Architecture, tiers: list[float], runs: int, int8: bool = False, count: int = 1
) -> list[dict[str, Any]]:
    """Return a row per tier and form; shares are of the dense network at full width."""
    made: dict[tuple[float, str], dict[str, Any]] = {(1.0, "dense"): graphs_of("fedavg", architecture, 1.0)["factored"]}
    made |= {(ratio, form): facts for ratio in tiers for form, facts in graphs_of(method, architecture, ratio, int8).items()}
    seconds = measure({key: facts["graph"] for key, facts in made.items()}, drawn(architecture, count), runs)
    macs = {key: count_macs(onnx.load_model_from_string(facts["counted"]), 1).total for key, facts in made.items()}
    dense = 1.0, "dense"
    return [
        {
            "tier": ratio, "form": form, "composed": made[ratio, form]["composed"], "layers": made[ratio, form]["layers"],
            "mac_share": macs[ratio, form] / macs[dense], "seconds": seconds[ratio, form],
            "time_share": seconds[ratio, form] / seconds[dense], "file_bytes": len(made[ratio, form]["graph"]),
        }
        for ratio, form in made
    ]  # fmt: skip


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table; ``auto`` is held to the smallest share of MACs that a form of its tier has."""
    lines = ["| tier | form | composed layers | MAC share | ms | time share | MB | target |", "|" + " --- |" * 8]
    for row in rows:
        least = min(other["mac_share"] for other in rows if other["tier"] == row["tier"])
        target = f"≤ {least + SLACK:.2f}: {'met' if row['time_share'] <= least + SLACK else '**missed**'}"
        lines.append(
            f"| {row['tier']:g} | {row['form']} | {row['composed']} of {row['layers']} | {row['mac_share']:.2f} | "
            f"{row['seconds'] * 1e3:.2f} | {row['time_share']:.2f} | {row['file_bytes'] / 1e6:.2f} | "
            f"{target if row['form'] == 'auto' else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedhm", help="[fedhm]")
    parser.add_argument("--model", default="resnet18", help="[resnet18]")
    parser.add_argument("--input", default="3x32x32", help="a sample's shape [3x32x32]")
    parser.add_argument("--classes", type=int, default=10, help="[10]")
    parser.add_argument("--tiers", default="1,0.5,0.25,0.125", help="[1,0.5,0.25,0.125]")
    parser.add_argument("--runs", type=int, default=100, help="inferences of each graph [100]")
    parser.add_argument("--int8", action="store_true", help="also the 8-bit variant")
    parser.add_argument("--batch", type=int, default=1, help="samples of an inference [1]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the rows there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    architecture = Architecture(options.model, tuple(map(int, options.input.split("x"))), options.classes)
    tiers = [float(ratio) for ratio in options.tiers.split(",")]
    rows = rows_of(options.method, architecture, tiers, options.runs, options.int8, options.batch)
    print(f"onnxruntime {ort.__version__}, one thread, samples: {options.batch}, median of {options.runs}.\n")
    print(markdown(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
