"""Several clients of a tier trained together: their tensors are stacked, and one operation takes a step of all of them.

A convolution of k clients becomes one convolution in k groups, a linear layer one batched product. Each client computes what it would
compute alone, except for the order of sums. Nothing is padded, so no loss or normalisation sees samples that do not exist. Clients leave
the stack after their last step, and batches of different sizes run separately.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from edgefl.client.fast.capture import CaptureError, Flat, Inputs, Take, Whole, capture, computed, gradient_of, laid_out
from edgefl.client.fast.gradients import Captures
from edgefl.client.loop import LocalTraining
from edgefl.client.optimizer import FusedOptimizer
from edgefl.client.training import Training
from edgefl.cost.trace import Loss
from edgefl.cost.uncompiled import uncompiled
from edgefl.methods.momenta import momenta_of, momentum_name
from edgefl.records import Batch
from edgefl.util.fields import Fields, each

Stack = Mapping[str, Tensor]
_CLOSE = 1e-3


def train_together(
    clients: Sequence[LocalTraining], stack: Stack, decayed: frozenset[str], captures: Captures
) -> list[tuple[float, int]]:
    """Train clients of one network together; return for each the mean loss of its last epoch and its number of steps.

    Steps that cannot be captured together are taken one client after the other.

    Args:
        clients: those with the most samples first, without micro-batches. They share one module, whose own tensors are not used.
        stack: name of a parameter or buffer → the tensors of all clients, (clients, …), which are trained in place.
        decayed: names of the parameters that weight decay acts on.
        captures: of this process, for this network.
    """
    module, training = clients[0].module, clients[0].training
    trained = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    alone = [gradient_of(module, client.loss, trained) for client in clients]
    together = gradients_of(module, clients[0].loss, trained)
    momenta = {name: stack[momentum_name(name)] for name in momenta_of(module)}
    optimizer = FusedOptimizer(training, {name: stack[name] for name in trained}, decayed, len(clients), momenta)
    values: list[list[tuple[Tensor, int]]] = [[] for _ in clients]
    for rows, x, y in _steps(clients):
        tensors = {name: tensor[rows] for name, tensor in stack.items()}
        masks = [client.present for client in clients[rows] if client.present is not None]
        present = torch.stack(masks) if masks else None
        inputs = Inputs(tensors, Batch(x, y, present))
        # A capture fits one batch size: only whole batches, and last batches of equal shards, are frequent enough.
        often = y.shape[1] == training.batch_size or len(y) == len(clients)
        losses, *gradients = _taken(inputs, alone[rows], together if often else None, captures)
        optimizer.apply(dict(zip(trained, gradients, strict=True)), rows)
        assert losses is not None
        for number, value in enumerate(losses.unbind(), rows.start):
            values[number].append((value, y.shape[1]))
    return [_mean(losses_of, training, len(client.y)) for losses_of, client in zip(values, clients, strict=True)]


def _taken(inputs: Inputs, alone: Sequence[Take], together: Take | None, captures: Captures) -> Flat:
    """Return the losses and gradients of a step of several clients, computed ``together`` if possible, else by each client's ``alone``.

    A capture reads its inputs only, so that a capture of one client's loss serves all clients.
    """
    if len(alone) > 1 and together is not None:
        captured = captures.of("together", together, inputs, 1, partial(captured_together, alone[0]))
        if captured is not None:
            return captured(inputs)
    rows = [inputs.like(part[row] for part in inputs.flat()) for row in range(len(alone))]
    taken = [(captures.of("one of several", take, row) or take)(row) for take, row in zip(alone, rows, strict=True)]
    return [None if parts[0] is None else torch.stack([p for p in parts if p is not None]) for parts in zip(*taken, strict=True)]


def gradients_of(module: nn.Module, loss: Loss, trained: Sequence[str]) -> Take:
    """Return a function that computes losses and gradients of several clients; all inputs and results are (clients, …)."""
    whole = Whole(module, loss)

    def one(
        leaves: Mapping[str, Tensor], rest: Mapping[str, Tensor], x: Fields[Tensor], y: Tensor, present: Tensor | None
    ) -> Tensor:
        value: Tensor = computed(whole, {**leaves, **rest}, Batch(x, y, present))
        return value

    several = vmap(grad_and_value(one))

    def take(inputs: Inputs) -> Flat:
        leaves = {name: inputs.tensors[name] for name in trained}
        rest = {name: tensor for name, tensor in inputs.tensors.items() if name not in leaves}
        with uncompiled():
            gradients, values = several(leaves, rest, inputs.batch.x, inputs.batch.y, inputs.batch.present)
        return [values.detach(), *(laid_out(gradients[name].detach(), leaves[name]) for name in trained)]

    return take


def captured_together(alone: Take, together: Take, inputs: Inputs) -> Take:
    """Return ``together`` captured; raise :class:`CaptureError` if that fails, or if the first client's step differs from ``alone``."""
    taken = capture(together, inputs)
    expected = alone(inputs.like(part[0].clone() for part in inputs.flat()))
    for a, b in zip(taken(inputs.copied()), expected, strict=True):
        if a is None or b is None or not torch.allclose(a[0], b, rtol=_CLOSE, atol=_CLOSE * float(b.abs().max()), equal_nan=True):
            raise CaptureError("clients together do not compute what each computes alone")
    return taken


def _steps(clients: Sequence[LocalTraining]) -> Iterator[tuple[slice, Fields[Tensor], Tensor]]:
    """Yield each step's rows of the stack, samples and labels; neighbouring clients with batches of one size share a step."""
    orders = list(map(_order, clients))
    for step in range(max(map(len, orders))):
        sizes = [len(order[step]) for order in orders if step < len(order)]
        start = 0
        for _, run in groupby(sizes):
            rows = slice(start, start := start + len(list(run)))
            batches = [client.at(order[step]) for client, order in zip(clients[rows], orders[rows], strict=True)]
            xs, ys = zip(*batches, strict=True)
            yield rows, each(lambda *parts: torch.stack(parts), *xs), torch.stack(ys)


def _order(client: LocalTraining) -> list[Tensor]:
    return [positions.to(client.y.device) for _ in range(client.training.epochs) for positions in client.epoch()]


def _mean(values: Sequence[tuple[Tensor, int]], training: Training, count: int) -> tuple[float, int]:
    last = values[len(values) - len(values) // training.epochs :]
    return sum(value.item() * samples for value, samples in last) / count, len(values)
