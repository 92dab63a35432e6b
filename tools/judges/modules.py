"""torch's ModuleInfo: every module in training and in evaluation mode, two steps of different batches, and its inference graph."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

from edgefl.onnxgrad import export, training_step
from edgefl.onnxgrad.macs import count_macs
from edgefl.onnxgrad.session import computed, opened, options_for
from edgefl.rng import generator, torch_seeded
from judges.counts import torch_macs
from judges.steps import by_torch, compared, tensors_of
from judges.verdict import EQUAL, Case, Judge, Skip, Verdict, reference

INPUTS, REPEATED, LR = 3, 6, 0.01
RECURRENT = (nn.RNNBase,)


@dataclass(frozen=True)
class Batched:
    """Where the batch is: leaf → dimension, among a module's arguments; and the dimension of each result, None for a scalar."""

    leaves: dict[int, int]
    results: tuple[int | None, ...]


class Called(nn.Module):
    """A module with its arguments, which stays in its mode. Its prediction is its input: a module may have several arguments and results.

    A parameter is added to every argument that has a gradient. If no argument is batched, those with a gradient are parameters, and the
    results are multiplied by the mean of a batch of ones.
    """

    def __init__(self, module: nn.Module, leaves: Sequence[Any], form: Any, batched: Batched) -> None:
        super().__init__()
        self.module, self.form, self.batched, self.mode = module, form, batched, module.training
        self.fixed = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self.shifts = nn.ParameterDict()
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                dim = batched.leaves.get(i)
                value = leaf.detach().clone() if dim is None else torch.zeros_like(leaf.detach().select(dim, 0))
                self.shifts[str(i)] = nn.Parameter(value)

    def train(self, mode: bool = True) -> Called:
        """Leave the module in its mode."""
        super().train(mode)
        self.module.train(self.mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the input as a prediction."""
        return 1.0 * (x.flatten(1) if x.dim() > 1 else x[:, None])

    def results(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Return the float results; the batched arguments and results have the samples first."""
        leaves = list(self.fixed)
        for i in range(len(leaves)):
            if str(i) in self.shifts and i not in self.batched.leaves:
                leaves[i] = self.shifts[str(i)]
        for part, (i, dim) in zip(batch, self.batched.leaves.items(), strict=False):
            moved = part + self.shifts[str(i)] if str(i) in self.shifts else part
            leaves[i] = moved.movedim(0, dim) if dim else moved
        arguments, options = pytree.tree_unflatten(leaves, self.form)
        results = _floats(self.module(*arguments, **options))
        if not self.batched.leaves:
            return tuple(batch[0].mean() * result for result in results)
        return tuple(r.movedim(d, 0) if d else r for r, d in zip(results, self.batched.results, strict=True))


def _floats(results: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


class Results(nn.Module):
    """The results of a :class:`Called`, for an inference graph."""

    def __init__(self, network: Called) -> None:
        super().__init__()
        self.network = network

    def forward(self, *batch: Tensor) -> tuple[Tensor, ...]:
        """Return the results."""
        return self.network.results(*batch)


def loss_of(network: Any, *batch: Tensor) -> Tensor:
    """Return a mean over the batch to which every value of every result contributes differently; a scalar result is a loss itself."""
    total = torch.zeros((), dtype=batch[0].dtype if batch[0].is_floating_point() else torch.float32)
    for result in network.results(*batch):
        if result.dim() and network.batched.leaves:
            flat = result.flatten(1) if result.dim() > 1 else result[:, None]
            total = total + (flat * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1).mean()
        else:
            flat = result.flatten()
            total = total + (flat * torch.linspace(0.5, 1.5, flat.shape[0], dtype=flat.dtype)).sum()
    return total


def find_batch(module: nn.Module, leaves: Sequence[Any], form: Any) -> Batched:
    """Return which arguments and results have a batch: if they are given twice, so are the results."""
    own = copy.deepcopy(module).eval()
    tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()}
    if not tensors:
        return Batched({}, ())
    first = next(iter(tensors))
    dim = int(any(getattr(part, "batch_first", True) is False for part in module.modules()))
    if tensors[first].dim() <= dim or (isinstance(module, RECURRENT) and tensors[first].dim() == 2):
        return Batched({}, ())
    count = tensors[first].shape[dim]
    for other in (dim, 1, 0, None):
        where = {first: dim}
        for i, leaf in tensors.items():
            if i != first and other is not None and leaf.dim() > other and leaf.shape[other] == count:
                where[i] = other
        if (found := _doubled(own, leaves, form, where)) is not None:
            return Batched(where, found)
    return Batched({}, ())


def _doubled(module: nn.Module, leaves: Sequence[Any], form: Any, where: dict[int, int]) -> tuple[int | None, ...] | None:
    """Return the dimension of each result that has two times the batch; None if a result is not what twice the batch should give."""
    twice = [torch.cat([leaf, leaf], where[i]) if i in where else leaf for i, leaf in enumerate(leaves)]
    try:
        with torch.no_grad():
            one, two = (_floats(module(*a, **k)) for a, k in (pytree.tree_unflatten(of, form) for of in (list(leaves), twice)))
    except Exception:  # noqa: BLE001 - torch refuses that these arguments have a batch
        return None
    found = list[int | None]()
    for a, b in zip(one, two, strict=True):
        if not a.dim() and (torch.allclose(a, b) or torch.allclose(2 * a, b)):
            found.append(None)
            continue
        dims = [d for d in range(a.dim()) if b.shape[d] == 2 * a.shape[d] and a.numel() * 2 == b.numel()]
        dims = [d for d in dims if torch.allclose(torch.cat([a, a], d), b, atol=1e-5)]
        if not dims:
            return None
        found.append(dims[0])
    return tuple(found)


class Input:
    """One of a module's inputs in one mode."""

    def __init__(self, info: Any, given: Any, training: bool) -> None:
        with torch_seeded(generator(0, info.name)):
            module: Any = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).train(training)
        arguments = (given.forward_input.args, given.forward_input.kwargs)
        if isinstance(module, LazyModuleMixin):
            module(*arguments[0], **arguments[1])  # type: ignore[operator]  # the mixin of a module
        leaves, form = pytree.tree_flatten(arguments)
        batched = find_batch(module, leaves, form)
        self.network, self.training = Called(module, leaves, form, batched), training
        parts = [leaves[i].detach().movedim(dim, 0).contiguous() for i, dim in batched.leaves.items()] or [torch.ones(2, 1)]
        self.batch = [_resized(part, max(2, len(part))) for part in parts]
        self.larger = [_resized(part, len(part) + 1) for part in self.batch]

    def judge(self) -> Verdict:
        """Compare two steps, and in evaluation mode the inference graph."""
        network, batches = self.network, [self.batch, self.larger]
        tensors = tensors_of(network)
        with reference("torch"):
            first, *others = (loss_of(copy.deepcopy(network), *self.batch) for _ in range(REPEATED))
            if not first.requires_grad:
                raise Skip("torch: no result has a gradient")
            if not all(torch.equal(first, other) for other in others):
                raise Skip("torch: the result is random")
            expected = by_torch(network, loss_of, tensors, batches, LR, torch.float32)
        graphs = training_step(network, loss_of, self.named(self.batch))
        found = compared(network, loss_of, graphs, tensors, batches, LR, expected)
        return found if found != EQUAL or self.training or not network.batched.leaves else self.inference()

    def named(self, batch: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return name → part of a batch."""
        return {f"x{i}": part for i, part in enumerate(batch)}

    def inference(self) -> Verdict:
        """Compare the inference graph with torch, at the larger batch, and the MACs of the two counters."""
        network = Results(self.network).eval()
        with torch.no_grad():
            expected = network(*self.larger)
        names = [f"y{i}" for i in range(len(expected))]
        model = export(network, self.named(self.batch), names)
        session = opened(model.SerializeToString(), options_for(1))
        read = {value.name for value in session.get_inputs()}
        found = computed(session, {name: part.numpy() for name, part in self.named(self.larger).items() if name in read})
        for name, value in zip(names, expected, strict=True):
            if found[name].shape != value.shape or not np.allclose(found[name], value.numpy(), 1e-3, 1e-4, equal_nan=True):
                return Verdict("wrong", f"the inference graph's result {name} differs")
        one, other = (count_macs(model, len(batch[0])) for batch in (self.batch, self.larger))
        graph = other.total - one.total  # without products of weights only
        torchs = torch_macs(network, self.larger) - torch_macs(network, self.batch)
        equal = bool(one.uncounted_ops) or graph == torchs
        return EQUAL if equal else Verdict("wrong", f"MACs: torch's operations {torchs:,}, the graph {graph:,}")


def _resized(part: Tensor, count: int) -> Tensor:
    return part[torch.arange(count) % len(part)].contiguous()


@cache
def _infos() -> dict[str, Any]:
    return {info.name: info for info in module_db if torch.float32 in info.dtypes}


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of a module: the first, middle and last of its inputs, in each mode."""
    info = _infos()[subject]
    for mode, training in (("training", True), ("evaluation", False)):
        with torch_seeded(generator(0, subject)):
            given = list(itertools.islice(info.module_inputs_func(info, "cpu", torch.float32, True, training), 100))
        chosen = sorted({0, len(given) // 2, len(given) - 1} if given else set())
        for number in chosen[:INPUTS]:
            yield Case(f"{mode} {number}", partial(_judged, info, given[number], training))


def _judged(info: Any, given: Any, training: bool) -> Verdict:
    with reference("torch"):
        made = Input(info, given, training)
    return made.judge()


JUDGE = Judge(
    "torch's modules",
    "`ModuleInfo` of `torch.testing`: the first, middle and last input of every module, in training and in evaluation mode. Two steps are "
    "compared, the second with another batch size; in evaluation mode also the inference graph and the MACs of edgefl's two counters.",
    ("torch",),
    lambda: list(_infos()),
    cases,
    every=15,
)
