"""Exports a tier's network and makes its training graphs; :mod:`edgefl.bundle.tier_graphs` asks for those that are not stored."""

from dataclasses import dataclass, replace
from functools import partial

import onnx
import onnx.checker
import onnx.shape_inference
import torch
from torch import Tensor, nn

from edgefl.client.criterion import Criterion
from edgefl.client.loss import loss_of
from edgefl.client.objective import Objective, anchors
from edgefl.client.parts import shared_parameters
from edgefl.errors import EdgeflError, first_line
from edgefl.methods.base import Method
from edgefl.methods.capabilities import draws
from edgefl.methods.penalties import decayed
from edgefl.models.base import Architecture, Unfilled, once_per_network
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.gradients.own import standard
from edgefl.onnxgrad.graphs import check
from edgefl.onnxgrad.loss import Loss, LossGraph, endless, loss_graph
from edgefl.onnxgrad.roles import PREDICTION, Roles, StepRule
from edgefl.onnxgrad.step import part_graphs, training_graphs
from edgefl.onnxgrad.step_check import check_step
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Batch, Tier
from edgefl.util.fields import each

_TRACED = 4
"""Samples of the traced batch. Half of them, which some losses take, must not be one: torch takes a size of one for a constant."""


def step_graphs(
    architecture: Architecture, method: Method, tier: Tier, rule: StepRule, objective: Objective, criterion: Criterion
) -> tuple[StepGraphs, bytes]:
    """Return the training graphs of a tier, which were compared with torch, and its inference graph.

    Raises:
        EdgeflError: the network cannot be exported; names the operation.
        InputError: an operator has no gradient rule; names operator and node.
    """
    exported = _exported(architecture, method, tier, rule, objective, criterion)
    inference = standard(exported.graph.part([PREDICTION], "predict"))
    try:
        check(inference)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise EdgeflError(f"{type(exported.network).__name__} does not export to a valid graph: {first_line(error)}") from error
    steps = StepGraphs(training_graphs(exported.graph, exported.rule), exported.graph.roles)
    exported.check(steps, architecture, criterion)
    return steps, inference.SerializeToString(deterministic=True)


def graphs_of_parts(
    architecture: Architecture, method: Method, tier: Tier, rule: StepRule, objective: Objective, criterion: Criterion
) -> tuple[Roles, tuple[bytes, ...], bytes]:
    """Return the roles of a tier's values, and the graphs of a batch that is taken in parts: its passes and its update."""
    exported = _exported(architecture, method, tier, rule, objective, criterion)
    return exported.graph.roles, *part_graphs(exported.graph, exported.rule)


@dataclass(frozen=True)
class _Exported:
    """The losses of a tier as a graph, and what it was exported from."""

    graph: LossGraph
    rule: StepRule
    network: nn.Module
    losses: tuple[Loss, ...]

    def check(self, steps: StepGraphs, architecture: Architecture, criterion: Criterion) -> None:
        """Compare the training graphs with torch on drawn samples; EdgeflError if one differs."""
        random = torch.Generator().manual_seed(0)
        x = each(partial(_valued, random=random), architecture.samples(4), architecture.specs)
        y = criterion.drawn(4, architecture.classes, random)
        batch, shared = {"x": x, "y": y}, _shared(architecture, criterion)
        check_step(steps, self.network, self.losses, batch, shared, self.rule, self.graph)


def _valued(x: Tensor, spec: InputSpec, random: torch.Generator) -> Tensor:
    """Return samples like ``x`` with normal values, or with ids of ``spec``; of ids 0 and 1, a mask, no sample is empty."""
    if x.is_floating_point():
        return torch.randn(x.shape, generator=random)
    if spec.span is not None:
        least, largest = (torch.as_tensor(bound, dtype=torch.int64) for bound in spec.span)  # 0 to 255 has 256 ids
        x = least + torch.randint(1 << 62, x.shape, generator=random) % (largest - least + 1)
    elif spec.below:
        x = torch.randint(spec.below, x.shape, generator=random)
    if spec.below == 2:
        x[..., 0] = 1
    return x


def _shared(architecture: Architecture, criterion: Criterion) -> dict[str, torch.Tensor]:
    present = criterion.present(architecture.classes)
    return {} if present is None else {"present": present}


@once_per_network
def _exported(
    architecture: Architecture,
    method: Method,
    tier: Tier,
    rule: StepRule,
    objective: Objective,
    criterion: Criterion,
) -> _Exported:
    if why := method.lacks.get("fresh_momentum"):
        raise EdgeflError(f"{type(method).title} has no training graphs: {why}")
    with Unfilled():
        network = method.network(architecture, tier)
    network = _begun(method, architecture, tier) if endless(network) else _filled(network)
    buffers, names = {name for name, _ in network.named_buffers()}, shared_parameters(method, network)
    objective.attach(network, names, {}, {})
    those = set(decayed(method, network))
    rule = replace(rule, decayed={name for name, p in network.named_parameters() if p in those})
    loss = loss_of(method, objective, criterion)

    def of_draw(draw: float | None) -> Loss:
        return lambda network, x, y, present=None: loss(network, Batch(x, y, present, draw))

    network.train()  # clients do the same before they train
    batch = {"x": each(torch.zeros_like, architecture.samples(_TRACED)), "y": criterion.targets(_TRACED)}
    losses = tuple(of_draw(draw) for draw in draws(method, tier))
    graph = loss_graph(network, losses, batch, _shared(architecture, criterion), anchors(names))
    if not buffers.isdisjoint(graph.constants):  # they may follow from the initial weights, which it was made without
        network = _begun(method, architecture, tier)
        objective.attach(network, names, {}, {})
    return _Exported(graph, rule, network, losses)


def _begun(method: Method, architecture: Architecture, tier: Tier) -> nn.Module:
    """Return the network with buffers that follow from initial weights, and then parameters as :func:`_filled` draws them."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return _filled(method.network(architecture, tier))


def _filled(network: nn.Module) -> nn.Module:
    """Draw the parameters of a network, whose initialisation may have been skipped: a step from them is compared with torch."""
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            bound = (3 / max(1, parameter[0].numel())) ** 0.5 if parameter.dim() > 1 else 1.0
            parameter.uniform_(-bound, bound, generator=random)
    return network
