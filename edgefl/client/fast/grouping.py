"""Several clients of a tier trained together: their tensors are stacked, and one operation takes a step of all of them.

A convolution of k clients is one convolution in k groups, a linear layer one batched product. Each client computes what it would compute
alone, except for the order of sums. Clients with fewer samples leave the stack when they are done, and batches of different sizes run
separately: nothing is padded, so that no loss or normalisation sees samples that do not exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from edgefl.client.fast.capture import CaptureError, Flat, Inputs, Take, Whole, capture, gradient_of, laid_out
from edgefl.client.fast.gradients import Captures
from edgefl.client.loop import LocalTraining, batches
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.training import Training
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.records import Batch

Stack = Mapping[str, Tensor]
_CLOSE = 1e-3


def train_together(
    clients: Sequence[LocalTraining], stack: Stack, decayed: frozenset[str], captures: Captures
) -> list[tuple[float, int]]:
    """Train clients in place on their samples; return for each the mean loss of its last epoch and its steps.

    Those with the most samples come first; they have one network, whose own tensors are not touched, without micro-batches. ``stack`` is
    name of a parameter or buffer → those of all, (clients, …). Steps that cannot be captured together are taken one client after the other.
    """
    module, training = clients[0].module, clients[0].training
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    alone = [gradient_of(module, one.loss, trained) for one in clients]
    together = gradients_of(module, clients[0].loss, trained)
    optimizer = FusedOptimizer(training, {name: stack[name] for name in trained}, decayed, len(clients))
    values: list[list[tuple[Tensor, int]]] = [[] for _ in clients]
    for rows, x, y in _steps(clients):
        tensors = {name: tensor[rows] for name, tensor in stack.items()}
        present = torch.stack([one.present for one in clients[rows]])
        inputs = Inputs(tensors, Batch(x, y, present))
        # Each size of a last batch would need a capture of its own. Whole batches, and last ones of equal shards, come again.
        often = x.shape[1] == training.batch_size or len(x) == len(clients)
        found = _taken(inputs, alone[rows], together if often else None, captures)
        optimizer.apply(dict(zip(trained, found[1:], strict=True)), rows)
        losses = found[0]
        assert losses is not None
        for client, value in enumerate(losses.unbind(), rows.start):
            values[client].append((value, x.shape[1]))
    return [_mean(of, training, len(one.y)) for of, one in zip(values, clients, strict=True)]


def _taken(inputs: Inputs, alone: Sequence[Take], together: Take | None, captures: Captures) -> Flat:
    """Return the losses and gradients of a step of several clients, computed ``together`` if possible, else by each client's ``alone``.

    A capture reads nothing but its inputs, so it never uses one client's own loss for another client.
    """
    if len(alone) > 1 and together is not None:
        with contextlib.suppress(CaptureError):
            return captures.known("together", inputs, partial(captured_together, together, inputs, alone[0]))(inputs)
    rows = [inputs.like(part[row] for part in inputs.flat()) for row in range(len(alone))]
    found = [(captures.of("one of several", take, row) or take)(row) for take, row in zip(alone, rows, strict=True)]
    return [None if parts[0] is None else torch.stack([p for p in parts if p is not None]) for parts in zip(*found, strict=True)]


def gradients_of(module: nn.Module, loss: Loss, trained: Sequence[str]) -> Take:
    """Return a function that computes losses and gradients of several clients: all inputs have a leading dimension of clients."""
    whole = Whole(module, loss)

    def one(leaves: Mapping[str, Tensor], rest: Mapping[str, Tensor], x: Tensor, y: Tensor, present: Tensor | None) -> Tensor:
        tensors = {f"inner.{name}": tensor for name, tensor in {**leaves, **rest}.items()}
        value: Tensor = functional_call(whole, tensors, (Batch(x, y, present),))
        return value

    several = vmap(grad_and_value(one))

    def take(inputs: Inputs) -> Flat:
        leaves = {name: inputs.tensors[name] for name in trained}
        rest = {name: tensor for name, tensor in inputs.tensors.items() if name not in leaves}
        with uncompiled():
            gradients, values = several(leaves, rest, inputs.batch.x, inputs.batch.y, inputs.batch.present)
        return [values.detach(), *(laid_out(gradients[name].detach(), leaves[name]) for name in trained)]

    return take


def captured_together(together: Take, inputs: Inputs, alone: Take) -> Take:
    """Return ``together`` captured; CaptureError if it cannot be, or if its first step differs from that of a client alone."""
    taken = capture(together, inputs)
    expected = alone(inputs.like(part[0].clone() for part in inputs.flat()))
    for a, b in zip(taken(inputs.copied()), expected, strict=True):
        if a is None or b is None or not torch.allclose(a[0], b, rtol=_CLOSE, atol=_CLOSE * float(b.abs().max()), equal_nan=True):
            raise CaptureError("clients together do not compute what each computes alone")
    return taken


def _steps(clients: Sequence[LocalTraining]) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield the rows of the stack, samples and labels of every step: neighbours with batches of one size share it."""
    orders = list(map(_order, clients))
    for step in range(max(map(len, orders))):
        sizes = [len(order[step]) for order in orders if step < len(order)]
        start = 0
        for _, run in groupby(sizes):
            rows = slice(start, start := start + len(list(run)))
            index = [order[step] for order in orders[rows]]
            x = torch.stack([one.x[part] for one, part in zip(clients[rows], index, strict=True)])
            y = torch.stack([one.y[part] for one, part in zip(clients[rows], index, strict=True)])
            yield rows, x, y


def _order(one: LocalTraining) -> list[Tensor]:
    epochs, size = one.training.epochs, one.training.batch_size
    return [index.to(one.y.device) for _ in range(epochs) for index in batches(len(one.y), size, one.rng)]


def _mean(values: Sequence[tuple[Tensor, int]], training: Training, count: int) -> tuple[float, int]:
    last = values[len(values) - len(values) // training.epochs :]
    return sum(value.item() * samples for value, samples in last) / count, len(values)
