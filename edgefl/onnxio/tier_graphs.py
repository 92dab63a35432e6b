"""A tier's graphs with weights outside: its training steps, and its inference as trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import onnx
import onnx.numpy_helper
import torch

from edgefl.local.client import loss_of, shared_parameters
from edgefl.local.objective import Objective, anchors
from edgefl.local.onnx_training import StepGraphs
from edgefl.methods.base import Method
from edgefl.models.base import Architecture, Unfilled
from edgefl.onnxio.loss import LOGITS, LossGraph, loss_graph
from edgefl.onnxio.training import StepRule, part_graphs, training_graphs
from edgefl.records import Tier


@dataclass(frozen=True)
class TierGraphs:
    """What onnxruntime needs of a tier to train and to infer; weights come from elsewhere.

    Attributes:
        steps: training steps, and the names of tensors in them.
        predict: inputs x and tensors; output logits, of the network as trained, in evaluation mode.
    """

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
    return TierGraphs(StepGraphs(training_graphs(graph, rule), graph.roles), predict_graph(graph))


@lru_cache(maxsize=64)
def _exported(asked: _Asked) -> tuple[LossGraph, StepRule]:
    method, architecture, tier, objective = asked.method, asked.architecture, asked.tier, asked.objective
    with Unfilled():
        network = method.network(architecture, tier)
    names = shared_parameters(method, network)
    objective.attach(network, names, {}, {})
    decayed = set(method.decayed(network))
    rule = StepRule(asked.optimizer, asked.weight_decay, {name for name, p in network.named_parameters() if p in decayed})  # type: ignore[arg-type]
    loss = loss_of(method, objective, {})
    samples = architecture.samples(2)
    if samples.is_floating_point():
        samples = torch.zeros_like(samples)
    return loss_graph(network, loss, samples, architecture.classes, anchors(names), method.draws(tier)), rule


def with_weights(predict: bytes, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return an inference graph with the tensors inside that it has as inputs: ``arrays``, by the graph's names."""
    model = onnx.load_model_from_string(predict)
    given = [value for value in model.graph.input if value.name in arrays]
    for value in given:
        model.graph.input.remove(value)
        model.graph.initializer.append(onnx.numpy_helper.from_array(arrays[value.name], value.name))
    model.graph.name = "forward"
    return model.SerializeToString(deterministic=True)


def predict_graph(graph: LossGraph) -> bytes:
    """Return the part of a loss's graph that computes the logits."""
    model = graph.part([LOGITS])
    model.graph.name = "predict"
    return model.SerializeToString(deterministic=True)
