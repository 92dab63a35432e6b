"""A network's loss as an ONNX graph whose weights are inputs: the forward half of a training graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir
import torch
import torch.onnx.ops
from onnx_ir.passes.common import RemoveUnusedOpsetsPass
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.exporter import OPSET, converted, fixed_reshapes, strip
from edgefl.onnxgrad.graphs import BATCH
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, PREDICTION, SHARE, STEP_COUNT, Roles


@contextmanager
def exportable(network: nn.Module) -> Iterator[None]:
    """Within the context, layers of ``network`` that keep running statistics export as the operator in training mode and their update.

    What a graph computes is torch's: normalised by the batch's variance over n, kept: the one over n − 1. Only for export: called in
    torch, the layers return nothing of use.

    Raises:
        EdgeflError: a layer's momentum is None: the mean over all batches needs their count, which no training graph has.
    """
    named = {n: m for n, m in network.named_modules() if isinstance(m, _BatchNorm) and m.track_running_stats}
    if counting := [name for name, layer in named.items() if layer.momentum is None]:
        raise EdgeflError(f"layer {counting[0]}: BatchNorm with momentum None cannot be trained in ONNX, expected a number")
    layers: list[Any] = list(named.values())
    for layer in layers:
        layer.forward = _Forward(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


class _Forward:
    """A layer's ``forward``, in training with its statistics as results."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        layer = self.layer
        if not layer.training:
            result: Tensor = type(layer).forward(layer, x)
            return result
        normal, mean, variance = _normalised(x, layer)
        count = x.numel() / x.shape[1]
        share = layer.momentum
        layer.running_mean.copy_((1 - share) * layer.running_mean + share * mean)
        layer.running_var.copy_((1 - share) * layer.running_var + share * variance * (count / (count - 1)))
        return normal


def _normalised(x: Tensor, layer: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the node that normalises by the batch, with the mean and the variance (over n) that it found."""
    channels = layer.num_features
    weight = x.new_ones(channels) if layer.weight is None else layer.weight
    bias = x.new_zeros(channels) if layer.bias is None else layer.bias
    found = torch.onnx.ops.symbolic_multi_out(
        "BatchNormalization",
        (x, weight, bias, layer.running_mean, layer.running_var),
        attrs={"training_mode": 1, "momentum": 0.0, "epsilon": layer.eps},
        dtypes=(x.dtype,) * 3,
        shapes=(x.shape, (channels,), (channels,)),
        version=OPSET,
    )
    return found[0], found[1], found[2]


Loss = Callable[..., Tensor]
"""(network, inputs of the batch, inputs shared by its samples) → scalar."""


@dataclass(frozen=True)
class LossGraph:
    """A network's losses, one output for each equally likely kind of step, its updated statistics and its prediction as one graph."""

    model: ir.Model
    losses: tuple[str, ...]
    roles: Roles

    def part(self, outputs: Sequence[str], name: str = "step") -> onnx.ModelProto:
        """Return the part of the graph that computes ``outputs``, with the inputs that it reads."""
        graph = ir.convenience.extract(self.model.graph, list(self.model.graph.inputs), list(outputs))
        graph.inputs[:] = [value for value in graph.inputs if value.uses()]
        graph.name = name
        model = ir.Model(graph, ir_version=self.model.ir_version, producer_name=self.model.producer_name)
        RemoveUnusedOpsetsPass()(model)
        proto = ir.to_proto(model)
        strip(proto)
        return proto

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the sizes of a network's tensor, given by its input."""
        shape = next(found for found in self.model.graph.inputs if found.name == value).shape
        return () if shape is None else shape.numpy()


def loss_graph(
    network: nn.Module,
    losses: Sequence[Loss],
    batch: Mapping[str, Tensor],
    shared: Mapping[str, Tensor] | None = None,
    names: Mapping[str, str] | None = None,
) -> LossGraph:
    """Return the graph of losses of a network in training mode, and of what it computes of the first input in evaluation mode.

    Parameters with ``requires_grad`` are trained, running statistics are updated, other tensors are read. There is one loss for each
    kind of step. ``batch`` holds examples of at least two samples, ``shared`` of inputs that are the same for all samples, and ``names``
    the inputs of buffers that are not called by their own names.

    Raises:
        EdgeflError: an operation has no ONNX form (named), or a loss depends on how many samples there are.
    """
    shared = shared or {}
    roles = replace(_roles_of(network, names or {}), batch=tuple(batch), shared=tuple(shared))
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    values = [tensors[name].detach() for name in roles.tensors]
    outputs = (LOSS,) if len(losses) == 1 else tuple(f"{LOSS}.{i}" for i in range(len(losses)))
    module = _Traced(network, tuple(losses), roles)
    dimension = torch.export.Dim(BATCH, min=2)
    free = ([None] * len(values), [{0: dimension}] * len(batch), [None] * len(shared))
    failure = f"{type(network).__name__} cannot be trained in ONNX"
    with exportable(network):
        model = converted(
            module,
            (values, list(batch.values()), list(shared.values())),
            free,
            [*roles.tensors.values(), *batch, *shared],
            [*outputs, *(name + OUT for name in roles.statistics.values()), PREDICTION],
            failure,
        )
    _leave(model, {STEP_COUNT, LEARNING_RATE, BETA, SHARE})
    sizes = {value.name: value.shape for value in model.graph.inputs if value.name in batch}
    if fixed := [tuple(shape) for shape in sizes.values() if shape and isinstance(shape[0], int)]:
        raise EdgeflError(f"{failure}: its loss depends on how many samples there are: {fixed}")
    return LossGraph(fixed_reshapes(model), outputs, roles)


def _leave(model: ir.Model, names: set[str]) -> None:
    """Rename values that the exporter called by ``names``, as it calls a transpose ``t``: a training graph has inputs of these names."""
    for value in ir.convenience.create_value_mapping(model.graph).values():
        if value.name in names:
            value.name = f"{value.name}_"


def _roles_of(network: nn.Module, names: Mapping[str, str]) -> Roles:
    """Return the roles of a network's tensors that hold real numbers."""
    measured = {
        f"{layer}{'.' if layer else ''}{kind}"
        for layer, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        for kind in ("running_mean", "running_var")
    }
    trains = {name: parameter.requires_grad for name, parameter in network.named_parameters()}
    buffers = [name for name, buffer in network.named_buffers() if buffer.is_floating_point()]
    frozen = [*(name for name, own in trains.items() if not own), *(name for name in buffers if name not in measured)]
    called = Roles.of((), (), [names.get(name, name) for name in frozen]).frozen.values()
    known = Roles.of([name for name, own in trains.items() if own], [name for name in buffers if name in measured])
    return replace(known, frozen=dict(zip(frozen, called, strict=True)))


class _Whole(nn.Module):
    """A network together with its losses, so that its tensors can be exchanged for one call."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, loss: Loss | None, inputs: Sequence[Tensor]) -> Tensor:
        self.network.train(loss is not None)
        result: Tensor = self.network(inputs[0]) if loss is None else loss(self.network, *inputs)
        return result


class _Traced(nn.Module):
    """The module that is exported: (tensors, batch, shared) → losses, updated statistics, prediction."""

    def __init__(self, network: nn.Module, losses: tuple[Loss, ...], roles: Roles) -> None:
        super().__init__()
        self._whole = (_Whole(network),)  # in a tuple: its parameters are arguments, not this module's own
        self.losses, self.names, self.measured = losses, tuple(roles.tensors), tuple(roles.statistics)

    def forward(self, tensors: list[Tensor], batch: list[Tensor], shared: list[Tensor]) -> tuple[Tensor, ...]:
        given = {f"network.{name}": tensor for name, tensor in zip(self.names, tensors, strict=True)}
        (whole,) = self._whole
        # Counters and statistics are changed in place: in copies, or the export would change the network itself.
        given |= {
            f"network.{name}": buffer.clone() for name, buffer in whole.network.named_buffers() if f"network.{name}" not in given
        }
        after = {**given, **{f"network.{name}": given[f"network.{name}"].clone() for name in self.measured}}
        losses = [functional_call(whole, after, (loss, [*batch, *shared])) for loss in self.losses]
        prediction = functional_call(whole, given, (None, batch))
        return (*losses, *(after[f"network.{name}"] for name in self.measured), prediction)
