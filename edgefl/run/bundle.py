"""Writes the bundle of trained tiers, and measures each tier as its device would run it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import safetensors.numpy
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor, nn

from edgefl.bundle.form_choice import choice_for
from edgefl.bundle.forms import Form, Formed, formed
from edgefl.bundle.half_range import beyond_half
from edgefl.bundle.labels import labelled, licence_of
from edgefl.bundle.manifest import Budget, TierEntry, TrainEntry, Variant
from edgefl.bundle.operators import operator_file
from edgefl.bundle.quantize import Kind, int8_kind, slower, variant
from edgefl.bundle.signature import freshness_file
from edgefl.bundle.tier_part import TierPart, Trainee, Trains, manifest_of, tier_part, train_part
from edgefl.bundle.write import about_inputs, client_files, drawn, write
from edgefl.client import evaluate
from edgefl.client.onnx_loop import beta_of
from edgefl.client.step_facts import step_facts
from edgefl.config import HOST_KEYS, SCREENING
from edgefl.data.split import Split
from edgefl.errors import EdgeflError, MovedError, NoBundleError, StorageError
from edgefl.onnxgrad.contexts import uncollected
from edgefl.onnxgrad.macs import macs_per_sample
from edgefl.onnxgrad.predict import predict, predict_capped
from edgefl.onnxgrad.session import OutOfMemoryError
from edgefl.planning.tier_costs import formed_cost, tier_cost
from edgefl.records import ACCURACY, Cost, Tier
from edgefl.report.cost_rows import CostRow
from edgefl.report.run_rows import TierResult
from edgefl.rng import generator
from edgefl.run.feature import no_updates
from edgefl.run.trained import TierNetworks
from edgefl.timing.spans import span
from edgefl.util.fields import Fields, named
from edgefl.util.keys import SigningKey
from edgefl.util.machine import usable_threads
from edgefl.util.shelf import Facts, Shelf
from edgefl.util.validation import explain_all

if TYPE_CHECKING:
    from edgefl.run.run import Run

_NAMES = TypeAdapter(list[str])
_CHOICES = Shelf[list[str]]("choices", _NAMES.dump_json, _NAMES.validate_json)


def trainable(
    run: Run, tier: Tier, network: nn.Module, control: Mapping[str, Tensor], cost: Cost
) -> tuple[TrainEntry, dict[str, bytes]]:
    """Return the training part of a tier of a run that costs :func:`device_cost`, see :func:`edgefl.bundle.tier_part.train_part`.

    Raises:
        EdgeflError: its training cannot be written as a graph (names operation or operator).
    """
    return train_part(*_training(run, tier, network, control, cost))


def _training(
    run: Run, tier: Tier, network: nn.Module, control: Mapping[str, Tensor], cost: Cost, alone: str = ""
) -> tuple[Trains, Trainee]:
    """Return how the devices of a run train, and what those of a tier train; ``alone`` is as :class:`Trains` has it."""
    training, objective = run.clients.task.training, run.clients.task.objective
    trains = Trains(run.method, run.architecture, training, beta_of(training), objective, alone or no_updates(run.config))
    samples, memory_bytes = _samples(run, tier, training.batch_size), cost.training_memory_bytes
    return trains, Trainee(tier, network, run.graphs_of(run.method, tier), samples, control, memory_bytes)


def device_cost(run: Run, tier: Tier) -> Cost:
    """Return the cost of a tier as the graphs of a bundle train it: by gradients of batches, if clients clip those of samples."""
    task = run.clients.task
    if task.training.sample_clip is None:
        return run.plan.costs[tier]
    plain = replace(task.training, sample_clip=None, noise_multiplier=0.0)
    return tier_cost(run.method, run.architecture, tier, plain, run.config.codec, task.objective, task.criterion)


def _samples(run: Run, tier: Tier, count: int) -> tuple[Fields[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return ``count`` synthetic samples and labels or targets: a bundle contains no user's data."""
    rng, data = generator(run.config.seed, "training reference", tier.label), run.data
    x = drawn(rng, count, run.inputs)
    if data.target_shape is not None:
        return x, run.criterion.drawn(count, 0, torch.Generator().manual_seed(int(rng.integers(2**31)))).numpy()
    return x, rng.integers(data.classes, size=count)


@dataclass(frozen=True)
class Wanted:
    """How tiers are exported.

    Attributes:
        form: form of factorized layers.
        int8: whether 8-bit variants are added.
        fp16: whether 16-bit variants are added.
        clients: whether the Python, TypeScript and browser clients are added.
        also: export formats that are added.
        operators: whether a list of the operators that the graphs need is added.
        key: signs the bundle; None: it is not signed.
        lasts_s: seconds until the bundle expires; None: it does not.
        sized: whether each tier is for a device of the run's fleet, with that device's budget.
        alone: why no server aggregates updates of the bundle; empty if one does.
    """

    form: Form = "auto"
    int8: bool = False
    fp16: bool = False
    clients: bool = False
    also: tuple[str, ...] = ()
    operators: bool = False
    key: SigningKey | None = None
    lasts_s: float | None = None
    sized: bool = True
    alone: str = ""


@dataclass(frozen=True)
class Source:
    """The server's state that a bundle is made from: its round, and the SHA-256 of its file. ``fed-round`` recognises it by this hash."""

    round: int
    state_sha256: str


def _line(run: Run) -> dict[str, Any]:
    """Return what all rounds of a run have in common: its configuration, without what a later round may change."""
    changes = HOST_KEYS | {"rounds", "plugins", *SCREENING}
    return json.loads(run.config.model_dump_json(exclude=set(changes)))


def build_bundle(
    run: Run,
    tiers: Mapping[Tier, TierNetworks],
    source: Source,
    out: Path,
    say: Callable[[str], None],
    wanted: Wanted | None = None,
) -> dict[Tier, TierResult]:
    """Export every tier, measure it on its held-out samples, and write the bundle to ``out``: whole or absent.

    Raises:
        BundleError: ``out`` exists and is not empty.
        NoBundleError: a network cannot be exported, or its graph differs from torch.
    """
    wanted, data = wanted or Wanted(), run.data
    exported, results = [], {}
    # The hash of the state is the manifest's alone: it covers the clock, and equal weights make equal files.
    licence, state = licence_of(run.architecture), {"round": str(source.round)}
    with uncollected():
        for number, (tier, chosen) in enumerate(tiers.items(), 1):
            with span("bundle", tier=tier.label, number=number, of=len(tiers)):
                try:
                    entry, part, results[tier] = _deploy(run, tier, chosen, say, wanted)
                except (StorageError, MovedError):
                    raise
                except (EdgeflError, ValidationError) as error:
                    raise _without_bundle(error) from error
                of = {"network": run.architecture.at(tier.ratio).model, "method": run.config.method, "dataset": data.name}
                exported.append(labelled(entry, part, of | licence, state))
    reference = safetensors.numpy.load(part.contents[entry.reference])
    class_names = data.class_names or tuple(f"output {number}" for number in range(reference["logits"].shape[1]))
    try:
        manifest, contents = manifest_of(
            exported,
            method=run.config.method,
            model=run.architecture.model,
            dataset=data.name,
            round=source.round,
            state_sha256=source.state_sha256,
            **about_inputs(run.inputs, data.preprocessing),
            classes=len(class_names),
            class_names=class_names,
            target_shape=data.target_shape,
            metric=None if run.criterion.loss is None and run.criterion.metric == ACCURACY else run.criterion.metric.name,
        )
    except ValidationError as error:
        raise _without_bundle(error) from error
    contents |= freshness_file(_line(run), wanted.lasts_s)
    contents |= (client_files() if wanted.clients else {}) | (operator_file(contents) if wanted.operators else {})
    write(out, manifest, contents, wanted.key)
    return results


def _without_bundle(error: EdgeflError | ValidationError) -> NoBundleError:
    """Return the error that a run has no bundle; of a manifest that breaks a rule, it names the keys."""
    if isinstance(error, ValidationError):
        return NoBundleError(f"its manifest is refused: {explain_all(error.errors())}")
    return NoBundleError(str(error))


def in_torch(run: Run, tiers: Mapping[Tier, TierNetworks]) -> dict[Tier, TierResult]:
    """Return the results of the tiers of a run that has no bundle."""
    found = {}
    for tier, chosen in tiers.items():
        with evaluate.evaluating(f"tier {tier.label}"):
            score = evaluate.score(chosen.deployed, chosen.test, run.criterion, threads=usable_threads())
        found[tier] = TierResult(score, score)
    return found


def _deploy(
    run: Run, tier: Tier, chosen: TierNetworks, say: Callable[[str], None], wanted: Wanted
) -> tuple[TierEntry, TierPart, TierResult]:
    """Return a tier's entry in the manifest, its files, and how it does on its device."""
    form = "factored" if wanted.form == "auto" and not wanted.sized else wanted.form
    shaped, test, cost = _formed(run, tier, chosen.deployed, form), chosen.test, device_cost(run, tier)
    module, rng = shaped.module, generator(run.config.seed, "reference", tier.label)
    facts = _facts(run, tier, composed=sorted(shaped.composed_layers))
    training = _training(run, tier, chosen.network, chosen.control, cost, wanted.alone)
    part = tier_part(*training, module, run.inputs, rng, wanted.also, facts)
    if shaped.composed_layers:
        task = run.clients.task
        cost = formed_cost(cost, module, run.method, run.architecture, tier, task.training, task.criterion, facts)
    own = ("params", "params_inference")  # ``params`` of the entry
    costs = {key: value for key, value in vars(CostRow.of(cost)).items() if isinstance(value, int) and key not in own}
    accuracy, inference_bytes = _measured(run, tier, part.graph, test, say, wanted.sized)
    variants = list(_variants(run, tier, part.graph, test, say, wanted))
    entry = part.entry(
        device=run.plan.home_of(tier).device.name if wanted.sized else None,
        form=form,
        composed_layers=shaped.composed_layers,
        variants=tuple(record for record, _ in variants),
        budget=_budget(run, tier) if wanted.sized else Budget(),
        params=cost.params_inference,
        batch_size=cost.batch_size,
        costs=costs,
        uncounted_ops=cost.uncounted_ops,
        accuracy_onnx=accuracy,
        accuracy_torch=None if run.data.drawn else evaluate.score(module, test, run.criterion, threads=usable_threads()),
    )
    part = replace(part, contents={**part.contents, **{record.graph: content for record, content in variants}})
    macs = macs_per_sample(onnx.load_model_from_string(run.graphs_of(run.method, tier).predict))
    train = part.facts["train"]
    return entry, part, TierResult(accuracy, entry.accuracy_torch, inference_bytes, train.onnx_peak_bytes, macs)


def _formed(run: Run, tier: Tier, network: nn.Module, form: Form) -> Formed:
    """Return the network in the form that is wanted; ``auto`` as suits the device that the tier was sized for."""
    if form != "auto":
        return formed(network, form)
    home = run.plan.home_of(tier)
    limits, compute = home.budget, home.device.compute
    table = compute.inference_step or compute.training_step
    x = run.architecture.samples(1)
    asked = None if table is None else table.seconds, home.device.training_bytes, limits.download_bytes
    chosen = _CHOICES.recalled(_facts(run, tier, device=asked), lambda: sorted(choice_for(network, x, *asked).composed))
    return formed(network, form, chosen)


def _facts(run: Run, tier: Tier, **others: Any) -> Facts | None:
    """Return all that decides the structure of a tier's network, with ``others``; None if it cannot be told."""
    task = run.clients.task
    return step_facts(run.architecture, run.method, tier, task.objective, task.criterion, **others)


def _variants(
    run: Run, tier: Tier, graph: bytes, test: Split, say: Callable[[str], None], wanted: Wanted
) -> Iterator[tuple[Variant, bytes]]:
    """Yield the variants of a tier's graph that are wanted, and smaller than the graph."""
    kinds: list[Kind] = [int8_kind(graph)] if wanted.int8 else []
    if wanted.fp16:
        kinds.append("fp16")
    x, y = test.taken().x, None if run.data.drawn else test.y
    for kind in kinds:
        record, content = variant(tier.label, graph, kind, run.data.train.taken().x, x, y, run.criterion)
        if len(content) >= len(graph):
            say(f"tier {tier.label}: {kind} is left out: {len(content):,} bytes, forward.onnx has {len(graph):,}")
        elif kind == "fp16" and (name := beyond_half(graph, content, x)):
            say(f"tier {tier.label}: fp16 is left out: {name} has values above 65,504, the largest of 16 bits")
        else:
            if kind != "fp16" and (told := slower(graph, content, x)):
                say(f"tier {tier.label}: {kind} is {told}")
            yield record, content


def _budget(run: Run, tier: Tier) -> Budget:
    """Return what the device that a tier was sized for gives it, as a manifest has it."""
    limits = run.plan.home_of(tier).budget
    memory_bytes = None if limits.memory_bytes is None else int(limits.memory_bytes)
    return Budget(memory_bytes=memory_bytes, round_s=limits.deadline_s, energy_j=limits.energy_j)


def _measured(
    run: Run, tier: Tier, graph: bytes, test: Split, say: Callable[[str], None], sized: bool
) -> tuple[float | None, int | None]:
    """Return what :func:`_run_on_device` does, of a device without a limit unless tiers are ``sized``; None of samples that were drawn."""
    if run.data.drawn:
        return None, None
    if sized:
        return _run_on_device(run, tier, graph, test, say)
    with evaluate.evaluating(f"tier {tier.label}, the bundle's graph"):
        logits = predict(graph, test.taken().x, batch_size=run.plan.costs[tier].batch_size)
        return run.criterion.measured(logits, test.y), None


def _run_on_device(
    run: Run, tier: Tier, graph: bytes, test: Split, say: Callable[[str], None]
) -> tuple[float | None, int | None]:
    """Run the exported file on the held-out samples within the device's memory, in smaller batches if necessary.

    Returns:
        The accuracy or metric, and the peak bytes of activations and inputs for a batch of the size that costs are counted for. The bytes
        are None if the tier ran only in smaller batches.
    """
    device = run.plan.home_of(tier).device
    metric = run.criterion.metric
    full, memory_bytes = run.plan.costs[tier].batch_size, int(device.training_bytes)
    batch_size = full
    while True:
        try:
            ran = predict_capped(graph, test.taken().x, batch_size=batch_size, memory_bytes=memory_bytes)
            inputs = named(test.taken(slice(batch_size)).x, "x").values()
            whole = batch_size == full <= len(test)
            held = ran.peak_activation_bytes + sum(x.nbytes for x in inputs) if whole else None
            with evaluate.evaluating(f"tier {tier.label}, the bundle's graph"):
                return run.criterion.measured(ran.logits, test.y), held
        except OutOfMemoryError as error:
            if batch_size == 1:
                none, told = (None, f"it has no {metric.name}") if not metric.share else (0.0, "its accuracy counts as 0")
                say(f"tier {tier.label} does not run on {device.name}: {error}; {told}")
                return none, None
            batch_size = max(1, batch_size // 4)
