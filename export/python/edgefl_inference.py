"""Inference of a bundle's tier with onnxruntime."""

from __future__ import annotations

import numpy as np
from edgefl_bundle import Bundle, ClientError, InputError, State, Tensors
from edgefl_data import Samples, by_input
from edgefl_limits import watched
from edgefl_steps import fitting, options, run
from edgefl_training import by_role, current_tensors


def infer(bundle: Bundle, label: str, x: Samples, state: State | None = None, variant: str = "", threads: int = 1) -> np.ndarray:
    """Return probabilities (n, classes) float32 for samples ``x`` (n, …), by the tier's graph, a variant, or the weights of ``state``.

    Of a regression they are its outputs. Samples of several inputs are name → (n, …). InputError: samples are wrong.
    """
    entry = bundle.tier(label)
    path, weights, variants = entry["forward"], Tensors(), {one["kind"]: one["graph"] for one in entry.get("variants", ())}
    if variant:
        if variant not in variants:
            raise InputError(f"--variant: got {variant!r}, tier {label} has {', '.join(variants) or 'none'}")
        path = variants[variant]
    if state is not None:
        path = bundle.training(label)["predict"]
        weights = by_role(bundle.training(label), current_tensors(bundle, label, bundle.parameters(label), state))
    session = bundle.session(path, options(threads))
    batch, weights = entry["batch_size"], fitting(session, weights)
    samples = by_input(bundle.manifest, x)
    if not (given := fitting(session, samples)):
        raise InputError(f"{path}: the graph reads none of {', '.join(samples)}")
    found = []
    for start in range(0, max(map(len, given.values())), batch):
        part = {name: value[start : start + batch] for name, value in given.items()}
        with watched(bundle.timeout_s, "a batch"):
            found.append(run(session, {**weights, **part})[0])
    logits = np.concatenate(found)
    if not (finite := np.isfinite(logits)).all():
        spoiled = "the weights are spoiled, or the samples are no samples of this network"
        raise ClientError(f"{path}: the graph computes {logits[~finite].flat[0]}, expected finite outputs: {spoiled}")
    if "target_shape" in bundle.manifest:
        return logits
    powers = np.exp(logits.astype(np.float32) - logits.max(1, keepdims=True))
    return np.asarray(powers / powers.sum(1, keepdims=True))
