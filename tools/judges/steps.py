"""Steps of gradient descent by edgefl's training graph and by torch, from the same values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from edgefl.onnxgrad import Stepper
from edgefl.onnxgrad.stepper import StepGraphs
from judges.verdict import EQUAL, Verdict

Loss = Callable[..., Tensor]
Arrays = dict[str, np.ndarray]
LOSS = "loss"

RELATIVE, ROUNDING = 1e-3, 4e-7
"""A tensor may differ by this share of its largest change, and of its largest value: float32 has 24 bits."""
MULTIPLE, LARGEST = 64.0, 2e-2
"""Where torch's own float32 is far from float64, by this multiple of that error, but by no more than this share of the largest change."""


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters and buffers by name."""
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    return {name: tensor.detach().clone() for name, tensor in own.items()}


def by_graph(graphs: StepGraphs, tensors: Mapping[str, Tensor], batches: Sequence[Sequence[Tensor]], lr: float) -> list[Arrays]:
    """Return the loss and the changed tensors after each step of the graph."""
    named = {role: tensors[name].float().numpy().copy() for name, role in graphs.roles.tensors.items()}
    stepper, found = Stepper(graphs, named, lr), []
    for batch in batches:
        loss = stepper.step(*(part.numpy() for part in batch))
        now = stepper.tensors()
        changed = {name: now[role] for name, role in graphs.roles.tensors.items() if role in now}
        found.append({LOSS: np.array(loss), **changed})
    return found


def by_torch(
    network: nn.Module,
    loss: Loss,
    tensors: Mapping[str, Tensor],
    batches: Sequence[Sequence[Tensor]],
    lr: float,
    kind: torch.dtype,
) -> list[Arrays]:
    """Return the loss and all tensors after each of torch's steps with numbers of type ``kind``."""
    own = copy.deepcopy(network)
    own.load_state_dict(dict(tensors), strict=False)
    own, optimizer_of = own.to(kind), torch.optim.SGD
    optimizer, found = optimizer_of(own.parameters(), lr), []
    for batch in batches:
        optimizer.zero_grad()
        value = loss(own, *(part.to(kind) if part.is_floating_point() else part for part in batch))
        value.backward()
        optimizer.step()
        found.append({LOSS: value.detach().numpy(), **{name: t.detach().clone().numpy() for name, t in tensors_of(own).items()}})
    return found


def compared(
    network: nn.Module,
    loss: Loss,
    graphs: StepGraphs,
    tensors: Mapping[str, Tensor],
    batches: Sequence[Sequence[Tensor]],
    lr: float,
    expected: Sequence[Arrays],
) -> Verdict:
    """Compare the steps of a graph with torch's in float32, ``expected``; where they differ, with torch's in float64 too."""
    found = by_graph(graphs, tensors, batches, lr)
    before: Mapping[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
    exact: list[Arrays] | None = None
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        for name, value in ours.items():
            start = before.get(name, np.zeros(()))
            if not (reason := difference(value, theirs[name], start)):
                continue
            try:
                exact = exact or by_torch(network, loss, tensors, batches, lr, torch.float64)
            except Exception:  # noqa: BLE001 - some networks mix their own float32 with the float64 of their weights
                return Verdict("wrong", f"step {number + 1}: {name} {reason}")
            if not has_digits(theirs[name], exact[number][name], start):
                return Verdict("skipped", f"torch: its float32 has no correct digit of {name} in step {number + 1}")
            if reason := difference(value, exact[number][name], start, theirs[name]):
                return Verdict("wrong", f"step {number + 1}: {name} {reason}")
        before = theirs
    return EQUAL


def has_digits(single: np.ndarray, exact: np.ndarray, before: np.ndarray) -> bool:
    """Return whether torch's float32 is nearer to its float64 than half the largest change; otherwise it says nothing.

    >>> has_digits(np.array([1.1e9, 2.0]), np.array([-32.0, 2.0]), np.zeros(2))
    False
    """
    finite = np.isfinite(exact) & np.isfinite(single)
    off, change = (np.abs(exact - np.broadcast_to(other, exact.shape))[finite] for other in (single, before))
    return not off.size or bool(off.max() <= max(change.max(), np.abs(exact[finite]).max()) / 2)


def difference(found: np.ndarray, expected: np.ndarray, before: np.ndarray, single: np.ndarray | None = None) -> str:
    """Return how ``found`` differs from ``expected``, "" if it does not.

    Values that are finite in ``expected`` must be near. The others must not be finite. ``single`` is torch's result in float32, if
    ``expected`` is that in float64.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, np.nan]), np.zeros(2))
    'is finite where torch is not'
    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 2.1]), np.zeros(2))
    'differs by 0.1, its largest change is 2.1'
    """
    if found.shape != expected.shape:
        return f"has the shape {found.shape}, torch's {expected.shape}"
    finite = np.isfinite(expected) if single is None else np.isfinite(expected) & np.isfinite(single)
    if not np.isfinite(found[finite]).all():
        return "is not finite where torch is"
    if single is None and np.isfinite(found[~finite]).any():
        return "is finite where torch is not"
    ours, theirs, start = (np.broadcast_to(a, found.shape)[finite].astype(np.float64) for a in (found, expected, before))
    if not ours.size:
        return ""
    off, change = float(np.abs(ours - theirs).max()), float(np.abs(theirs - start).max())
    largest = max(float(np.abs(theirs).max()), float(np.abs(start).max()), 1.0)
    allowed = RELATIVE * change + ROUNDING * largest
    if single is not None:
        own = float(np.abs(single[finite].astype(np.float64) - theirs).max())
        allowed = max(allowed, min(MULTIPLE * own, LARGEST * change + ROUNDING * largest))
    return "" if off <= allowed else f"differs by {off:.2g}, its largest change is {change:.2g}"
