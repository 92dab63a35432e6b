"""A tier's training half of a bundle: graphs, first tensors, and a reference that a device can check its own steps against."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
from torch import Tensor, nn

from edgefl.bundle.manifest import Objective, TrainEntry
from edgefl.client.onnx_loop import beta_of
from edgefl.client.parts import shared_parameters
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE
from edgefl.onnxgrad.stepper import Stepper, peak_bytes
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
    """Return the graphs with which a device trains a tier and infers with the result.

    Args:
        run: the run that the bundle is made of.
        tier: the tier.
        network: as clients train it.
        control: the server's control variates, which are stored beside the first tensors.

    Raises:
        EdgeflError: its training cannot be written as a graph (names operation or operator).
    """
    method, training, objective = run.method, run.clients.task.training, run.clients.task.objective
    graphs, tensors = run.graphs_of(method, tier), named_tensors(network)
    started = copy.deepcopy(network)  # with the tensors that an objective needs in a device's first round
    objective.attach(started, shared_parameters(method, network), {}, control)
    own, roles = named_tensors(started), graphs.steps.roles
    feed = {value: np.ascontiguousarray(own[name].detach().numpy()) for name, value in roles.tensors.items()}
    feed |= {name: np.ones(run.data.classes, bool) for name in roles.shared}
    x, y = _samples(run, tier, training.batch_size)
    reference = {"x": x[:REFERENCE_SAMPLES], "y": y[:REFERENCE_SAMPLES]}
    beta = beta_of(training)
    stepper = Stepper(graphs.steps, feed, training.lr, beta)
    losses = [stepper.step(reference["x"], reference["y"]) for _ in range(REFERENCE_STEPS)]
    scalars = {LEARNING_RATE: np.array(0.0, np.float32), BETA: np.array(0.0, np.float32), "x": x, "y": y}
    kinds = (roles.trained, roles.statistics, roles.frozen)
    trained, statistics, frozen = ({n: tuple(tensors[n].shape) for n in names if n in tensors} for names in kinds)
    stored = {name: feed[roles.tensors[name]] for name in (*trained, *statistics, *frozen)}
    learned = trained | statistics
    upload = method.upload_shapes(run.architecture, tier)
    no_update = _no_update(run, upload, learned)
    paths = {f"{tier.label}/{_graph_name(i, len(graphs.steps.steps))}": graph for i, graph in enumerate(graphs.steps.steps)}
    contents = {
        **paths,
        f"{tier.label}/predict.onnx": graphs.predict,
        f"{tier.label}/parameters.safetensors": safetensors.numpy.save(
            {**stored, **{name: tensor.numpy() for name, tensor in control.items()}}
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
        trained=trained,
        statistics=statistics,
        frozen=frozen,
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
    """Return ``count`` synthetic samples and labels: a bundle contains no user's data."""
    rng, data = generator(run.config.seed, "training reference", tier.label), run.data
    shape = (count, *data.input_shape)
    x = rng.integers(data.vocabulary, size=shape) if data.vocabulary else rng.standard_normal(shape).astype(np.float32)
    return x, rng.integers(data.classes, size=count)


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
