"""The part of a tier in a bundle: graphs that infer and train, the tensors that a device starts from, and references."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from torch import Tensor, nn

from edgefl.bundle.manifest import Manifest, TierEntry, TrainEntry
from edgefl.bundle.manifest import Objective as ObjectiveEntry
from edgefl.bundle.manifest_records import OtherFormat
from edgefl.bundle.other_formats import other_formats
from edgefl.bundle.tier_check import AFTER, STEPS, kept_of
from edgefl.bundle.tier_graphs import TierGraphs, same_network, with_weights
from edgefl.bundle.write import build_tier, forward
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import shared_parameters
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.methods.capabilities import label_rows
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import personal_names
from edgefl.models.base import Architecture, named_tensors
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE
from edgefl.onnxgrad.stepper import Stepper, peak_bytes
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded
from edgefl.util.fields import Fields, named
from edgefl.util.shelf import Facts
from edgefl.version import __version__

REFERENCE_SAMPLES = 8
REMEMBERED_ON_DEVICES = ("dyn", "scaffold")
"""Objectives with memory that the clients in ``export/`` support."""


@dataclass(frozen=True)
class Trains:
    """How the devices of a bundle train.

    Attributes:
        beta: the momentum, or Adam's β₁.
        alone: why no server aggregates their updates; empty if one may.
    """

    method: Method
    architecture: Architecture
    training: Training
    beta: float
    objective: Objective = PLAIN
    alone: str = ""

    def no_update(self, upload: Collection[str], on_device: Collection[str], changing: Collection[str]) -> str:
        """Return why a device's training cannot go into a next round of the server, or nothing.

        Args:
            upload: the names of the tensors of an update.
            on_device: those of a device.
            changing: those of them that training in torch changes, and the graphs do not.
        """
        method, objective = self.method, self.objective
        if self.alone:
            return self.alone
        if not upload:
            return f"with {method.title} nothing is sent"
        if objective.remembers and objective.name not in REMEMBERED_ON_DEVICES:
            return f"a device does not know what a client stores under the objective {objective.name}"
        if method.per_client and method.personalised:
            return f"the server of {method.title} stores data of every client, and none of a device outside the run"
        for name in sorted(upload):
            if name not in on_device:
                return f"{method.title} sends {name}, which a device does not have"
            if name in changing:
                return f"{method.title} sends {name}, which the network changes while it trains, and its graphs do not"
        return ""


@dataclass(frozen=True)
class Trainee:
    """The network that a device of one tier trains, with its graphs and samples.

    Attributes:
        network: with the weights to start from.
        samples: a synthetic batch x (n, …), of several inputs by name, with labels (n,) or targets: a bundle contains no user's data.
        control: the server's control variates for the tier, by name.
        memory_bytes: predicted peak of a step; None: not known.
    """

    tier: Tier
    network: nn.Module
    graphs: TierGraphs
    samples: tuple[Fields[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
    control: Mapping[str, Tensor] = field(default_factory=dict)
    memory_bytes: int | None = None


def train_part(trains: Trains, trainee: Trainee) -> tuple[TrainEntry, dict[str, bytes]]:
    """Return the training part of a tier: its entry in the manifest, and path → content of the files that the entry names."""
    method, training, objective = trains.method, trains.training, trains.objective
    network, graphs, label, tensors = trainee.network, trainee.graphs, trainee.tier.label, named_tensors(trainee.network)
    started = copy.deepcopy(network)  # with the tensors that an objective needs in a device's first round
    objective.attach(started, shared_parameters(method, network), {}, trainee.control)
    starts, roles = named_tensors(started), graphs.steps.roles
    feed = {value: starts[name].detach().float().contiguous().numpy() for name, value in roles.tensors.items()}
    feed |= {name: np.ones(trains.architecture.classes, bool) for name in roles.shared}
    x, y = named(trainee.samples[0], "x"), trainee.samples[1]
    first = {name: part[:REFERENCE_SAMPLES] for name, part in {**x, "y": y}.items()}
    stepper = Stepper(graphs.steps, feed, training.lr, trains.beta)
    losses = np.array([stepper.step(*first.values()) for _ in range(STEPS)], np.float32)
    after = stepper.tensors()
    scalars = {LEARNING_RATE: np.array(0.0, np.float32), BETA: np.array(0.0, np.float32)}
    kinds = (roles.trained, roles.statistics, roles.frozen)
    trained, statistics, frozen = ({n: tuple(tensors[n].shape) for n in names if n in tensors} for names in kinds)
    stored = {name: feed[roles.tensors[name]] for name in (*trained, *statistics, *frozen)}
    stored |= {name: tensor.numpy() for name, tensor in trainee.control.items()}
    learned = trained | statistics
    ended = {AFTER + name: kept_of(after[value]) for name in learned if (value := roles.tensors[name]) in after}
    upload = upload_shapes(method, trains.architecture, trainee.tier)
    changing = _changing(trainee, frozen.keys() & upload.keys())
    no_update = trains.no_update(upload, learned | frozen, changing)
    by_label = np.issubdtype(y.dtype, np.integer) and bool(label_rows(method, trains.architecture))  # a regression has no labels
    numbers = range(len(graphs.steps.steps)) if len(graphs.steps.steps) > 1 else [""]
    paths = {f"{label}/train{n}.onnx": graph for n, graph in zip(numbers, graphs.steps.steps, strict=True)}
    names = "predict.onnx", "parameters.safetensors", "train_reference.safetensors"
    predict, parameters, reference = (f"{label}/{name}" for name in names)
    contents = {
        **paths,
        predict: graphs.predict,
        parameters: safetensors.numpy.save(stored),
        reference: safetensors.numpy.save({**first, "losses": losses, **ended}),
    }
    entry = TrainEntry(
        graphs=tuple(paths),
        predict=predict,
        parameters=parameters,
        reference=reference,
        optimizer=training.optimizer,
        lr=training.lr,
        momentum=trains.beta,
        clip_gradient=training.clip_gradient,
        batch_size=training.batch_size,
        epochs=training.epochs,
        trained=trained,
        statistics=statistics,
        frozen=frozen,
        personal=tuple(sorted(personal_names(method, network) & learned.keys())),
        upload={} if no_update else upload,
        objective=ObjectiveEntry(name=objective.name, strength=objective.strength if objective.adds else 0.0),
        present=any("present" in names for names in stepper.inputs),
        augment=training.augment,
        labels=not no_update and by_label,
        no_update=no_update,
        predicted_memory_bytes=trainee.memory_bytes,
        onnx_peak_bytes=peak_bytes(graphs.steps.steps[-1], {**feed, **scalars, **x, "y": y})
        + sum(part.nbytes for part in x.values()),
    )
    return entry, contents


def _changing(trainee: Trainee, names: Collection[str]) -> frozenset[str]:
    """Return which of the tensors ``names`` a forward pass in training mode changes, such as a mean of outputs that a network tracks."""
    if not names:
        return frozenset()
    module, before = copy.deepcopy(trainee.network).train(), named_tensors(trainee.network)
    with torch_seeded(generator(0, "changing")):
        forward(module, trainee.samples[0], trainee.tier.label)
    after = named_tensors(module)
    return frozenset(name for name in names if not torch.equal(before[name], after[name]))


@dataclass(frozen=True)
class TierPart:
    """A tier of a bundle: the facts of its entry in the manifest, path → file, and its entries in ``other_formats``."""

    facts: Facts
    contents: Mapping[str, bytes]
    others: tuple[OtherFormat, ...]

    @property
    def graph(self) -> bytes:
        """The inference graph with its weights."""
        return self.contents[self.facts["forward"]]

    def entry(self, **figures: Any) -> TierEntry:
        """Return the tier's entry in the manifest, with ``figures`` that the caller measured."""
        return TierEntry(**self.facts, **figures)


def tier_part(
    trains: Trains,
    trainee: Trainee,
    deployed: nn.Module,
    inputs: Fields[InputSpec],
    rng: np.random.Generator,
    also: Sequence[str] = (),
    facts: Facts | None = None,
) -> TierPart:
    """Return the part of a tier whose device infers with ``deployed``, also in the formats ``also``, and trains ``trainee``.

    Reference inputs are drawn from ``rng``. ``facts`` decide the graph of ``deployed``, see :func:`edgefl.bundle.forms.form_files`.
    EdgeflError: a network cannot be exported, or a graph differs from torch.
    """
    label = trainee.tier.label
    # What is trained has been exported, and an export takes seconds.
    ready = with_weights(trainee.graphs, deployed) if same_network(deployed, trainee.network) else None
    files = build_tier(deployed, inputs, label, rng, ready, facts)
    forward_path, reference = f"{label}/forward.onnx", f"{label}/reference.safetensors"
    others, other_contents = other_formats(also, deployed, label, files.contents[reference])
    train, contents = train_part(trains, trainee)
    about = {"tier": trainee.tier.number, "label": label, "forward": forward_path, "reference": reference, "train": train}
    about |= {"opset": files.opset, "parity_max_abs_error": files.parity_max_abs_error}
    return TierPart(about, {**files.contents, **contents, **other_contents}, others)


def manifest_of(tiers: Iterable[tuple[TierEntry, TierPart]], **about: Any) -> tuple[Manifest, dict[str, bytes]]:
    """Return the manifest of a bundle of ``tiers``, ``about`` being its other fields, and path → file of the tiers."""
    entries, parts = zip(*tiers, strict=True)
    others = tuple(other for part in parts for other in part.others)
    manifest = Manifest(edgefl_version=__version__, tiers=entries, other_formats=others or None, files={}, **about)
    return manifest, {path: content for part in parts for path, content in part.contents.items()}
