"""How clients train the networks of a method, and what a step costs then."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import nn

from edgefl.client.criterion import CROSS_ENTROPY, Criterion
from edgefl.client.loop import optimizer_of
from edgefl.client.loss import loss_of
from edgefl.client.objective import Objective
from edgefl.client.objectives import PLAIN
from edgefl.client.parts import shared_parameters
from edgefl.client.per_sample import StepNoise, noising
from edgefl.client.recompute.choice import segments_of
from edgefl.client.recompute.tape import recomputing
from edgefl.client.training import Training
from edgefl.cost.memory import Timeline
from edgefl.cost.table import cost_of, traced_step
from edgefl.cost.trace import Subject
from edgefl.methods.base import Method
from edgefl.models.base import Architecture, Unfilled
from edgefl.records import Batch, Cost, Tier


@dataclass(frozen=True)
class Practice:
    """How clients train the networks of ``method``, as far as costs depend on it."""

    method: Method
    architecture: Architecture
    training: Training
    objective: Objective = PLAIN
    criterion: Criterion = CROSS_ENTROPY

    @property
    def pass_size(self) -> int:
        """The samples of a forward and backward pass."""
        return min(self.training.micro_batch or self.training.batch_size, self.training.batch_size)

    def cost(
        self, build: Callable[[], nn.Module], sizes: tuple[int, int], deployed: Callable[[], nn.Module] | None = None
    ) -> Cost:
        """Return the cost of the network ``build()``; ``sizes`` are its payload's bytes down and up.

        ``deployed`` builds the network that a device runs, if it is another one.
        """
        steps = self.training
        return cost_of(self.subject(build, deployed), steps.batch_size, sizes, steps.micro_batch, steps.recompute)

    def timeline(self, build: Callable[[], nn.Module]) -> Timeline:
        """Return every moment of a training step of a network, with the bytes that are alive then."""
        return traced_step(self.subject(build), self.training.batch_size, self.pass_size)[1].timeline

    def recomputing(self, build: Callable[[], nn.Module]) -> Self:
        """Return the practice that computes activations again between the layers of ``build()`` where that should hold the least."""
        return replace(self, training=replace(self.training, recompute=segments_of(self.subject(build), self.pass_size)))

    def in_onnx(self, cost: Cost, tier: Tier) -> Cost:
        """Return the ``cost`` of a tier with the training memory of onnxruntime, which has second buffers of all that a step changes.

        What is not parameters, buffers and optimizer state counts as temporary, and no layer has a part of it. EdgeflError if the network
        has no training graph.
        """
        from edgefl.bundle.tier_graphs import rule_of, tier_graphs  # a second to import, and most runs train in torch
        from edgefl.client.onnx_memory import predicted_step_bytes

        parts, rule = cost.micro_batch < cost.batch_size, rule_of(self.training)
        graphs = tier_graphs(self.method, self.architecture, tier, rule, self.objective, parts, self.criterion).steps
        sample_bytes = cost.work.sample.input_bytes
        total = predicted_step_bytes(graphs, self.training.optimizer, sample_bytes, cost.batch_size, cost.micro_batch)
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

    def subject(self, build: Callable[[], nn.Module], deployed: Callable[[], nn.Module] | None = None) -> Subject:
        """Return what is traced: a step of the network ``build()``, and an inference of ``deployed()``."""
        method, training, objective, criterion = self.method, self.training, self.objective, self.criterion

        def batch(samples: int) -> Batch:
            targets = criterion.targets(samples * self.architecture.labels)
            return Batch(self.architecture.samples(samples), targets, criterion.present(self.architecture.classes))

        def unfilled(make: Callable[[], nn.Module]) -> nn.Module:
            with Unfilled():
                return make()

        def trained() -> nn.Module:
            network = unfilled(build)
            objective.attach(network, shared_parameters(method, network), {}, {})
            return network

        plain = build if deployed is None and objective.adds else deployed

        def optimizer(module: nn.Module) -> torch.optim.Optimizer:
            steps = optimizer_of(method, module, training)
            return steps if training.sample_clip is None else noising(steps, StepNoise(1.0), module, training.batch_size)

        loss = loss_of(method, objective, criterion, training.sample_clip)
        return Subject(
            build=trained,
            batch=batch,
            loss=recomputing(loss, training.recompute) if training.recompute else loss,
            optimizer=optimizer,
            deployed=None if plain is None else partial(unfilled, plain),
        )
