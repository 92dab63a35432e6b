"""A tier's training half of a bundle: graphs, first tensors, and a reference that a device can check its own steps against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from torch import Tensor, nn

from edgefl.bundle.manifest import Objective, TrainEntry
from edgefl.client.objective import CONTROL
from edgefl.client.onnx_loop import beta_of
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.stepper import StepGraphs, Stepper, peak_bytes
from edgefl.records import Tier
from edgefl.rng import generator

if TYPE_CHECKING:
    from edgefl.run.run import Run

REFERENCE_STEPS = 3
REFERENCE_SAMPLES = 8
REMEMBERED_ON_DEVICES = ("dyn", "scaffold")
"""Objectives whose memory the clients in export/ update."""


@dataclass(frozen=True)
class Trainable:
    """The manifest's entry and the files that it names."""

    entry: TrainEntry
    contents: Mapping[str, bytes]


def trainable(run: Run, tier: Tier, network: nn.Module, control: Mapping[str, Tensor]) -> Trainable:
    """Return the graphs with which a device trains ``network``, the tier's as clients train it, and infers with what came out.

    ``control`` are the server's control variates, stored beside the first tensors.

    Raises:
        EdgeflError: its training cannot be written as a graph (names operation or operator).
    """
    method, training, objective = run.method, run.clients.task.training, run.clients.task.objective
    graphs = run.graphs_of(method, tier)
    tensors = named_tensors(network)
    roles = {name: role for name, role in graphs.steps.roles.items() if name in tensors}  # an objective's anchors are none of its
    arrays = {role: np.ascontiguousarray(tensors[name].detach().numpy()) for name, role in roles.items()}
    x, y = _samples(run, tier, training.batch_size)
    reference = {"x": x[:REFERENCE_SAMPLES], "y": y[:REFERENCE_SAMPLES]}
    feed = _with_anchors(graphs.steps, arrays, control, run)
    beta = beta_of(training)
    stepper = Stepper(graphs.steps, feed, training.lr, beta)
    losses = [stepper.step(reference["x"], reference["y"]) for _ in range(REFERENCE_STEPS)]
    scalars = {"lr": np.array(0.0, np.float32), "beta": np.array(0.0, np.float32), "x": x, "y": y}
    by_role = {kind: {name: tuple(tensors[name].shape) for name, role in roles.items() if role[0] == kind} for kind in "psf"}
    learned = by_role["p"] | by_role["s"]
    upload = method.upload_shapes(run.architecture, tier)
    no_update = _no_update(run, upload, learned)
    paths = {f"{tier.label}/{_graph_name(i, len(graphs.steps.steps))}": graph for i, graph in enumerate(graphs.steps.steps)}
    contents = {
        **paths,
        f"{tier.label}/predict.onnx": graphs.predict,
        f"{tier.label}/parameters.safetensors": safetensors.numpy.save(
            {**{role[2:]: array for role, array in arrays.items()}, **{name: tensor.numpy() for name, tensor in control.items()}}
        ),
        f"{tier.label}/train_reference.safetensors": safetensors.numpy.save(
            {**reference, "losses": np.array(losses, np.float32)}
        ),
    }
    entry = TrainEntry(
        graphs=tuple(paths),
        predict=f"{tier.label}/predict.onnx",
        parameters=f"{tier.label}/parameters.safetensors",
        reference=f"{tier.label}/train_reference.safetensors",
        optimizer=training.optimizer,
        lr=training.lr,
        momentum=beta,
        batch_size=training.batch_size,
        epochs=training.epochs,
        trained=by_role["p"],
        statistics=by_role["s"],
        frozen=by_role["f"],
        personal=tuple(sorted(method.personal(network) & learned.keys())),
        upload={} if no_update else upload,
        objective=Objective(name=objective.name, strength=objective.strength if objective.adds else 0.0),
        present=any("present" in names for names in stepper.inputs),
        no_update=no_update,
        predicted_memory_bytes=run.plan.costs[tier].training_memory_bytes,
        onnx_peak_bytes=peak_bytes(graphs.steps.steps[-1], {**feed, **scalars}) + x.nbytes,
    )
    return Trainable(entry, contents)


def _graph_name(index: int, count: int) -> str:
    return "train.onnx" if count == 1 else f"train{index}.onnx"


def _samples(run: Run, tier: Tier, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return ``count`` synthetic samples and labels: no data of anybody leave with a bundle."""
    rng, data = generator(run.config.seed, "training reference", tier.label), run.data
    shape = (count, *data.input_shape)
    x = rng.integers(data.vocabulary, size=shape) if data.vocabulary else rng.standard_normal(shape).astype(np.float32)
    return x, rng.integers(data.classes, size=count)


def _with_anchors(
    graphs: StepGraphs, arrays: Mapping[str, np.ndarray], control: Mapping[str, Tensor], run: Run
) -> dict[str, np.ndarray]:
    """Return ``arrays`` with what an objective holds on to in a device's first round: the weights, and the server's control or zeros."""
    feed = {**arrays, "present": np.ones(run.data.classes, bool)}
    for role in graphs.roles.values():
        if role not in feed:
            kind, name = role.removeprefix("f.").split(".", 1)
            start = arrays[f"p.{name}"]
            shift = control[CONTROL + name].numpy() if CONTROL + name in control else np.zeros_like(start)
            feed[role] = start if kind == "start" else shift
    return feed


def _no_update(run: Run, upload: Mapping[str, object], learned: Mapping[str, object]) -> str:
    """Return why a device's training cannot go into a next round of the server, or nothing."""
    method = run.method
    if not upload:
        return f"with {method.title} nothing is sent"
    objective = run.clients.task.objective
    if objective.remembers and objective.name not in REMEMBERED_ON_DEVICES:
        return f"a device does not know what a client stores under the objective {objective.name}"
    if method.per_client and method.personalised:
        return f"the server of {method.title} keeps something of every client, which a device outside of the run has no part in"
    if missing := sorted(upload.keys() - learned.keys()):
        return f"{method.title} sends {missing[0]}, which training does not make"
    return ""
