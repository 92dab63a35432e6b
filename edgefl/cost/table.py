"""A tier's row of costs, from one fake training step and one fake inference: nothing is computed, no large tensor allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from edgefl.cost.macs import MacCounter
from edgefl.cost.memory import LivenessMeter, bytes_of, optimizer_tensors
from edgefl.records import Batch, Cost

Build = Callable[[], nn.Module]
Loss = Callable[[nn.Module, Batch], Tensor]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


@dataclass(frozen=True)
class StepTrace:
    """What one training step does: MACs by phase, and bytes by kind."""

    macs_forward: int
    macs_backward: int
    peak_activation_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    uncounted_ops: frozenset[str]


def cost_of(
    build: Build,
    loss: Loss,
    optimizer: MakeOptimizer,
    input_shape: tuple[int, ...],
    classes: int,
    batch_size: int,
    payload_bytes: tuple[int, int],
) -> Cost:
    """Return the cost of a network at ``batch_size``.

    Args:
        build: makes the network; its weights are never filled in.
        loss: the client's objective, the method's regularisers included.
        optimizer: makes the optimizer that a client steps with.
        input_shape: one sample's shape.
        classes: number of labels.
        batch_size: samples of a full training step and of an inference.
        payload_bytes: serialised bytes down and up.

    MACs that grow with the batch are per sample; the rest, work on the weights alone, is ``macs_compose``: two traces tell them apart.
    """
    shape = (input_shape, classes)
    step, next_step = (trace_step(build, loss, optimizer, *shape, size) for size in (batch_size, batch_size + 1))
    forward = next_step.macs_forward - step.macs_forward
    backward = next_step.macs_backward - step.macs_backward
    inference_bytes, uncounted = trace_inference(build, input_shape, batch_size)
    with torch.device("meta"):
        parameters = list(build().parameters())
    return Cost(
        batch_size=batch_size,
        params=sum(p.numel() for p in parameters),
        macs_forward=forward,
        macs_backward=backward,
        macs_compose=step.macs_forward + step.macs_backward - batch_size * (forward + backward),
        peak_activation_bytes_inference=inference_bytes,
        peak_activation_bytes_training=step.peak_activation_bytes,
        parameter_bytes=bytes_of(parameters),
        gradient_bytes=step.gradient_bytes,
        optimizer_bytes=step.optimizer_bytes,
        download_bytes=payload_bytes[0],
        upload_bytes=payload_bytes[1],
        uncounted_ops=tuple(sorted(step.uncounted_ops | uncounted)),
    )


def trace_step(
    build: Build, loss: Loss, optimizer: MakeOptimizer, input_shape: tuple[int, ...], classes: int, batch_size: int
) -> StepTrace:
    """Run forward, backward and update on fake tensors and return what was counted."""
    counter = MacCounter()
    with FakeTensorMode():
        module = build().train()
        stepper = optimizer(module)
        present = torch.ones(classes, dtype=torch.bool)
        with LivenessMeter(counter) as meter:
            batch = Batch(torch.empty(batch_size, *input_shape), torch.zeros(batch_size, dtype=torch.int64), present)
            value = loss(module, batch)
            counter.phase = "backward"
            value.backward()
            counter.phase = "update"
            stepper.step()
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        state = optimizer_tensors(stepper)
        return StepTrace(
            macs_forward=counter.macs["forward"],
            macs_backward=counter.macs["backward"],
            peak_activation_bytes=meter.peak_bytes(without=meter.numbers([*gradients, *state])),
            gradient_bytes=bytes_of(gradients),
            optimizer_bytes=bytes_of(state),
            uncounted_ops=frozenset(counter.uncounted),
        )


def trace_inference(build: Build, input_shape: tuple[int, ...], batch_size: int) -> tuple[int, frozenset[str]]:
    """Return the peak bytes of activations of an inference, its input and output included, and operations in no table."""
    counter = MacCounter()
    with FakeTensorMode(), torch.no_grad():
        module = build().eval()
        with LivenessMeter(counter) as meter:
            x = torch.empty(batch_size, *input_shape)
            logits = module(x)
        del logits
        return meter.peak_bytes(), frozenset(counter.uncounted)
