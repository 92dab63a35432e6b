"""The graphs of a tier that have weights as inputs: its training steps, and inference with its factors as trained."""

from dataclasses import dataclass

import onnx
import onnx.numpy_helper
import torch
from torch import nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.objective import Objective
from edgefl.client.step_facts import step_facts
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.models.base import Architecture, named_tensors, once_per_network
from edgefl.onnxgrad.graphs import LIMIT_BYTES
from edgefl.onnxgrad.roles import Roles, StepRule
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Tier
from edgefl.util.shelf import Shelf
from edgefl.wire.message import Blob, read_message, write_message


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
    from edgefl.bundle import tier_export  # torch's exporter takes a second to load, and stored graphs need none

    if not parts:
        return TierGraphs(*tier_export.step_graphs(architecture, *asked))
    plain = _recalled(architecture, asked, False)
    return TierGraphs(StepGraphs(plain.steps.steps, *tier_export.graphs_of_parts(architecture, *asked)), plain.predict)


def rule_of(training: Training) -> StepRule:
    """Return the optimizer of clients that train as ``training`` says."""
    return StepRule(training.optimizer, training.weight_decay, clip_norm=training.clip_gradient)


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
