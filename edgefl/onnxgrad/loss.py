"""Exports a network's loss as an ONNX graph with the weights as inputs: the forward pass of a training graph."""

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes.common import RemoveUnusedOpsetsPass
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from edgefl.onnxgrad.arguments import check_names, check_network
from edgefl.onnxgrad.detached import Detached, UntrainedPadding
from edgefl.onnxgrad.dropout import SeededDropout
from edgefl.onnxgrad.errors import EdgeflError, InputError
from edgefl.onnxgrad.exporter import converted
from edgefl.onnxgrad.fields import Fields, each, named
from edgefl.onnxgrad.graphs import BATCH, strip
from edgefl.onnxgrad.repairs import fixed_reshapes
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, PREDICTION, SEED, SHARE, STEP_COUNT, Roles
from edgefl.onnxgrad.stateless import called, restored, set_late_buffers, unset_buffers

Loss = Callable[..., Tensor]
"""(network, *inputs of the batch, *inputs shared by its samples) → scalar."""


@dataclass(frozen=True)
class LossGraph:
    """A network's losses and updated statistics (outputs for each kind of step), and its prediction, as one graph.

    ``inside`` are the buffers of :func:`endless`: constants of the graph, not inputs.
    """

    model: ir.Model
    losses: tuple[str, ...]
    roles: Roles
    inside: tuple[str, ...] = ()

    def part(self, outputs: Sequence[str], name: str = "step") -> onnx.ModelProto:
        """Return the part of the graph that computes ``outputs``, without unused inputs."""
        graph = ir.convenience.extract(self.model.graph, list(self.model.graph.inputs), list(outputs))
        graph.inputs[:] = [value for value in graph.inputs if value.uses()]
        graph.name = name
        model = ir.Model(graph, ir_version=self.model.ir_version, producer_name=self.model.producer_name)
        RemoveUnusedOpsetsPass()(model)
        proto = ir.to_proto(model)
        strip(proto)
        order = {name: number for number, name in enumerate(self.model.graph.initializers)}
        for records in (proto.graph.initializer, proto.graph.value_info):  # extract puts initializers into a set
            ordered = sorted(records, key=lambda record: order.get(record.name, -1))
            del records[:]
            records.extend(ordered)
        return proto

    @cached_property
    def constants(self) -> tuple[str, ...]:
        """The frozen tensors of the network that a loss or the prediction depends on, and the constants inside of the graph."""
        if not self.roles.frozen:
            return self.inside
        graph = ir.convenience.extract(self.model.graph, list(self.model.graph.inputs), [*self.losses, PREDICTION])
        read = {value.name for value in graph.inputs if value.uses()}
        return (*(name for name, role in self.roles.frozen.items() if role in read), *self.inside)

    @cached_property
    def other_numbers(self) -> str | None:
        """A value of the graph whose real numbers are not float32, with their type; None if there is none."""
        kinds = ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE
        values = (*self.model.graph.inputs, *(value for node in self.model.graph for value in node.outputs))
        return next((f"{value.name!r} in {value.dtype.name.lower()}" for value in values if value.dtype in kinds), None)

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the sizes of the tensor of the input ``value``."""
        shape = next(found for found in self.model.graph.inputs if found.name == value).shape
        return () if shape is None else shape.numpy()


def loss_graph(
    network: nn.Module,
    losses: Sequence[Loss],
    batch: Mapping[str, Fields[Tensor]],
    shared: Mapping[str, Tensor] | None = None,
    names: Mapping[str, str] | None = None,
) -> LossGraph:
    """Return the graph of the losses in training mode, and of the prediction from the first input in evaluation mode.

    Arguments and errors are those of :func:`edgefl.onnxgrad.step.training_step`. ``names`` gives frozen tensors other
    names for their inputs.
    """
    shared = shared or {}
    flat = flat_names(batch)
    failure = f"{type(network).__name__} cannot be trained in ONNX"
    check_network(network, failure)
    roles = replace(_roles_of(network, names or {}), batch=flat, shared=tuple(shared))
    check_names(roles)
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    if empty := [name for name in roles.tensors if not tensors[name].numel()]:
        raise EdgeflError(f"{failure}: {empty[0]} has no values; remove it from the network")
    values = [tensors[name].detach().float() for name in roles.tensors]
    outputs = (LOSS,) if len(losses) == 1 else tuple(f"{LOSS}.{i}" for i in range(len(losses)))
    module = _Traced(network, tuple(losses), roles)
    dimension = torch.export.Dim(BATCH, min=2)
    free = ([None] * len(values), [each(lambda _: {0: dimension}, of) for of in batch.values()], [None] * len(shared), None)
    if unset_buffers(network):
        copied = copy.deepcopy(network)  # a pass updates statistics
        set_late_buffers(copied, lambda given: losses[0](copied, *given.values(), *shared.values()), batch, failure)
    with _counted(network), restored(network):
        model = converted(
            module,
            (values, list(batch.values()), list(shared.values()), torch.zeros(())),
            free,
            [*roles.tensors.values(), *flat, *shared, SEED],
            [*(name for loss in outputs for name in (loss, *measured(loss, roles).values())), PREDICTION],
            failure,
        )
    if other := [value.dtype for value in model.graph.outputs if value.name in outputs and value.dtype != ir.DataType.FLOAT]:
        raise EdgeflError(f"{failure}: its loss has type {other[0]}, expected FLOAT; leave out .double(), .half() or .bfloat16()")
    _leave(model, {STEP_COUNT, LEARNING_RATE, BETA, SHARE})
    sizes = {value.name: value.shape for value in model.graph.inputs if value.name in flat}
    if fixed := [tuple(shape) for shape in sizes.values() if shape and isinstance(shape[0], int)]:
        raise EdgeflError(
            f"{failure}: its loss depends on how many samples there are: {fixed}; compute with x.shape[0], not with a number"
        )
    return LossGraph(fixed_reshapes(model), outputs, roles, endless(network, names or {}))


def flat_names(batch: Mapping[str, Fields[Tensor]]) -> tuple[str, ...]:
    """Return the names of a graph's inputs for a batch, in their order; those of several tensors under one name are ``name.KEY``."""
    return tuple(flat for name, value in batch.items() for flat in named(value, name))


def measured(loss: str, roles: Roles) -> dict[str, str]:
    """Return input → output, of the statistics that a step with the loss of this name updates."""
    return {value: value + OUT + loss.removeprefix(LOSS) for value in roles.statistics.values()}


@contextmanager
def _counted(network: nn.Module) -> Iterator[None]:
    """Let BatchNorm layers with momentum None compute their share, 1 / number of batches, from a tensor; torch makes it a number."""
    layers: list[Any] = [part for part in _measuring(network).values() if part.momentum is None]
    for layer in layers:
        layer.momentum = lambda layer=layer: 1 / layer.num_batches_tracked
    try:
        yield
    finally:
        for layer in layers:
            layer.momentum = None


def _measuring(network: nn.Module) -> dict[str, Any]:
    """Return name → layer, of the normalization layers with running statistics."""
    kinds = (_BatchNorm, _InstanceNorm)
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds) and part.track_running_stats}


def _power_iterations(network: nn.Module) -> list[str]:
    """Return the buffers of spectral norms, of both kinds: vectors that every step in training mode multiplies with the weight."""
    found = []
    for name, part in network.named_modules():
        hooked = [hook.name for hook in part._forward_pre_hooks.values() if isinstance(hook, SpectralNorm)]
        weights = [""] if isinstance(part, _SpectralNorm) else hooked
        buffers = [f"{weight}{end}" for weight in weights for end in ("_u", "_v")]
        found += [f"{name}{'.' if name else ''}{buffer}" for buffer in buffers if isinstance(getattr(part, buffer, None), Tensor)]
    return found


def _leave(model: ir.Model, names: set[str]) -> None:
    """Rename values that the exporter gave one of ``names`` (it calls a transpose ``t``): they are inputs of training graphs."""
    for value in ir.convenience.create_value_mapping(model.graph).values():
        if value.name in names:
            value.name = f"{value.name}_"


def endless(network: nn.Module, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the buffers, except ``names``, that are not sent and hold infinity or NaN, such as a mask: no file of tensors may."""
    sent = network.state_dict().keys() | names
    return tuple(
        name
        for name, buffer in network.named_buffers()
        if name not in sent and buffer.is_floating_point() and not bool(buffer.isfinite().all())
    )


def _roles_of(network: nn.Module, names: Mapping[str, str]) -> Roles:
    """Return the roles of a network's floating-point tensors, and of the counters of batches that statistics are computed with."""
    measured = {
        f"{layer}{'.' if layer else ''}{kind}"
        for layer, module in _measuring(network).items()
        for kind in ("running_mean", "running_var", *["num_batches_tracked"] * (module.momentum is None))
    } | set(_power_iterations(network))
    trains = {name: parameter.requires_grad for name, parameter in network.named_parameters()}
    inside = endless(network, names)
    buffers = [
        name
        for name, buffer in network.named_buffers()
        if (buffer.is_floating_point() or name in measured) and name not in inside
    ]
    frozen = [*(name for name, own in trains.items() if not own), *(name for name in buffers if name not in measured)]
    called = Roles.of((), (), [names.get(name, name) for name in frozen]).frozen.values()
    known = Roles.of([name for name, own in trains.items() if own], [name for name in buffers if name in measured])
    return replace(known, frozen=dict(zip(frozen, called, strict=True)))


class Whole(nn.Module):
    """Calls a network, or one of its losses with a ``seed`` for dropout, so that :func:`called` can replace its tensors."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, loss: Loss | None, inputs: Sequence[Fields[Tensor]], seed: Tensor | None = None) -> Tensor:
        """Return the loss in training mode, or without a loss the network's output for the first input in evaluation mode."""
        self.network.train(loss is not None)
        if loss is None or seed is None:
            return self.network(inputs[0])
        given = {name: self.network.get_buffer(name) for name in _power_iterations(self.network)}
        with _Lengths(), SeededDropout(seed), UntrainedPadding(), Detached(self.network.parameters()):
            value = loss(self.network, *inputs)
        for name, buffer in given.items():  # a spectral norm has new tensors afterwards
            if (changed := self.network.get_buffer(name)) is not buffer:
                buffer.copy_(changed)
        return value


class _Lengths(TorchFunctionMode):
    """Refuses ``len`` of a tensor in a loss while it is traced. A network may use it: the exporter then interprets its Python code."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__len__ and torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling():
            own = list(takewhile(lambda frame: not isinstance(frame.f_locals.get("self"), nn.Module), _frames()))
            if isinstance(own[-1].f_back and own[-1].f_back.f_locals.get("self"), Whole):
                ours = ("torch", "edgefl")
                code = next((frame for frame in own if frame.f_globals.get("__name__", "").partition(".")[0] not in ours), None)
                if code is not None:  # a method may ask for the length of a tensor of its own, such as one of positions
                    place = f"{Path(code.f_code.co_filename).name}, line {code.f_lineno}"
                    raise EdgeflError(
                        f"its loss depends on how many samples there are: len of a tensor in {place}; write .shape[0]"
                    )
        return func(*args, **(kwargs or {}))


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the caller's callers."""
    frame: FrameType | None = sys._getframe(3)  # noqa: SLF001 - the only way to the line of the user's code
    while frame is not None:
        yield frame
        frame = frame.f_back


class _Traced(nn.Module):
    """The module that is exported: (tensors, batch, shared, seed) → each loss with its updated statistics, prediction."""

    def __init__(self, network: nn.Module, losses: tuple[Loss, ...], roles: Roles) -> None:
        super().__init__()
        self._whole = (Whole(network),)  # in a tuple, so that its parameters are not registered: they are arguments
        self.losses, self.names, self.measured = losses, tuple(roles.tensors), tuple(roles.statistics)
        self.frozen = tuple(name for name, _ in network.named_buffers() if name in roles.frozen)

    def forward(
        self, tensors: list[Tensor], batch: list[Fields[Tensor]], shared: list[Tensor], seed: Tensor
    ) -> tuple[Tensor, ...]:
        given = {f"network.{name}": tensor for name, tensor in zip(self.names, tensors, strict=True)}
        (whole,) = self._whole
        # Counters and statistics are changed in place: copy them, or the export would change the network.
        given |= {
            f"network.{name}": buffer.clone() for name, buffer in whole.network.named_buffers() if f"network.{name}" not in given
        }
        found: list[Tensor] = []
        for loss in self.losses:  # one kind of step is taken, so each begins with the given statistics
            after = {f"network.{name}": given[f"network.{name}"].clone() for name in self.measured}
            frozen = {f"network.{name}": given[f"network.{name}"].clone() for name in self.frozen}
            value = called(whole, {**given, **frozen, **after}, (loss, [*batch, *shared], seed))
            found += _scalar(value), *after.values()
        _check_unwritten(given, self.names)
        outputs = called(whole, given, (None, batch))
        outputs = outputs.flatten(1) if outputs.dim() > 2 else outputs
        return (*found, outputs.clone() if any(outputs is own for own in tree_leaves(batch)) else outputs)


def _check_unwritten(given: Mapping[str, Tensor], names: Sequence[str]) -> None:
    """Raise an EdgeflError if a network has written over one of the tensors ``names``: the graph's step would start from the old values."""
    for name in () if torch.compiler.is_dynamo_compiling() else names:
        if given[f"network.{name}"]._version:  # noqa: SLF001 - how often it was changed in place has no public name
            raise EdgeflError(f"forward writes over {name}; compute a new tensor instead, such as self.weight.clamp(-1, 1)")


def _scalar(value: Any) -> Tensor:
    """Return what a loss returned as a tensor without axes; an InputError if it is not one number that has a gradient."""
    if not isinstance(value, Tensor):
        raise InputError(f"the loss returns a {type(value).__name__}, expected a tensor of one number")
    if not value.is_floating_point():
        raise InputError(f"the loss returns numbers of {value.dtype}, which have no gradient; expected torch.float32")
    if any(size != 1 for size in value.shape):
        raise InputError(f"the loss returns a tensor with {value.dim()} axes, expected one number; call .mean() on it")
    return value.reshape(())
