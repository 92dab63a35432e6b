"""The graphs of a tier that have weights as inputs: its training steps, and inference with its factors as trained."""

from dataclasses import dataclass, replace
from functools import partial

import onnx
import onnx.checker
import onnx.numpy_helper
import onnx.shape_inference
import torch
from torch import Tensor, nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.loss import loss_of
from edgefl.client.objective import Objective, anchors
from edgefl.client.parts import shared_parameters
from edgefl.client.step_facts import step_facts
from edgefl.client.training import Training
from edgefl.errors import EdgeflError, first_line
from edgefl.methods.base import Method
from edgefl.methods.capabilities import draws
from edgefl.methods.penalties import decayed
from edgefl.models.base import Architecture, Unfilled, named_tensors, once_per_network
from edgefl.models.input_spec import InputSpec
from edgefl.onnxgrad.gradients.own import standard
from edgefl.onnxgrad.graphs import LIMIT_BYTES, check
from edgefl.onnxgrad.loss import Loss, LossGraph, endless, loss_graph
from edgefl.onnxgrad.roles import PREDICTION, Roles
from edgefl.onnxgrad.step import part_graphs, training_graphs
from edgefl.onnxgrad.step_check import check_step
from edgefl.onnxgrad.step_rule import StepRule
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Batch, Tier
from edgefl.util.fields import each
from edgefl.util.shelf import Shelf
from edgefl.wire.message import Blob, read_message, write_message

_TRACED = 4
"""Samples of the traced batch. Half of them, which some losses take, must not be one: torch takes a size of one for a constant."""


@dataclass(frozen=True)
class TierGraphs:
    """The training graphs of a tier, and its inference graph: ``x`` (n, …) and the weights → ``logits`` (n, classes).

    Of several inputs, ``x.NAME`` (n, …) take the place of ``x``.
    """

    steps: StepGraphs
    predict: bytes


def _to_bytes(graphs: TierGraphs) -> bytes:
    steps = graphs.steps
    files = [Blob(file) for file in (*steps.steps, *steps.passes, steps.update, graphs.predict)]
    fields = {"steps": len(steps.steps), "roles": steps.roles, "files": [file.digest for file in files]}
    return write_message("graphs", fields, files)


def _of_bytes(content: bytes) -> TierGraphs:
    fields, blobs = read_message(content, "graphs")
    *files, update, predict = (blobs[digest] for digest in fields["files"])
    steps, passes = tuple(files[: fields["steps"]]), tuple(files[fields["steps"] :])
    return TierGraphs(StepGraphs(steps, Roles.read(fields["roles"]), passes, update), predict)


_GRAPHS = Shelf[TierGraphs]("graphs", _to_bytes, _of_bytes)


def tier_graphs(
    method: Method,
    architecture: Architecture,
    tier: Tier,
    rule: StepRule,
    objective: Objective,
    parts: bool = False,
    criterion: Criterion = CROSS_ENTROPY,
) -> TierGraphs:
    """Return the graphs of a tier's network, with the loss of ``method`` and ``criterion``, and the term of ``objective``.

    ``rule`` is the optimizer; weight decay acts on what the method decays. Graphs depend on no weight and no data. They are made once for
    each configuration and cached. ``parts`` adds the graphs for batches that are taken in parts.

    Raises:
        EdgeflError: the network cannot be exported; names the operation.
        InputError: an operator has no gradient rule; names operator and node.
    """
    return _recalled(architecture, (method, tier, rule, objective, criterion), parts)


@once_per_network
def _recalled(architecture: Architecture, asked: tuple[Method, Tier, StepRule, Objective, Criterion], parts: bool) -> TierGraphs:
    method, tier, rule, objective, criterion = asked
    facts = step_facts(architecture, method, tier, objective, criterion, rule=vars(rule), parts=parts)
    return _GRAPHS.recalled(facts, lambda: _made(architecture, asked, parts))


def _made(architecture: Architecture, asked: tuple[Method, Tier, StepRule, Objective, Criterion], parts: bool) -> TierGraphs:
    exported = _exported(architecture, *asked)
    graph, rule = exported.graph, exported.rule
    if parts:
        plain = _recalled(architecture, asked, False)
        return TierGraphs(StepGraphs(plain.steps.steps, graph.roles, *part_graphs(graph, rule)), plain.predict)
    inference = standard(graph.part([PREDICTION], "predict"))
    try:
        check(inference)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise EdgeflError(f"{type(exported.network).__name__} does not export to a valid graph: {first_line(error)}") from error
    predict = inference.SerializeToString(deterministic=True)
    steps = StepGraphs(training_graphs(graph, rule), graph.roles)
    exported.check(steps, architecture, asked[-1])
    return TierGraphs(steps, predict)


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


def rule_of(training: Training) -> StepRule:
    """Return the optimizer of clients that train as ``training`` says."""
    return StepRule(training.optimizer, training.weight_decay, clip_norm=training.clip_gradient)


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
    with Unfilled():
        network = method.network(architecture, tier)
    network = _begun(method, architecture, tier) if endless(network) else _filled(network)
    own, names = {name for name, _ in network.named_buffers()}, shared_parameters(method, network)
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
    if not own.isdisjoint(graph.constants):  # they may follow from the initial weights, which it was made without
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


def same_network(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have the same layers with the same values."""
    kinds = [[(name, type(part)) for name, part in network.named_modules()] for network in (one, other)]
    first, second = named_tensors(one), named_tensors(other)
    return (
        kinds[0] == kinds[1] and first.keys() == second.keys() and all(torch.equal(t, second[name]) for name, t in first.items())
    )


def with_weights(graphs: TierGraphs, network: nn.Module) -> bytes | None:
    """Return the inference graph of a tier with the weights of ``network`` inside; None if the weights are larger than 1 GiB."""
    tensors = named_tensors(network)
    if sum(tensor.nbytes for tensor in tensors.values()) > LIMIT_BYTES // 2:
        return None
    arrays = {role: tensors[name].detach().numpy() for name, role in graphs.steps.roles.tensors.items() if name in tensors}
    model = onnx.load_model_from_string(graphs.predict)
    for value in [value for value in model.graph.input if value.name in arrays]:
        model.graph.input.remove(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(arrays[value.name], value.name))
    model.graph.name = "forward"
    return model.SerializeToString(deterministic=True)
