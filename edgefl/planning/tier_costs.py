"""The costs of a tier under one method: to train, to run and to send."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cached_property, partial

import torch
from pydantic import TypeAdapter
from torch import nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.job import Task
from edgefl.client.loop import optimizer_of
from edgefl.client.loss import loss_of
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import shared_parameters, trained_shapes
from edgefl.client.per_sample import StepNoise, noising
from edgefl.client.recompute.choice import segments_of
from edgefl.client.recompute.tape import recomputing
from edgefl.client.step_facts import step_facts
from edgefl.client.training import Training
from edgefl.cost.memory import Timeline
from edgefl.cost.table import cost_of, traced_step, with_inference
from edgefl.cost.trace import Subject
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Draws
from edgefl.methods.create import create
from edgefl.methods.layer_rules import FactorizingConfig, rules_of
from edgefl.methods.networks import skeleton, upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture, Unfilled, once_per_network, weighted_layers
from edgefl.models.copies import copies_of
from edgefl.models.norm import splits_batches
from edgefl.models.valueless import on_meta, read_elsewhere, reason
from edgefl.records import Batch, Cost, Tier
from edgefl.util.shelf import Facts, Shelf
from edgefl.wire.codec import codec_named
from edgefl.wire.payload import payload_bytes

_COST = TypeAdapter(Cost)
_COSTS = Shelf[Cost]("costs", _COST.dump_json, _COST.validate_json, places=2048)


def tier_cost(
    method: Method,
    architecture: Architecture,
    tier: Tier,
    training: Training,
    codec: str = "fp32",
    objective: Objective = PLAIN,
    criterion: Criterion = CROSS_ENTROPY,
) -> Cost:
    """Return the cost of one tier's training step and inference at the batch size of ``training``.

    If a step trains one of several networks, ``macs_drawn`` is the mean over them; all else is about the tier's own network.
    Inference runs the network of :meth:`edgefl.methods.base.Method.device_network`.

    Raises:
        ConfigError: the network refuses this input, its operations depend on values, or its loss cannot be computed.
    """
    try:
        return _recalled(architecture, (method, tier, training, codec, objective, criterion))
    except EdgeflError:
        raise
    except Exception as error:  # tracing runs the network's own code, which may raise anything
        own = architecture.at(tier.ratio)
        name = own.model
        if layers := _read_itself(architecture, method, tier):
            rules = ",".join(filter(None, (rules_of(method.config), *(f"!{name}" for name in layers))))
            dense = (
                f"keep such layers dense by --method-option factorize={rules}, or "
                if isinstance(method.config, FactorizingConfig)
                else ""
            )
            raise ConfigError(
                f"model {name} reads the weight of {', '.join(layers)} itself, and {method.title} replaces the layer; "
                f"{dense}choose a method that cuts width, such as heterofl"
            ) from error
        told = f"model {name} does not take input {architecture}: {reason(error)}"
        if _runs(own):
            terms = "" if objective.name == PLAIN.name else f" and objective {objective.name}"
            raise ConfigError(f"model {name} cannot be trained with {method.title}{terms}: {reason(error)}") from error
        raise ConfigError(told + _ids_hint(architecture, error)) from error


def _ids_hint(architecture: Architecture, error: Exception) -> str:
    """Return how to give token ids, if the network looks up real numbers in an embedding; "" if that is not the error."""
    if "Expected tensor for argument #1 'indices'" not in str(error):
        return ""
    shape = str(architecture)
    return f"; give token ids as --input {'NAME=int64:SHAPE' if '=' in shape else f'int64:{shape}'}"


def _runs(architecture: Architecture) -> bool:
    """Return whether the dense network takes its input."""
    try:
        with on_meta():
            architecture.skeleton()(architecture.samples(2))
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _read_itself(architecture: Architecture, method: Method, tier: Tier) -> list[str]:
    """Return the layers that ``method`` replaces although the dense network reads their weights; [] if that network does not run."""
    try:
        with on_meta():
            dense, small = architecture.skeleton().eval(), dict(skeleton(method, architecture, tier).named_modules())
            layers = {name: layer for name, layer in weighted_layers(dense) if type(small.get(name, layer)) is not type(layer)}
            return read_elsewhere(dense, layers, lambda network: network(architecture.samples(2)))
    except Exception:  # noqa: BLE001 - as above; then the input is at fault
        return []


def formed_cost(
    cost: Cost,
    network: nn.Module,
    method: Method,
    architecture: Architecture,
    tier: Tier,
    training: Training,
    criterion: Criterion,
    facts: Facts | None = None,
) -> Cost:
    """Return the ``cost`` of a tier whose device runs ``network``, in which factors are multiplied, instead of the method's own.

    ``facts`` decide the structure of ``network``, so that the result is stored; None: they cannot be told.
    """

    def counted() -> Cost:
        build = partial(method.network, architecture, tier)
        return with_inference(cost, _subject(build, architecture, method, training, PLAIN, criterion, copies_of(network)))

    return _COSTS.recalled(facts and {**facts, "cost": asdict(cost), "training": asdict(training)}, counted)


@once_per_network  # the runs of a comparison, and the phases of a run, have the same tiers
def _recalled(architecture: Architecture, asked: tuple[Method, Tier, Training, str, Objective, Criterion]) -> Cost:
    method, tier, training, codec, objective, criterion = asked
    of = architecture, method, tier, objective, criterion, codec_named(codec)
    return _COSTS.recalled(step_facts(*of, training=asdict(training), codec=codec), lambda: _traced(architecture, *asked))


def _traced(
    architecture: Architecture,
    method: Method,
    tier: Tier,
    training: Training,
    codec: str,
    objective: Objective,
    criterion: Criterion,
) -> Cost:
    trained = trained_shapes(method, architecture, tier)
    down, up = download_shapes(method, architecture, tier), upload_shapes(method, architecture, tier)
    control = objective.control_shapes(trained)
    sizes = payload_bytes(down | control), payload_bytes(up | control, codec)
    # Another network is traced where there is one.
    deployed = (
        None if type(method).device_network is Method.device_network else partial(method.device_network, architecture, tier)
    )
    network = partial(method.network, architecture, tier)
    cost = network_cost(network, architecture, method, training, sizes, objective, deployed, criterion)
    drawn = method.step_tiers(tier) if isinstance(method, Draws) else (tier,)
    if drawn == (tier,):
        return cost
    networks = {drawn_tier: partial(method.network, architecture, drawn_tier) for drawn_tier in drawn if drawn_tier != tier}
    costs = {
        drawn_tier: network_cost(build, architecture, method, training, sizes, criterion=criterion)
        for drawn_tier, build in networks.items()
    }
    macs = sum(other.macs_sample for other in (costs.get(drawn_tier, cost) for drawn_tier in drawn))
    return replace(cost, macs_drawn=-(-macs // len(drawn)))


def network_cost(
    build: Callable[[], nn.Module],
    architecture: Architecture,
    method: Method,
    training: Training,
    sizes: tuple[int, int],
    objective: Objective = PLAIN,
    deployed: Callable[[], nn.Module] | None = None,
    criterion: Criterion = CROSS_ENTROPY,
) -> Cost:
    """Return the cost of a network that ``method`` trains under ``objective``; ``sizes`` are its payload's bytes down and up.

    ``deployed`` builds the network that a device runs, if it is another one.
    """
    subject = _subject(build, architecture, method, training, objective, criterion, deployed)
    return cost_of(subject, training.batch_size, sizes, training.micro_batch, training.recompute)


def step_timeline(build: Callable[[], nn.Module], architecture: Architecture, method: Method, training: Training) -> Timeline:
    """Return every moment of a training step of a network, with the bytes that are alive then."""
    subject = _subject(build, architecture, method, training, PLAIN, CROSS_ENTROPY)
    size = min(training.micro_batch or training.batch_size, training.batch_size)
    return traced_step(subject, training.batch_size, size)[1].timeline


def recomputed(
    training: Training,
    build: Callable[[], nn.Module],
    architecture: Architecture,
    method: Method,
    objective: Objective = PLAIN,
    criterion: Criterion = CROSS_ENTROPY,
) -> Training:
    """Return ``training`` with activations computed again between the layers of ``build()`` where that should hold the least."""
    subject = _subject(build, architecture, method, training, objective, criterion)
    return replace(
        training, recompute=segments_of(subject, min(training.micro_batch or training.batch_size, training.batch_size))
    )


def recomputed_cost(
    method: Method,
    architecture: Architecture,
    tier: Tier,
    training: Training,
    codec: str = "fp32",
    objective: Objective = PLAIN,
    criterion: Criterion = CROSS_ENTROPY,
) -> Cost:
    """Return the cost of a tier if its backward pass computes activations again, or :func:`tier_cost` if that saves no memory."""
    saving = tier_cost(method, architecture, tier, training, codec, objective, criterion)  # raises what is wrong with the network
    steps = recomputed(training, partial(method.network, architecture, tier), architecture, method, objective, criterion)
    again = tier_cost(method, architecture, tier, steps, codec, objective, criterion)
    return again if again.training_memory_bytes < saving.training_memory_bytes else saving


def _subject(
    build: Callable[[], nn.Module],
    architecture: Architecture,
    method: Method,
    training: Training,
    objective: Objective,
    criterion: Criterion,
    deployed: Callable[[], nn.Module] | None = None,
) -> Subject:
    def batch(samples: int) -> Batch:
        targets = criterion.targets(samples * architecture.labels)
        return Batch(architecture.samples(samples), targets, criterion.present(architecture.classes))

    def unfilled(make: Callable[[], nn.Module]) -> nn.Module:
        with Unfilled():
            return make()

    def trained() -> nn.Module:
        network = unfilled(build)
        objective.attach(network, shared_parameters(method, network), {}, {})
        return network

    plain = build if deployed is None and objective.adds else deployed

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        steps = optimizer_of(method, module, training)
        return steps if training.sample_clip is None else noising(steps, StepNoise(1.0), module, training.batch_size)

    loss = loss_of(method, objective, criterion, training.sample_clip)
    return Subject(
        build=trained,
        batch=batch,
        loss=recomputing(loss, training.recompute) if training.recompute else loss,
        optimizer=optimizer,
        deployed=None if plain is None else partial(unfilled, plain),
    )


class Costs:
    """The costs of the tiers that clients of ``task`` train by ``method``, each computed once; ``in_onnx``: onnxruntime trains."""

    def __init__(self, method: Method, task: Task, codec: str, in_onnx: bool = False) -> None:
        self.method, self.architecture = method, task.architecture
        self._training, self._codec, self._objective, self._criterion = task.training, codec, task.objective, task.criterion
        self._in_onnx = in_onnx
        self._plain: dict[tuple[Tier, int | None], Cost] = {}
        self._recomputed: dict[tuple[Tier, int | None], Cost] = {}

    def of(self, tier: Tier, micro_batch: int | None = None) -> Cost:
        """Return the cost of a tier, for whole batches or for micro-batches."""
        if (tier, micro_batch) not in self._plain:
            steps = self._training if micro_batch is None else replace(self._training, micro_batch=micro_batch)
            cost = tier_cost(self.method, self.architecture, tier, steps, self._codec, self._objective, self._criterion)
            if self._in_onnx:
                from edgefl.planning.onnx_costs import in_onnx  # a second to import, and most runs train in torch

                cost = in_onnx(cost, self.method, self.architecture, tier, steps, self._objective, self._criterion)
            self._plain[tier, micro_batch] = cost
        return self._plain[tier, micro_batch]

    def recomputed(self, tier: Tier, micro_batch: int | None = None) -> Cost:
        """Return the cost of a tier that computes activations again; its ``recompute`` is empty where that holds no less."""
        if (tier, micro_batch) not in self._recomputed:
            steps = replace(self._training, micro_batch=micro_batch or self._training.micro_batch)
            of = self.method, self.architecture, tier, steps, self._codec, self._objective, self._criterion
            self._recomputed[tier, micro_batch] = recomputed_cost(*of)
        return self._recomputed[tier, micro_batch]

    @cached_property
    def full(self) -> Cost:
        """The cost of the dense network. Relative deadlines refer to it for every method."""
        return tier_cost(create("fedavg"), self.architecture, Tier(1.0), self._training, self._codec, criterion=self._criterion)

    def splits(self, tier: Tier) -> bool:
        """Whether batches may be split without changing a step's result."""
        return splits_batches(skeleton(self.method, self.architecture, tier))
