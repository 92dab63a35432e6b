"""Compares a training graph with torch on hard batches: loss, statistics and gradients.

**NaN and infinity** must be where torch has them, and nowhere else. Torch computes such a batch in float32, in float64, with numbers
below 1e-38 as 0, without its fast convolutions, and from weights that differ by rounding. A number must be finite if it is finite in all
of these, and must not be finite if it is finite in none. Otherwise rounding decides, and any number is right.

**Finite numbers** are compared by norms. A result may differ from float64 by a multiple of the largest error of torch's float32 results,
by rounding, and by a multiple of what rounding of the weights changes in the graph's own result. A factor for each tensor changes its
weights. Zeros and ties remain, so torch and the graph must agree on the gradient there. Values at other bounds, such as 6 of ReLU6, would
leave them, and are not changed. A difference of finite numbers counts if three draws show it.

**A batch that torch cannot compute** says nothing. If it raises an error or its loss is not finite, the kinds of its values are tried one
at a time. If that loss is not finite either, the gradients count if all floats are ordinary: labels and masks may leave out what made it
so.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from edgefl.onnxgrad.errors import EdgeflError, first_line
from edgefl.onnxgrad.hard_batches import HardBatch
from edgefl.onnxgrad.roles import LOSS, OUT
from edgefl.onnxgrad.session import computed
from edgefl.onnxgrad.step_case import MULTIPLE, QUICK, SINGLE_ONLY, TRIES, Arrays, Case, norm_of
from edgefl.onnxgrad.stepper import session_of

_ROUNDING, _MOVED = 1e-4, 8.0
_FACTOR = 2.0**-21
"""The share by which weights are changed to show what rounding does."""
_OF_ALL = 3e-4
"""The share of all gradients by which one may differ: terms of that size may cancel in it, and normalization enlarges their rounding."""
_OF_WEIGHTS = 2.0**-27
"""The share of a weight that is lost in its gradient, which is read from the weight after a step of 64 gradients."""
_LEAST = 1e-12
"""Smaller gradients count as 0."""
_LARGEST = 1e36
"""Larger gradients count as infinite: such a step is."""


@dataclass(frozen=True)
class _Difference:
    """How a graph differs from torch; ``rounds`` says that all numbers are finite, so that another draw may decide."""

    text: str
    rounds: bool = False


_UNDEFINED = _Difference("torch computes no finite loss")


@dataclass(frozen=True)
class HardStep:
    """A training graph, and ordinary values to begin with: attempt → case."""

    graph: bytes
    drawn: Callable[[int], Case]

    def difference(self, batches: Sequence[HardBatch]) -> str | None:
        """Return for which of the batches the graph differs from torch first, and how; None: for none."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for batch in batches:
                if text := self._in_draws(batch):
                    least = self._simplest(batch)
                    return f"if {least.text}: {self._in_draws(least) or text}"
        return None

    def _simplest(self, batch: HardBatch) -> HardBatch:
        """Return the batch with as few unusual values as still differ."""
        others = (other for other in (*batch.apart(), *batch.simpler()) if other != batch and other.unusual)
        return next((self._simplest(other) for other in others if self._in_draws(other)), batch)

    def _in_draws(self, batch: HardBatch) -> str | None:
        found: _Difference | None = None
        for attempt in range(TRIES):
            found = self._in_draw(batch, attempt)
            again = found is not None and (found.rounds or (found is _UNDEFINED and not batch.apart()))
            if not again:
                break
        if found is _UNDEFINED:
            return next((text for part in batch.apart() if part != batch and (text := self._in_draws(part))), None)
        return None if found is None else found.text

    def _in_draw(self, batch: HardBatch, attempt: int) -> _Difference | None:
        case = batch.put(self.drawn(attempt), attempt)
        try:
            single = case.gradients(torch.float32)
        except Exception:  # noqa: BLE001 - networks raise many types
            return _UNDEFINED
        if not np.isfinite(single[LOSS]) and (batch.apart() or not batch.ordinary_floats):
            return _UNDEFINED
        try:
            found = self._found(case)
        except EdgeflError as error:
            return _Difference(first_line(error))
        if not _far(case, found, single, QUICK):
            return None
        others = self._again(batch, case)
        if (misplaced := _misplaced(case, found, [single, *others])) or batch.chosen:
            return misplaced
        return _distant(case, found, single, others, None if batch.exact else self._found(_rounded(case)))

    def _found(self, case: Case) -> Arrays:
        return case.gradients_in(computed(session_of(self.graph, 1), case.feed(self.graph)))

    def _again(self, batch: HardBatch, case: Case) -> list[Arrays]:
        """Return what torch computes for a case in other ways. A network may mix its own float32 with the float64 of its weights."""
        slower = partial(torch.backends.mkldnn.flags, enabled=False)
        ways: list[tuple[torch.dtype, Case, Callable[[], AbstractContextManager[None]]]] = [
            (torch.float64, case, nullcontext),
            (torch.float32, case, _small_numbers_as_zero),
            (torch.float32, case, slower),
            (torch.float32, case if batch.exact else _rounded(case), nullcontext),
        ]
        found = []
        for kind, own, way in ways:
            with suppress(Exception), way():
                found.append(own.gradients(kind))
        return found


def _far(
    case: Case, found: Arrays, expected: Arrays, rounding: float, allowances: Mapping[str, float] | None = None
) -> list[str]:
    """Return the outputs that are farther from what is ``expected`` than rounding and their allowance."""
    weights = {role + OUT: name for name, role in case.roles.trained.items()}
    norms = {name: norm_of(value) for name, value in expected.items()}
    total = sum(norms[name] ** 2 for name in weights) ** 0.5
    mean = total / max(1, sum(expected[name].size for name in weights)) ** 0.5
    far = []
    for name, value in expected.items():
        if name not in found:  # a statistic that the graph does not read
            continue
        size = norms[name] + value.size**0.5 * mean if name in weights else max(norms[name], 1e-3)
        allowed = rounding * size + (allowances[name] if allowances else 0.0)
        if name in weights:
            allowed += _LEAST * value.size**0.5 + _OF_ALL * total + _OF_WEIGHTS * norm_of(case.tensors[weights[name]].numpy())
        if not norm_of(found[name] - value) <= allowed:
            far.append(name)
    return far


def _misplaced(case: Case, found: Arrays, results: Sequence[Arrays]) -> _Difference | None:
    """Return where ``found`` is finite and no result of torch is, or the reverse."""
    defined = all(np.isfinite(result[LOSS]) for result in results)
    for name in _names(found, results):
        here, never = np.isfinite(found[name]), ~np.logical_or.reduce([np.isfinite(result[name]) for result in results])
        if (wrong := (_finite(results, name) & ~here) | (never & here & defined)).any():
            return _Difference(_described(case, name, np.argmax(wrong), found, results[0]))
    return None


def _distant(case: Case, found: Arrays, single: Arrays, others: Sequence[Arrays], moved: Arrays | None) -> _Difference | None:
    """Return how ``found`` differs from torch by more than ``single`` and ``others`` do, and by more than ``moved`` weights change it."""
    results = [single, *others]
    names = _names(found, results)
    finite = {name: _finite(results, name) & np.isfinite(found[name]) for name in names}

    def numbers(result: Arrays) -> Arrays:
        return {name: np.where(finite[name], result[name].astype(np.float64), 0.0) for name in names}

    exact = next((result for result in others if result[LOSS].dtype == np.float64), None)
    reference, own = numbers(single if exact is None else exact), numbers(found)
    errors = [{name: norm_of(value - reference[name]) for name, value in numbers(result).items()} for result in results]
    allowances = {name: MULTIPLE * max(error[name] for error in errors) for name in names}
    if moved is not None:
        changes = {name: np.nan_to_num(value - own[name], nan=np.inf) for name, value in numbers(moved).items()}
        allowances = {name: allowed + _MOVED * norm_of(changes[name]) for name, allowed in allowances.items()}
    if not (far := _far(case, own, reference, _ROUNDING if exact is not None else SINGLE_ONLY, allowances)):
        return None
    name = next((name for name in far if name != LOSS), far[0])
    return _Difference(_described(case, name, np.argmax(np.abs(own[name] - reference[name])), found, single), rounds=True)


def _names(found: Arrays, results: Sequence[Arrays]) -> list[str]:
    """Return the outputs that count: not the loss, if torch's is not finite, and no statistic that the graph does not read."""
    defined = all(np.isfinite(result[LOSS]) for result in results)
    return [name for name in results[0] if name in found and (defined or name != LOSS)]


def _finite(results: Sequence[Arrays], name: str) -> np.ndarray:
    return np.logical_and.reduce([np.abs(result[name]) <= _LARGEST for result in results])


def _described(case: Case, name: str, flat: np.intp, found: Arrays, expected: Arrays) -> str:
    """Return the values of an output that differs, at the place ``flat``, and of the loss if that is another."""
    place = np.unravel_index(flat, expected[name].shape)
    ours, theirs = found[name][place], expected[name][place]
    if name == LOSS:
        return f"loss {ours:.6g}, torch {theirs:.6g}"
    tensor = next(own for own, role in case.roles.tensors.items() if role + OUT == name)
    what = "gradient of " if tensor in case.roles.trained else ""
    return f"{what}{case.entry(tensor, place)} {ours:.6g}, torch {theirs:.6g}"


def _rounded(case: Case) -> Case:
    """Return a case with other weights, as rounding changes them, but with the same zeros and ties."""
    tensors = {name: case.tensors[name] * (1 + _FACTOR * (1 - i % 2 * 2)) for i, name in enumerate(case.roles.trained)}
    return replace(case, tensors={**case.tensors, **tensors})


@contextmanager
def _small_numbers_as_zero() -> Iterator[None]:
    known = float(torch.tensor(1e-40).mul(1)) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(known)
