"""A tier's graphs with weights outside: its training steps, and its inference as trained."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import onnx
import onnx.numpy_helper
import torch
from torch import nn

from edgefl.client.client import loss_of
from edgefl.client.objective import Objective, anchors
from edgefl.client.parts import shared_parameters
from edgefl.methods.base import Method
from edgefl.models.base import Architecture, Unfilled, named_tensors
from edgefl.onnxgrad.graphs import LIMIT_BYTES
from edgefl.onnxgrad.loss import Loss, LossGraph, loss_graph
from edgefl.onnxgrad.roles import PREDICTION
from edgefl.onnxgrad.step import StepRule, part_graphs, training_graphs
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.records import Batch, Tier


@dataclass(frozen=True)
class TierGraphs:
    """What onnxruntime needs of a tier to train and to infer (x and tensors → logits); weights come from elsewhere."""

    steps: StepGraphs
    predict: bytes


def tier_graphs(
    method: Method,
    architecture: Architecture,
    tier: Tier,
    optimizer: str,
    weight_decay: float,
    objective: Objective,
    parts: bool = False,
) -> TierGraphs:
    """Return the graphs of a tier's network under ``method``, with its own loss and the objective's term.

    They depend on no weight and no data: those of one configuration are made once and kept. ``parts`` adds those of a step in parts.

    Raises:
        EdgeflError: the network cannot be exported, or an operator has no gradient rule (named).
    """
    options = type(method).__name__, method.config.model_dump_json()
    return _made(_Asked(options, architecture, tier, optimizer, weight_decay, objective, method), parts)


@dataclass(frozen=True)
class _Asked:
    """What graphs depend on; a method's own options may hold tables, which have no hash."""

    options: tuple[str, str]
    architecture: Architecture
    tier: Tier
    optimizer: str
    weight_decay: float
    objective: Objective
    method: Method = field(compare=False)


@lru_cache(maxsize=64)
def _made(asked: _Asked, parts: bool) -> TierGraphs:
    graph, rule = _exported(asked)
    if parts:
        plain = _made(asked, False)
        return TierGraphs(StepGraphs(plain.steps.steps, graph.roles, *part_graphs(graph, rule)), plain.predict)
    predict = graph.part([PREDICTION], "predict").SerializeToString(deterministic=True)
    return TierGraphs(StepGraphs(training_graphs(graph, rule), graph.roles), predict)


@lru_cache(maxsize=64)
def _exported(asked: _Asked) -> tuple[LossGraph, StepRule]:
    method, architecture, tier, objective = asked.method, asked.architecture, asked.tier, asked.objective
    with Unfilled():
        network = method.network(architecture, tier)
    names = shared_parameters(method, network)
    objective.attach(network, names, {}, {})
    decayed = set(method.decayed(network))
    rule = StepRule(asked.optimizer, asked.weight_decay, {name for name, p in network.named_parameters() if p in decayed})  # type: ignore[arg-type]
    loss = loss_of(method, objective)

    def of_draw(draw: float | None) -> Loss:
        return lambda network, x, y, present: loss(network, Batch(x, y, present, draw))

    batch = {"x": torch.zeros_like(architecture.samples(2)), "y": torch.zeros(2, dtype=torch.int64)}
    shared = {"present": torch.ones(architecture.classes, dtype=torch.bool)}
    return loss_graph(network, [of_draw(draw) for draw in method.draws(tier)], batch, shared, anchors(names)), rule


def same_network(one: nn.Module, other: nn.Module) -> bool:
    """Whether two networks have the same layers with the same values."""
    kinds = [[(name, type(part)) for name, part in network.named_modules()] for network in (one, other)]
    first, second = named_tensors(one), named_tensors(other)
    return (
        kinds[0] == kinds[1] and first.keys() == second.keys() and all(torch.equal(t, second[name]) for name, t in first.items())
    )


def with_weights(graphs: TierGraphs, network: nn.Module) -> bytes | None:
    """Return the inference graph of a tier with the weights of ``network``, as trained, inside; None: they are more than a file holds."""
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
