"""Compares a training graph with torch when it is written: the loss, and every tensor after one step.

Both compute the same step from the same values, on three samples. If the results differ from torch's float32 by more than rounding, torch
computes the step in float64 too. A result may differ from float64 by a multiple of torch's own float32 error, plus rounding. Norms are
compared, because single entries of activations near a kink, such as 0 for ReLU, depend on rounding. A difference counts if three draws of
the values show it.

If torch's results are not finite for the moved values, values nearer to the caller's are tried, and at last those. NaN in the same places
is no difference. Then the gradients are compared on hard batches (:mod:`edgefl.onnxgrad.hard_batches`, :mod:`edgefl.onnxgrad.hard_check`).

Adam begins with three steps behind it and a second moment of the same size everywhere. Its step is then nearly linear in the gradient. Its
very first step would have the sign of the gradient alone, and turn rounding into a full step where a gradient is zero in theory, as of a
bias before BatchNorm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from edgefl.onnxgrad.errors import EdgeflError, InputError, first_line
from edgefl.onnxgrad.fields import Fields
from edgefl.onnxgrad.hard_batches import hard_batches
from edgefl.onnxgrad.hard_check import HardStep
from edgefl.onnxgrad.loss import Loss, LossGraph
from edgefl.onnxgrad.macs import count_macs
from edgefl.onnxgrad.roles import LOSS, OUT, StepRule
from edgefl.onnxgrad.session import computed
from edgefl.onnxgrad.step_case import MULTIPLE, QUICK, SAMPLES, SINGLE_ONLY, TRIES, Arrays, Case, Nearness, norm_of
from edgefl.onnxgrad.stepper import StepGraphs, session_of

ROUNDING = 1e-5
"""And by this share of a tensor's change, or of the mean change of all tensors."""
LARGEST = 1e-2
"""But never by more than this share, whatever the error of float32."""
_WORK = 2**30
"""Multiply-accumulates of all hard batches of a loss; fewer batches are tried of a larger network."""


def check_step(
    graphs: StepGraphs,
    network: nn.Module,
    losses: Sequence[Loss],
    batch: Mapping[str, Fields[Tensor]],
    shared: Mapping[str, Tensor],
    rule: StepRule,
    graph: LossGraph,
) -> None:
    """Raise an EdgeflError unless each graph of ``graphs.steps`` computes the same as torch; it names the first tensor that differs.

    ``graph`` is what they were made from. Torch's step may not change the tensors that it reads and never changes. The step starts from
    the values of ``network``, moved a little. Random numbers take the place of floats of ``batch`` and ``shared`` that are all equal. The
    network is left as it is.
    """
    modes = {part: part.training for part in network.modules()}
    try:
        own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        for step, loss in zip(graphs.steps, losses, strict=True):
            case = Case(network, graphs.roles, loss, rule, own, {**batch, **shared}, 0.0, graph.constants)
            drawn = lru_cache(partial(_drawn, case))
            if differing := _in_draws(step, drawn) or _on_hard_batches(step, drawn, graph):
                raise EdgeflError(
                    f"{type(network).__name__} cannot be trained in ONNX: its training graph differs from torch{differing}"
                )
    finally:
        for part, mode in modes.items():
            part.training = mode


@dataclass(frozen=True)
class _Drawn:
    """Values of a step, and torch's float32 results for them."""

    case: Case
    single: Arrays


def _drawn(own: Case, attempt: int) -> _Drawn:
    """Return the values that are the farthest from a network's ``own`` of which torch computes finite numbers, else those themselves."""
    name = type(own.network).__name__
    for near in Nearness:
        case = own.drawn(attempt, near)
        try:
            single = case.stepped(torch.float32)
        except EdgeflError as error:
            raise InputError(f"{name} cannot be trained in ONNX: {error}") from error
        except Exception as error:  # networks raise many types
            if near is not Nearness.OWN:
                continue
            raise EdgeflError(f"torch cannot compute a step of {name}: {first_line(error)}") from error
        if all(np.isfinite(value).all() for output, value in single.items() if not output.startswith("network.")):
            break
    return _Drawn(case, single)


def _in_draws(step: bytes, drawn: Callable[[int], _Drawn]) -> str | None:
    """Return how a graph differs from torch in each draw of ordinary values; None if it does not in one."""
    differing = None
    for attempt in range(TRIES):
        case, single = drawn(attempt).case, drawn(attempt).single
        if changed := [name for name in case.constants if not _same(single[f"network.{name}"], case.tensors[name])]:
            return f": {changed[0]} changes in a step, and a training graph changes no buffers but the statistics of BatchNorm"
        if name := _remembered(case, single):
            return f" from the second step on: {name} changes in a step, and a graph keeps its first value; give it to the loss as an input"
        found = computed(session_of(step, 1), case.feed(step))
        differing = _first_difference(case, found, single)
        if differing is None:
            return None
    return f": {differing}"


def _remembered(case: Case, single: Arrays) -> str | None:
    """Return a buffer that is no input of the graph and that a step changes, if that changes the next step."""
    changed = [name for name in case.others if not _same(single[f"network.{name}"], case.tensors[name])]
    for name in changed:
        now = torch.from_numpy(single[f"network.{name}"])
        after = replace(case, tensors={**case.tensors, name: now}).stepped(torch.float32)
        others = {key: value for key, value in after.items() if key != f"network.{name}"}
        if not all(np.array_equal(value, single[key], equal_nan=True) for key, value in others.items()):
            return name
    return None


def _on_hard_batches(step: bytes, drawn: Callable[[int], _Drawn], graph: LossGraph) -> str | None:
    """Return how a graph differs from torch on hard batches; None if it does not."""
    case = drawn(0).case
    macs = SAMPLES * (_macs(step) + 4 * sum(case.tensors[name].numel() for name in case.roles.trained))
    batches = hard_batches(graph, case, few=False)
    if macs * len(batches) > _WORK:
        batches = hard_batches(graph, case, few=True)
    found = HardStep(step, lambda attempt: drawn(attempt).case).difference(batches)
    return found and f" {found}"


def _macs(step: bytes) -> int:
    try:
        return count_macs(onnx.load_model_from_string(step), 1).total
    except InputError:  # a shape that depends on values
        return 0


def _first_difference(case: Case, found: Arrays, single: Arrays) -> str | None:
    """Return what differs first: the loss, statistics in the order of the network, parameters likewise; None: nothing."""
    if not (differing := _differing(case, found, single, {}, QUICK)):
        return None
    try:
        exact = case.stepped(torch.float64)
        differing = _differing(case, found, exact, single)
    except Exception:  # noqa: BLE001 - as above; such networks mix their own float32 with the float64 of their weights
        exact, differing = single, _differing(case, found, single, {}, SINGLE_ONLY)
    return _described(case, differing, found, exact) if differing else None


def _differing(case: Case, found: Arrays, exact: Arrays, single: Arrays, rounding: float = ROUNDING) -> list[str]:
    """Return the outputs of ``found`` that are farther from ``exact`` than the results ``single``, and rounding, allow."""
    before = {role + OUT: case.tensors[name].numpy() for name, role in case.roles.trained.items()}
    agree = {name: ~np.isfinite(value) & ~np.isfinite(exact[name]) for name, value in found.items() if name in exact}
    if any(places.any() for places in agree.values()):  # NaN where torch has it
        found, exact, single = (
            {name: np.where(agree[name], 0, value) if name in agree else value for name, value in results.items()}
            for results in (found, exact, single)
        )
    changes = {name: norm_of(exact[name] - before[name]) for name in before}
    mean = (sum(change**2 for change in changes.values()) / max(1, sum(value.size for value in before.values()))) ** 0.5
    differing = []
    for name, value in exact.items():
        if name not in found:  # a constant, or a statistic that the graph does not read
            continue
        step = changes[name] + value.size**0.5 * mean if name in before else max(norm_of(value), 1e-3)
        own = norm_of(single[name] - value) if name in single else 0.0
        allowed = (
            min(MULTIPLE * own, LARGEST * step) + rounding * step + 2**-21 * (norm_of(before[name]) if name in before else 0.0)
        )
        if not norm_of(found[name] - value) <= allowed < np.inf:
            differing.append(name)
    return differing


def _same(values: np.ndarray, before: Tensor) -> bool:
    return np.array_equal(values, before.numpy().astype(values.dtype), equal_nan=True)


def _described(case: Case, differing: Sequence[str], found: Arrays, exact: Arrays) -> str:
    names = {role + OUT: name for name, role in case.roles.tensors.items()}
    first = next((name for name in differing if name in names), None)
    texts = []
    if LOSS in differing:
        texts.append(f"loss {float(found[LOSS]):.6g}, torch {float(exact[LOSS]):.6g}")
    if first is not None:
        place = np.unravel_index(np.argmax(np.abs(found[first] - exact[first])), exact[first].shape)
        ours, theirs = found[first][place], exact[first][place]
        texts.append(f"{case.entry(names[first], place)} after a step: {ours:.6g}, torch {theirs:.6g}")
    return "; ".join(texts)
