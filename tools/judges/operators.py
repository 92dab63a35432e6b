"""torch's OpInfo: every operator with a derivative in float32, its first samples, and hard values in the graph of the first one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from edgefl.onnxgrad import training_step
from edgefl.onnxgrad.stepper import StepGraphs
from edgefl.rng import generator, torch_seeded
from judges.steps import LOSS, by_torch, compared
from judges.verdict import Case, Judge, Skip, Verdict, reference, skipping

SAMPLES, TRIED, REPEATED, LR = 3, 12, 6, 1.0
EXAMPLE, BATCH = torch.ones(2, 1), torch.ones(3, 1)
HARD: Mapping[str, Any] = {
    "zeros": torch.zeros_like,
    "ones": torch.ones_like,
    "ties": lambda value: value.round().clamp(-1, 1),
    "±20": lambda value: torch.where(value < 0, -20.0, 20.0),
    "±1e4": lambda value: torch.where(value < 0, -1e4, 1e4),
}
"""Values that meet an operator's border: ties, saturation, overflow."""


_EQUAL = "torch: which of equal entries comes first is not defined"
_RANK = "torch: the factors of a matrix of lower rank are not defined"
UNDEFINED = {
    **{(subject, hard): _EQUAL for subject in ("kthvalue", "topk", "sort", "msort") for hard in HARD},
    **{(subject, "ones"): _RANK for subject in ("qr", "linalg.qr")},
    **{(subject, "zeros"): _RANK for subject in ("svd_lowrank", "pca_lowrank")},
    **{(subject, hard): _RANK for subject in ("norm.nuc", "linalg.svdvals", "linalg.cond") for hard in HARD},
    ("linalg.eigvalsh", "ones"): "torch: the gradients of equal eigenvalues are not defined",
    ("pinverse", "ones"): "torch: its tolerance, 1e-15, is below the rounding of float32",
}
"""(operator, hard values) for which torch's documentation leaves the result open."""


class Applied(nn.Module):
    """An operator whose tensors are parameters: called with a batch, it returns a scalar that depends on every value of its result."""

    def __init__(self, info: Any, sample: Any) -> None:
        super().__init__()
        self.operator, self.finish = info.op, sample.output_process_fn_grad
        leaves, self.form = pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
        if any(isinstance(leaf, Tensor) and leaf.layout != torch.strided for leaf in leaves):
            raise Skip("its tensors are sparse")
        trained = [isinstance(leaf, Tensor) and leaf.requires_grad and leaf.dtype == torch.float32 for leaf in leaves]
        self.fixed = [None if is_trained else _detached(leaf) for leaf, is_trained in zip(leaves, trained, strict=True)]
        self.values = nn.ParameterDict(
            {str(i): nn.Parameter(leaf.detach().clone()) for i, leaf in enumerate(leaves) if trained[i]}
        )
        self.measured: list[int] | None = None

    def results(self) -> list[Any]:
        """Return all results of the operator."""
        leaves = [self.values.get(str(i), leaf) for i, leaf in enumerate(self.fixed)]
        arguments, options = pytree.tree_unflatten(leaves, self.form)
        return pytree.tree_leaves(self.finish(self.operator(*arguments, **options)))

    def prepare(self) -> None:
        """Find the results that have a gradient; skip an operator that has none, or that draws random numbers."""
        with patch.object(common_methods_invocations, "wrapper_set_seed", _unseeded):
            first, *others = (self.results() for _ in range(REPEATED))
        self.measured = [i for i, part in enumerate(first) if isinstance(part, Tensor) and part.requires_grad and part.numel()]
        if not self.measured:
            raise Skip("torch: no result has a gradient")
        if not all(torch.allclose(first[i], other[i], equal_nan=True) for i in self.measured for other in others):
            raise Skip("torch: the result is random")

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss."""
        found = self.results()
        return x.mean() * torch.stack([_weighted(found[i]) for i in self.measured or ()]).sum()


def _unseeded(operator: Any, *arguments: Any, **options: Any) -> Any:
    """Call an operator that draws numbers without the seed that the database gives it: it draws others each time."""
    return operator(*arguments, **options)


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _weighted(part: Tensor) -> Tensor:
    real = torch.view_as_real(part) if part.is_complex() else part
    return (real * torch.linspace(0.5, 1.5, real.numel(), dtype=real.dtype).reshape(real.shape)).sum()


def _called(network: nn.Module, x: Tensor) -> Tensor:
    return network(x)


class Sample:
    """A sample of an operator: its network, and the graphs that edgefl makes of it, once."""

    def __init__(self, info: Any, sample: Any) -> None:
        self.network = Applied(info, sample)
        self.network.prepare()
        self.own = {name: value.detach().clone() for name, value in self.network.named_parameters()}
        low, high = getattr(info, "domain", (None, None))
        if low is not None:  # an example away from the border of the operator's domain
            for value in self.network.parameters():
                nn.init.constant_(value, low + 1 if high is None else (low + high) / 2)
        self._graphs: StepGraphs | Exception | None = None

    def judge(self, hard: str | None = None) -> Verdict:
        """Compare a step at the sample's own values, or at hard ones."""
        tensors = {name: HARD[hard](value) for name, value in self.own.items()} if hard else self.own
        with reference("torch"):
            expected = by_torch(self.network, _called, tensors, [[BATCH]], LR, torch.float32)
        if not np.isfinite(expected[0][LOSS]) and not hard:
            raise Skip("torch: the value is not finite")
        return compared(self.network, _called, self.graphs(), tensors, [[BATCH]], LR, expected)

    def graphs(self) -> StepGraphs:
        """Return the graphs, or raise again what edgefl has raised."""
        if self._graphs is None:
            try:
                self._graphs = training_step(self.network, _called, {"x": EXAMPLE})
            except Exception as error:  # noqa: BLE001 - raised below, for each of the sample's cases
                self._graphs = error
        if isinstance(self._graphs, Exception):
            raise self._graphs
        return self._graphs


@cache
def _infos() -> dict[str, Any]:
    infos = [i for i in op_db if i.supports_autograd and torch.float32 in i.supported_backward_dtypes("cpu")]
    return {f"{i.name}.{i.variant_test_name}" if i.variant_test_name else i.name: i for i in infos}


def cases(subject: str) -> Iterator[Case]:
    """Return the cases of an operator: of its first samples that have a gradient."""
    info, samples, reason = _infos()[subject], list[Sample](), "torch: no sample"
    with torch_seeded(generator(0, subject)):
        for given in itertools.islice(info.sample_inputs("cpu", torch.float32, requires_grad=True), TRIED):
            try:
                with reference("torch"):
                    samples.append(Sample(info, given))
            except Skip as skip:
                reason = str(skip)
            if len(samples) == SAMPLES:
                break
    if not samples:
        yield Case("sample 0", skipping(reason))
    for number, sample in enumerate(samples):
        yield Case(f"sample {number}", sample.judge)
    for hard in HARD if samples else ():
        undefined = UNDEFINED.get((subject, hard))
        yield Case(f"sample 0 at {hard}", skipping(undefined) if undefined else partial(samples[0].judge, hard))


JUDGE = Judge(
    "torch's operators",
    "`OpInfo` of `torch.testing`: every operator that has a derivative in float32, by variants. The float tensors "
    "of a sample are trained. A step is compared at the first three samples, and in the graph of the first one also at hard values: zeros, "
    "ones, ties, ±20 and ±10,000.",
    ("torch",),
    lambda: list(_infos()),
    cases,
    every=40,
)
