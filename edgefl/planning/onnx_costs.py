"""The memory of a training step in onnxruntime, in place of torch's."""

from dataclasses import replace

from edgefl.bundle.tier_graphs import rule_of, tier_graphs
from edgefl.client.criterion import Criterion
from edgefl.client.objective import Objective
from edgefl.client.onnx_memory import predicted_step_bytes
from edgefl.client.training import Training
from edgefl.methods.base import Method
from edgefl.models.base import Architecture
from edgefl.records import Cost, Tier


def in_onnx(
    cost: Cost,
    method: Method,
    architecture: Architecture,
    tier: Tier,
    training: Training,
    objective: Objective,
    criterion: Criterion,
) -> Cost:
    """Return the cost of a tier with the training memory of onnxruntime, which has second buffers of all that a step changes.

    What is not parameters, buffers and optimizer state counts as temporary, and no layer has a part of it. EdgeflError if the network has
    no training graph.
    """
    parts = cost.micro_batch < cost.batch_size
    graphs = tier_graphs(method, architecture, tier, rule_of(training), objective, parts, criterion).steps
    sample_bytes = cost.work.sample.input_bytes
    total = predicted_step_bytes(graphs, training.optimizer, sample_bytes, cost.batch_size, cost.micro_batch)
    rest = total - cost.parameter_bytes - cost.buffer_bytes - cost.optimizer_bytes
    return replace(
        cost,
        training_memory_bytes=total,
        peak_activation_bytes_training=rest - cost.parameter_bytes - cost.optimizer_bytes,
        peak_gradient_bytes=0,
        peak_saved_bytes=0,
        peak_temporary_bytes=rest,
        peak_layer_training="",
        layers=tuple(replace(row, saved_bytes_at_peak=0, temporary_bytes_at_peak=0) for row in cost.layers),
    )
