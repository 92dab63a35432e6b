"""The gradient of a training step as a list of tensor operations: recorded once, then replayed without autograd or the network's code.

A replay runs the operations that autograd ran, in the same order, so loss and gradients have the same bits. A capture is refused if its
first replay differs from autograd in one bit. Replays save the time of Python and autograd around every operation, and
:mod:`edgefl.client.fast.layout` replaces operations by faster forms.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from edgefl.client.fast.layout import rewrite
from edgefl.cost.trace import Loss
from edgefl.onnxgrad.stateless import called, carry
from edgefl.records import Batch
from edgefl.util.fields import each, named

Flat = Sequence[Tensor | None]


class CaptureError(Exception):
    """A step cannot be recorded, or its replay differs from the step. Autograd computes such steps."""


@dataclass(frozen=True)
class Inputs:
    """The tensors that a step reads: the network's parameters and buffers by name, and a batch."""

    tensors: Mapping[str, Tensor]
    batch: Batch

    def flat(self) -> list[Tensor]:
        """Return all tensors, always in the same order."""
        present = () if self.batch.present is None else (self.batch.present,)
        return [*self.tensors.values(), *named(self.batch.x, "x").values(), self.batch.y, *present]

    def like(self, flat: Iterable[Tensor]) -> Self:
        """Return inputs of the same form with other tensors."""
        values = iter(flat)
        tensors = {name: next(values) for name in self.tensors}
        x = each(lambda _: next(values), self.batch.x)
        return type(self)(tensors, Batch(x, next(values), next(values, None), self.batch.draw))

    def copied(self) -> Self:
        """Return a copy of the values."""
        return self.like(tensor.detach().clone() for tensor in self.flat())


Take = Callable[[Inputs], Flat]
"""Returns the loss of a step, a scalar, then the gradient of each trained parameter (None: it has none)."""


def capture(take: Take, inputs: Inputs) -> Take:
    """Return a replay of ``take`` for inputs shaped like ``inputs``; CaptureError: it cannot be recorded, or the replay differs."""
    expected, traced, replayed = inputs.copied(), inputs.copied(), inputs.copied()

    def replay(inputs: Inputs) -> Flat:
        with torch.no_grad():
            return run(*inputs.flat())

    try:
        first = _seeded(lambda: take(expected))
        run = _seeded(lambda: recorded(lambda: take(traced), traced.flat()))
        again = _seeded(lambda: replay(replayed))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise CaptureError(str(error)) from error
    if not all(map(_equal, [*first, *expected.flat()], [*again, *replayed.flat()])):
        raise CaptureError("its replay differs from the step")
    return replay


def gradient_of(module: nn.Module, loss: Loss, trained: Sequence[str]) -> Take:
    """Return a function that computes the loss and the gradients of ``trained`` by autograd, on the tensors of its inputs."""

    def take(inputs: Inputs) -> Flat:
        leaves = {n: t.detach().requires_grad_() if n in trained else t for n, t in inputs.tensors.items()}

        def differentiated(module: nn.Module, batch: Batch) -> tuple[Tensor, Flat]:
            value = loss(module, batch)
            # Not after the call: gradient checkpointing runs parts of the network again, which must still have the tensors of inputs.
            return value.detach(), torch.autograd.grad(value, [leaves[name] for name in trained], allow_unused=True)

        with torch.enable_grad():
            value, gradients = computed(Whole(module, differentiated), leaves, inputs.batch)
        return [value, *(laid_out(grad, leaves[name]) for name, grad in zip(trained, gradients, strict=True))]

    return take


def laid_out(gradient: Tensor | None, like: Tensor) -> Tensor | None:
    """Return ``gradient`` with the strides of ``like``, as autograd returns it: the fused kernels of optimizers require them."""
    if gradient is None or gradient.stride() == like.stride():
        return gradient
    return torch.empty_like(like).copy_(gradient)


def computed(whole: "Whole", tensors: Mapping[str, Tensor], batch: Batch) -> Any:
    """Return what ``whole`` computes for a batch with ``tensors``, by name in its network. Buffers that it assigns change in place."""
    named = {f"inner.{name}": tensor for name, tensor in tensors.items()}
    before = dict(named)
    result = called(whole, named, (batch,))
    carry(before, named)
    return result


class Whole(nn.Module):
    """A network and its loss as one module, so that :func:`computed` can replace its tensors."""

    def __init__(self, inner: nn.Module, loss: Callable[[nn.Module, Batch], Any]) -> None:
        super().__init__()
        self.inner, self._loss = inner, loss
        self.training = inner.training

    def forward(self, batch: Batch) -> Any:
        """Return what the loss returns for a batch."""
        return self._loss(self.inner, batch)


def recorded(work: Callable[[], Flat], inputs: Sequence[Tensor]) -> Callable[..., Flat]:
    """Return the operations of ``work`` as a function of ``inputs``, rewritten; raise :class:`CaptureError` if it reads another tensor.

    >>> a, b = torch.tensor([1.0, -2.0]), torch.tensor(3.0)
    >>> run = recorded(lambda: [(a * b).relu()], [a, b])
    >>> [part.tolist() for part in run(torch.tensor([-1.0, 2.0]), torch.tensor(5.0))]
    [[0.0, 10.0]]
    """
    recorder = _Recorder(inputs)
    with recorder:
        results = work()
    graph = recorder.graph
    graph.output([None if tensor is None else recorder.node(tensor) for tensor in results])
    rewrite(graph)
    run: Callable[..., Flat] = fx.GraphModule(nn.Module(), graph).forward
    return run


class _Recorder(TorchDispatchMode):
    """Runs every operation and adds it to a graph."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        # Tensors are found by identity, which is unique only while they live: the recorder holds them.
        self._nodes: dict[int, tuple[Tensor, fx.Node]] = {}
        for number, tensor in enumerate(inputs):
            self._nodes[id(tensor)] = tensor, self.graph.placeholder(f"input_{number}")

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled under this mode

    def node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            raise CaptureError("it reads a tensor besides its inputs")
        return self._nodes[id(tensor)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = tree_leaves(out)
        if not any(isinstance(leaf, Tensor) for leaf in leaves):
            if any(leaf is not None for leaf in leaves) and torch.Tag.data_dependent_output in func.tags:
                raise CaptureError(f"it reads the value of a tensor ({func})")
            return out
        node = self.graph.call_function(func, *tree_map_only(Tensor, self.node, (args, kwargs or {})))
        if isinstance(out, Tensor):
            self._nodes[id(out)] = out, node
            node.meta["channels_last"] = out.dim() == 4 and out.is_contiguous(memory_format=torch.channels_last)
        else:
            for number, part in enumerate(out):
                if isinstance(part, Tensor):
                    self._nodes[id(part)] = part, self.graph.call_function(operator.getitem, (node, number))
        return out


def _seeded(work: Callable[[], Any]) -> Any:
    """Return what ``work`` returns, and restore the state of torch's generator."""
    with torch.random.fork_rng(devices=[]):
        return work()


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
