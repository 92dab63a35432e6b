"""Makes hard batches: values at which gradients have borders, which ordinary samples never have, such as ignored labels and ties.

A hard batch gives each of its samples another kind of value, so that a few steps try many kinds. Large numbers have batches of their own:
the gradients of the other samples would be lost in their rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import log2

import torch
from torch import Tensor

from edgefl.onnxgrad.fields import named, unnamed
from edgefl.onnxgrad.loss import LossGraph
from edgefl.onnxgrad.special_values import bounds, indices
from edgefl.onnxgrad.step_case import Case

Random = torch.Generator
_CHOOSING = frozenset(("TopK", "Eigh", "SVD"))
"""Operators that take some of equal values, or vectors of equal eigenvalues, where torch does not say which."""


@dataclass(frozen=True)
class Kind:
    """A kind of value: what it is called after "x is", and the values in place of a sample's own."""

    text: str
    of: Callable[[Tensor, Random], Tensor]
    floats: bool = True


@dataclass(frozen=True)
class Weights:
    """The same for a network's parameters: its text is a clause, and ``of`` has the name of the parameter and its value."""

    text: str
    of: Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class HardBatch:
    """A batch of hard values.

    Attributes:
        rows: for each sample the inputs with other values than the example's; they are repeated for further samples.
        weights: those of the network; None: as they are.
        samples: how many there are.
        exact: whether values lie on a bound, so that they may not be changed even by rounding.
        chosen: whether an operator may choose any of equal values, so that finite gradients say nothing.
    """

    rows: tuple[Mapping[str, Kind], ...]
    weights: Weights | None = None
    samples: int = 2
    exact: bool = False
    chosen: bool = False

    def put(self, case: Case, seed: int) -> Case:
        """Return ``case`` with these values. Inputs that all samples share are changed by the first row, if it is the only one."""
        random = torch.Generator().manual_seed(seed)
        inputs = {}
        for key, value in case.inputs.items():
            inputs[key] = unnamed({n: self._put(case, n, part, random) for n, part in named(value, key).items()}, key)
        tensors = dict(case.tensors)
        if self.weights is not None:
            tensors |= {name: self.weights.of(name, tensors[name]) for name in case.roles.trained}
        return replace(case, inputs=inputs, tensors=tensors)

    def _put(self, case: Case, name: str, value: Tensor, random: Random) -> Tensor:
        if name in case.roles.shared:
            return self.rows[0][name].of(value, random) if len(self.rows) == 1 and name in self.rows[0] else value
        own = [value[i % len(value)] for i in range(self.samples)]
        rows = [self.rows[i % len(self.rows)] for i in range(self.samples)]
        return torch.stack([row[name].of(part, random) if name in row else part for part, row in zip(own, rows, strict=True)])

    @property
    def text(self) -> str:
        """What the values are, after "if"."""
        texts = dict.fromkeys(f"{name} is {kind.text}" for row in self.rows for name, kind in row.items())
        one = ["the batch has one sample"] * (self.samples == 1)
        return " and ".join([*texts, *([self.weights.text] if self.weights else []), *one]) or "the batch has two samples"

    @property
    def unusual(self) -> bool:
        """Whether anything differs from an ordinary batch."""
        return any(self.rows) or self.weights is not None or self.samples == 1

    @property
    def ordinary_floats(self) -> bool:
        """Whether floats and weights are those of the example."""
        return self.weights is None and not any(kind.floats for row in self.rows for kind in row.values())

    def simpler(self) -> Iterator["HardBatch"]:
        """Yield the batches without one of its kinds of values."""
        if self.weights is not None:
            yield replace(self, weights=None, exact=False)
        for name, text in dict.fromkeys((name, kind.text) for row in self.rows for name, kind in row.items()):
            rows = tuple({n: k for n, k in row.items() if (n, k.text) != (name, text)} for row in self.rows)
            yield replace(self, rows=rows)

    def apart(self) -> list["HardBatch"]:
        """Return batches that have one row each, and of several inputs one at a time."""
        rows = [row for row in self.rows if row] if len(self.rows) > 1 else []
        alone = [{name: kind} for row in self.rows if len(row) > 1 for name, kind in row.items()]
        return [replace(self, rows=(row,), samples=min(self.samples, 2)) for row in (*rows, *alone)]


def hard_batches(graph: LossGraph, case: Case, few: bool) -> list[HardBatch]:
    """Return the batches that can matter for a loss, with inputs as in ``case``; ``few``: one, for a large network."""
    own = _Kinds.of(graph, case)
    if few:
        rows = own.row(_ZERO, "least", True), own.row(_some(20), "largest", False), own.row(ignored=0)
        tied, untied = [HardBatch(rows, samples=len(rows))], []
    else:
        tied = _with_ties(own, bounds(graph.model))
        untied = [*_large(own), *_special(own)]
    chosen = any(node.op_type in _CHOOSING for node in graph.model.graph)
    return [batch for batch in [*(replace(batch, chosen=chosen) for batch in tied), *untied] if batch.unusual]


def _with_ties(own: "_Kinds", bounds: Sequence[float]) -> list[HardBatch]:
    still = own.row(_ZERO, "least"), own.row(_all(0.5), "largest"), own.row(_SIGNS), own.row()
    return [
        HardBatch(still, _biases(0.0, others=False), samples=4),
        HardBatch((own.row(_SIGNS, "least"), own.row(_all(0.5), "least")), _TIED),
        HardBatch((own.row(),), _ZEROS),
        *(HardBatch((own.row(_all(bound)), own.row()), _TIED, exact=True) for bound in bounds),
        *(HardBatch((own.row(),), _biases(bound), exact=True) for bound in bounds),
    ]


def _large(own: "_Kinds") -> list[HardBatch]:
    rows = [
        (own.row(_all(size), "least"), own.row(_all(-size), "largest"), own.row(_some(size)), own.row(_some(-size)))
        for size in (20, 100)
    ]
    return [*(HardBatch(row, samples=4) for row in rows), HardBatch((own.row(_HUGE, "largest"),))]


def _special(own: "_Kinds") -> list[HardBatch]:
    """Return batches with some ignored labels, with masks of equal entries, and of one sample."""
    return [
        *(HardBatch((own.row(ignored=number), *others)) for number in range(own.most_ignored) for others in ((own.row(),), ())),
        HardBatch((own.row(masked=True), own.row(masked=False), own.row()), samples=3),
        *(HardBatch((own.row(masked=masked),)) for masked in (True, False)),
        HardBatch((own.row(),), samples=1),
    ]


@dataclass(frozen=True)
class _Kinds:
    """The inputs of a loss by their type: floats, masks, and whole numbers with their kinds."""

    floats: tuple[str, ...]
    masks: tuple[str, ...]
    ends: Mapping[str, Mapping[str, Kind]]
    ignored: Mapping[str, tuple[Kind, ...]]

    @classmethod
    def of(cls, graph: LossGraph, case: Case) -> "_Kinds":
        parts = {name: part for key, value in case.inputs.items() for name, part in named(value, key).items()}
        whole = {name: part for name, part in parts.items() if not part.is_floating_point() and part.dtype != torch.bool}
        ends, ignored = {}, {}
        for name, part in whole.items():
            known, numbers = indices(graph.model, name), [n for n in part.flatten().tolist() if n >= 0]
            size = min(known.sizes, default=0)
            low, high = (0 if known.sizes else min(numbers, default=0)), max([size - 1, *numbers])
            ends[name] = {"least": _whole(low, ", its least value"), "largest": _whole(high, ", its largest value")}
            ignored[name] = tuple(_whole(number, ", which the loss leaves out or compares it with") for number in known.ignored)
        masks = tuple(name for name, part in parts.items() if part.dtype == torch.bool)
        return cls(tuple(name for name, part in parts.items() if part.is_floating_point()), masks, ends, ignored)

    @property
    def most_ignored(self) -> int:
        return min(3, max(map(len, self.ignored.values()), default=0))

    def row(
        self, floats: Kind | None = None, end: str | None = None, masked: bool | None = None, ignored: int | None = None
    ) -> dict[str, Kind]:
        """Return the kinds of a sample: of its floats, of its whole numbers ("least" or "largest"), and of its masks."""
        found = dict.fromkeys(self.floats, floats) if floats is not None else {}
        if end is not None:
            found |= {name: kinds[end] for name, kinds in self.ends.items()}
        if ignored is not None:
            found |= {name: kinds[ignored] for name, kinds in self.ignored.items() if ignored < len(kinds)}
        if masked is not None:
            found |= dict.fromkeys(self.masks, _TRUE if masked else _FALSE)
        return found


def _all(number: float) -> Kind:
    return Kind(f"{number:g} in all entries", lambda own, random: torch.full_like(own, number))


def _some(number: float) -> Kind:
    def of(own: Tensor, random: Random) -> Tensor:
        return own.masked_fill(torch.rand(own.shape, generator=random) < 0.25, number)

    return Kind(f"{number:g} in a quarter of its entries", of)


def _whole(number: int, text: str) -> Kind:
    return Kind(f"{number}{text}", lambda own, random: torch.full_like(own, number), floats=False)


_ZERO = _all(0)
_SIGNS = Kind("-1 or 1", lambda own, random: torch.where(own < 0, -1.0, 1.0).to(own.dtype))
_HUGE = Kind("10,000 times the example", lambda own, random: own * 1e4)
_TRUE, _FALSE = (_whole(value, " in all entries") for value in (True, False))


def _tied(name: str, value: Tensor) -> Tensor:
    """Return equal entries: a power of two near 1 / inputs of a unit, so that sums are exact and means of the inputs."""
    inputs = max(1, value[0].numel()) if value.dim() > 1 else 1
    return torch.full_like(value, 2.0 ** -round(log2(inputs)))


def _at(number: float, others: bool, name: str, value: Tensor) -> Tensor:
    if name.rpartition(".")[2].startswith("bias"):
        return torch.full_like(value, number)
    return torch.zeros_like(value) if others else value


def _biases(number: float, others: bool = True) -> Weights:
    """Return biases of this value, and other parameters of 0 if ``others``."""
    return Weights(f"biases are {number:g}{' and other weights 0' if others else ''}", partial(_at, number, others))


_TIED = Weights("each tensor of weights has equal entries", _tied)
_ZEROS = Weights("all weights are 0", lambda name, value: torch.zeros_like(value))
