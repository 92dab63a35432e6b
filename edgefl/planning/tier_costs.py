"""The costs of a tier under one method: to train, to run and to send."""

from dataclasses import asdict, replace
from functools import cached_property, partial

from pydantic import TypeAdapter
from torch import nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.job import Task
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import trained_shapes
from edgefl.client.step_facts import step_facts
from edgefl.client.training import Training
from edgefl.cost.table import with_inference
from edgefl.errors import ConfigError, EdgeflError
from edgefl.methods.base import Method
from edgefl.methods.capabilities import Draws
from edgefl.methods.create import create
from edgefl.methods.layer_rules import FactorizingConfig, rules_of
from edgefl.methods.networks import skeleton, upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture, once_per_network, weighted_layers
from edgefl.models.copies import copies_of
from edgefl.models.norm import splits_batches
from edgefl.models.valueless import on_meta, read_elsewhere, reason
from edgefl.planning.practice import Practice
from edgefl.records import Cost, Tier
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
    return practice_cost(Practice(method, architecture, training, objective, criterion), tier, codec)


def practice_cost(practice: Practice, tier: Tier, codec: str) -> Cost:
    """Return the cost of a tier, as :func:`tier_cost` does."""
    method, architecture, objective = practice.method, practice.architecture, practice.objective
    try:
        return _recalled(architecture, practice, tier, codec)
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
        practice = Practice(method, architecture, training, criterion=criterion)
        return with_inference(cost, practice.subject(build, copies_of(network)))

    return _COSTS.recalled(facts and {**facts, "cost": asdict(cost), "training": asdict(training)}, counted)


@once_per_network  # the runs of a comparison, and the phases of a run, have the same tiers
def _recalled(architecture: Architecture, practice: Practice, tier: Tier, codec: str) -> Cost:
    of = architecture, practice.method, tier, practice.objective, practice.criterion, codec_named(codec)
    facts = step_facts(*of, training=asdict(practice.training), codec=codec)
    return _COSTS.recalled(facts, lambda: _traced(practice, tier, codec))


def _traced(practice: Practice, tier: Tier, codec: str) -> Cost:
    method, architecture = practice.method, practice.architecture
    down, up = download_shapes(method, architecture, tier), upload_shapes(method, architecture, tier)
    control = practice.objective.control_shapes(trained_shapes(method, architecture, tier))
    sizes = payload_bytes(down | control), payload_bytes(up | control, codec)
    # Another network is traced where there is one.
    deployed = (
        None if type(method).device_network is Method.device_network else partial(method.device_network, architecture, tier)
    )
    cost = practice.cost(partial(method.network, architecture, tier), sizes, deployed)
    drawn = method.step_tiers(tier) if isinstance(method, Draws) else (tier,)
    if drawn == (tier,):
        return cost
    networks = {drawn_tier: partial(method.network, architecture, drawn_tier) for drawn_tier in drawn if drawn_tier != tier}
    plain = replace(practice, objective=PLAIN)
    costs = {drawn_tier: plain.cost(build, sizes) for drawn_tier, build in networks.items()}
    macs = sum(other.macs_sample for other in (costs.get(drawn_tier, cost) for drawn_tier in drawn))
    return replace(cost, macs_drawn=-(-macs // len(drawn)))


def recomputed_cost(practice: Practice, tier: Tier, codec: str) -> Cost:
    """Return the cost of a tier if its backward pass computes activations again, or :func:`tier_cost` if that saves no memory."""
    saving = practice_cost(practice, tier, codec)  # raises what is wrong with the network
    build = partial(practice.method.network, practice.architecture, tier)
    again = practice_cost(practice.recomputing(build), tier, codec)
    return again if again.training_memory_bytes < saving.training_memory_bytes else saving


class Costs:
    """The costs of the tiers that clients of ``task`` train by ``method``, each computed once; ``in_onnx``: onnxruntime trains."""

    def __init__(self, method: Method, task: Task, codec: str, in_onnx: bool = False) -> None:
        self.method, self.architecture = method, task.architecture
        self._practice = Practice(method, task.architecture, task.training, task.objective, task.criterion)
        self._codec, self._in_onnx = codec, in_onnx
        self._plain: dict[tuple[Tier, int | None], Cost] = {}
        self._recomputed: dict[tuple[Tier, int | None], Cost] = {}

    def of(self, tier: Tier, micro_batch: int | None = None) -> Cost:
        """Return the cost of a tier, for whole batches or for micro-batches."""
        if (tier, micro_batch) not in self._plain:
            practice = self._in_parts(micro_batch)
            cost = practice_cost(practice, tier, self._codec)
            self._plain[tier, micro_batch] = practice.in_onnx(cost, tier) if self._in_onnx else cost
        return self._plain[tier, micro_batch]

    def recomputed(self, tier: Tier, micro_batch: int | None = None) -> Cost:
        """Return the cost of a tier that computes activations again; its ``recompute`` is empty where that holds no less."""
        if (tier, micro_batch) not in self._recomputed:
            self._recomputed[tier, micro_batch] = recomputed_cost(self._in_parts(micro_batch), tier, self._codec)
        return self._recomputed[tier, micro_batch]

    def _in_parts(self, micro_batch: int | None) -> Practice:
        training = self._practice.training
        return replace(self._practice, training=replace(training, micro_batch=micro_batch or training.micro_batch))

    @cached_property
    def full(self) -> Cost:
        """The cost of the dense network. Relative deadlines refer to it for every method."""
        return practice_cost(replace(self._practice, method=create("fedavg"), objective=PLAIN), Tier(1.0), self._codec)

    def splits(self, tier: Tier) -> bool:
        """Whether batches may be split without changing a step's result."""
        return splits_batches(skeleton(self.method, self.architecture, tier))
