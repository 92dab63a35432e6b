"""What a client minimises, as an ONNX graph whose weights are inputs: the forward half of a training graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn
from torch.func import functional_call

from edgefl.errors import EdgeflError
from edgefl.models.base import named_tensors
from edgefl.onnxgrad.batch import drop_unread, fixed_reshapes
from edgefl.onnxgrad.batch_statistics import exportable
from edgefl.onnxgrad.export import OPSET, exporting, reason_of, strip
from edgefl.onnxgrad.graphs import dims_of, graphs_in
from edgefl.records import Batch

Loss = Callable[[nn.Module, Batch], Tensor]
Roles = dict[str, str]
LOGITS = "logits"
STEP_NAMES = frozenset({"t", "lr", "beta", "share"})
"""Inputs that a training graph has besides those of the loss."""
OUT = ".out"
"""What an updated tensor's output is called after its input."""


@dataclass(frozen=True)
class LossGraph:
    """A network's losses and its logits as one graph.

    Attributes:
        model: inputs x, y, present and every tensor under its role's name; outputs ``losses``, ``logits``, and updated statistics.
        losses: names of the losses, one for each equally likely kind of step.
        roles: name of a tensor in the network → its name in the graph: p. trained, s. running statistics, f. read only.
    """

    model: onnx.ModelProto
    losses: tuple[str, ...]
    roles: Roles

    def part(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """Return the part of the graph that computes ``outputs``, with the inputs that it reads; without ``outputs``, the inputs alone."""
        part = onnx.ModelProto()
        part.CopyFrom(self.model)
        kept = [value for value in part.graph.output if value.name in outputs]
        part.graph.ClearField("output")
        part.graph.output.extend(kept)
        drop_unread(part.graph)
        read = {name for node in part.graph.node for name in node.input}
        inputs = [value for value in part.graph.input if value.name in read or not outputs]
        part.graph.ClearField("input")
        part.graph.input.extend(inputs)
        domains = {node.domain for node in part.graph.node} | {""}
        opsets = [opset for opset in part.opset_import if opset.domain in domains]
        part.ClearField("opset_import")
        part.opset_import.extend(opsets)
        return part


def loss_graph(
    network: nn.Module,
    loss: Loss,
    samples: Tensor,
    classes: int,
    names: Mapping[str, str] | None = None,
    draws: Sequence[float | None] = (None,),
) -> LossGraph:
    """Return the graph of ``loss`` of a network in training mode, and of its logits in evaluation mode.

    Args:
        network: its parameters with ``requires_grad`` are trained, running statistics are updated, all else is read; values do not matter.
        loss: network, batch → scalar.
        samples: (2, …) of the type that the network takes.
        classes: number of labels.
        names: buffer → what the graph calls it, instead of its own name.
        draws: the values of :attr:`edgefl.records.Batch.draw` to follow, one for each kind of step.

    Raises:
        EdgeflError: an operation has no ONNX form (named).
    """
    roles = _roles(network, names or {})
    tensors = named_tensors(network)
    values = [tensors[name].detach() for name in roles]
    batch = torch.export.Dim("batch", min=2)
    statistics = [role for role in roles.values() if role.startswith("s.")]
    losses = tuple("loss" if len(draws) == 1 else f"loss.{i}" for i in range(len(draws)))
    traced = _Traced(network, loss, tuple(roles), [name for name in roles if roles[name].startswith("s.")], tuple(draws))
    with exportable(network), exporting():
        try:
            program = torch.onnx.export(
                traced,
                (values, samples, torch.zeros(len(samples), dtype=torch.int64), torch.ones(classes, dtype=torch.bool)),
                dynamo=True,
                input_names=[*roles.values(), "x", "y", "present"],
                output_names=[*losses, *(role + OUT for role in statistics), LOGITS],
                dynamic_shapes=([None] * len(values), {0: batch}, {0: batch}, None),
                opset_version=OPSET,
                optimize=True,
                verbose=False,
            )
        except Exception as error:  # the exporter raises many kinds, each with its own chain of causes
            raise EdgeflError(f"{type(network).__name__} cannot be trained in ONNX: {reason_of(error)}") from error
    if program is None:
        raise EdgeflError("torch.onnx.export returned no program; torch 2.8 or newer is needed")
    model = program.model_proto
    strip(model, "step")
    _leave(model, STEP_NAMES)
    if fixed := [
        dims_of(value) for value in model.graph.input if value.name in ("x", "y") and isinstance(dims_of(value)[0], int)
    ]:
        raise EdgeflError(
            f"{type(network).__name__} cannot be trained in ONNX: its loss depends on how many samples there are: {fixed}"
        )
    return LossGraph(fixed_reshapes(model), losses, roles)


def _leave(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Rename what the exporter called by ``names``, as it calls a transpose ``t``: inputs of a training graph have them."""
    for graph in graphs_in(model.graph):
        lists = [names_of for node in graph.node for names_of in (node.input, node.output)]
        for of in lists:
            of[:] = [f"{name}_" if name in names else name for name in of]
        for value in (*graph.initializer, *graph.value_info):
            value.name = f"{value.name}_" if value.name in names else value.name


def _roles(network: nn.Module, names: Mapping[str, str]) -> Roles:
    """Return what the graph calls the tensors of a network that are numbers, in the network's order."""
    roles = {name: ("p." if p.requires_grad else "f.") + name for name, p in network.named_parameters()}
    measured = {
        f"{layer}{'.' if layer else ''}{kind}"
        for layer, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
        for kind in ("running_mean", "running_var")
    }
    for name, buffer in network.named_buffers():
        if buffer.is_floating_point():
            roles[name] = ("s." if name in measured else "f.") + names.get(name, name)
    return roles


class _Whole(nn.Module):
    """A network with what is to be computed of it, so that its tensors can be exchanged for one call."""

    def __init__(self, network: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, batch: Batch | None, x: Tensor) -> Tensor:
        self.network.train(batch is not None)
        result: Tensor = self.network(x) if batch is None else self.loss(self.network, batch)
        return result


class _Traced(nn.Module):
    """What is exported: tensors, x, y and present as arguments, losses, statistics and logits as results."""

    def __init__(
        self, network: nn.Module, loss: Loss, names: Sequence[str], measured: Sequence[str], draws: Sequence[float | None]
    ) -> None:
        super().__init__()
        self._whole = (_Whole(network, loss),)  # in a tuple: its parameters are arguments, not this module's own
        self.names, self.measured, self.draws = tuple(names), tuple(measured), tuple(draws)

    def forward(self, tensors: list[Tensor], x: Tensor, y: Tensor, present: Tensor) -> tuple[Tensor, ...]:
        given = {f"network.{name}": tensor for name, tensor in zip(self.names, tensors, strict=True)}
        (whole,) = self._whole
        # Counters and statistics are changed in place: in copies, or the export would change the network itself.
        given |= {
            f"network.{name}": buffer.clone() for name, buffer in whole.network.named_buffers() if f"network.{name}" not in given
        }
        after = {**given, **{f"network.{name}": given[f"network.{name}"].clone() for name in self.measured}}
        losses = [functional_call(whole, after, (Batch(x, y, present, draw), x)) for draw in self.draws]
        logits = functional_call(whole, given, (None, x))
        return (*losses, *(after[f"network.{name}"] for name in self.measured), logits)
