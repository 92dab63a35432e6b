"""Runs the training graphs of :mod:`edgefl.onnxgrad.step` in onnxruntime, with NumPy arrays and without torch.

Parameters, the optimizer's state and the sums of gradients have two sets of buffers. A step reads one set and writes the other, then the
sets are swapped: nothing is copied between steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnxruntime as ort

from edgefl.onnxgrad.contexts import scratch_folder
from edgefl.onnxgrad.errors import EdgeflError, first_line
from edgefl.onnxgrad.roles import BETA, LEARNING_RATE, LOSS, OUT, SHARE, Roles, sum_input
from edgefl.onnxgrad.session import OutOfMemoryError, held_by, limited, opened, options_for, profiled, refusal_in

Arrays = Mapping[str, np.ndarray]
_GRAPH = "the training graph"


@dataclass(frozen=True)
class StepGraphs:
    """The graphs of a training step, as serialized ModelProtos without weights.

    Attributes:
        steps: graphs of whole optimizer steps, one for each equally likely kind of step.
        roles: which input is which tensor.
        passes: for batches that are taken in parts: graphs that add the gradient of a part, one for each kind of step.
        update: the graph that takes the optimizer's step with the sum of gradients; empty without ``passes``.
    """

    steps: tuple[bytes, ...] = field(repr=False)
    roles: Roles = field(repr=False)
    passes: tuple[bytes, ...] = field(default=(), repr=False)
    update: bytes = field(default=b"", repr=False)


class Stepper:
    """Trains a network: holds its tensors and takes optimizer steps.

    Args:
        graphs: the training step.
        tensors: input → value, float32, for every tensor of the network and every shared input. The optimizer's state may be left out;
            it then begins with zeros.
        lr: learning rate.
        beta: momentum, or Adam's β₁.
        parts: whether batches are taken in parts, which needs :attr:`StepGraphs.passes`.
        threads: threads of onnxruntime within an operator.
        arena_bytes: limit for allocations of onnxruntime during a step. It applies to all sessions of this process from now on. None: no
            limit.

    Raises:
        EdgeflError: onnxruntime does not accept a graph, or a tensor is missing or has another shape.
    """

    def __init__(
        self,
        graphs: StepGraphs,
        tensors: Arrays,
        lr: float,
        beta: float = 0.0,
        *,
        parts: bool = False,
        threads: int = 1,
        arena_bytes: int | None = None,
    ) -> None:
        self._arena_bytes, self._roles = arena_bytes, graphs.roles
        chosen = (*graphs.passes, graphs.update) if parts else graphs.steps
        if arena_bytes is None:
            runs = [_Run(session_of(graph, threads)) for graph in chosen]
        else:
            # onnxruntime does not check constants against the limit; a limit smaller than them would overflow to no limit.
            options = limited(options_for(threads), max(arena_bytes, *(2 * len(graph) for graph in chosen)))
            runs = [_Run(opened(graph, options, _GRAPH)) for graph in chosen]
        self._kinds, self._update = runs[: len(graphs.steps)], runs[-1] if parts else None
        scalars = {LEARNING_RATE: np.array(lr, np.float32), BETA: np.array(beta, np.float32), SHARE: np.ones((), np.float32)}
        changed = {name: shape for run in runs for name, shape in run.changed.items()}
        given = set(graphs.roles.tensors.values())
        states = {name: np.zeros(shape, np.float32) for name, shape in changed.items() if name not in given}
        first = {**scalars, **states, **tensors}
        for name, shape in changed.items():
            if name not in first or first[name].shape != shape:
                found = f"shape {first[name].shape}" if name in first else "no value"
                raise EdgeflError(f"tensor {name} of the training graph: {found}, expected shape {shape}")
        needed = {name for run in runs for name in run.inputs} - {*graphs.roles.batch}
        if missing := sorted(needed - first.keys()):
            raise EdgeflError(f"tensor {missing[0]} of the training graph: no value; {len(missing)} are missing")
        # onnxruntime uses the memory of an array itself: copy the tensors that steps change, or the caller's would change.
        types = {name: kind for run in runs for name, kind in run.types.items()}
        now = {
            n: np.array(first[n], np.float32) if n in changed else _fitted(n, first[n], types[n])
            for n in sorted(needed | changed.keys())
        }
        after = {name: np.empty(shape, np.float32) for name, shape in changed.items()}
        self._now, self._next = ({name: _value(array) for name, array in arrays.items()} for arrays in (now, after))
        sums = {sum_input(name): value for name, value in graphs.roles.trained.items()}
        self._sums = {name: value for name, value in sums.items() if name in changed}
        self._summed = [arrays[name] for name in self._sums for arrays in (now, after)]  # the very memory of the sums' two sets
        self._loss = _value(np.zeros((), np.float32))

    @property
    def inputs(self) -> list[list[str]]:
        """The names of the inputs of each kind of step."""
        return [list(run.inputs) for run in self._kinds]

    @property
    def held_bytes(self) -> int:
        """Bytes held between steps: both sets of buffers, and the tensors that steps only read."""
        return sum(4 * int(np.prod(value.shape(), dtype=np.int64)) for value in (*self._now.values(), *self._next.values()))

    def step(self, *batch: np.ndarray, kind: int = 0, part: int | None = None) -> float:
        """Take one step and return the loss of the batch before it.

        Args:
            batch: the arguments of the loss, samples first, for instance x (n, …) float32 and y (n,) int64.
            kind: index of the graph, if there are several kinds of step.
            part: how many samples are computed at once, if the stepper takes batches in parts; None: all.

        Raises:
            OutOfMemoryError: the step needs more than ``arena_bytes``; parameters are unchanged.
            EdgeflError: onnxruntime cannot run the step with these samples, or their values do not fit the type of the graph's input.
        """
        names = self._roles.batch
        if len(batch) != len(names):
            raise EdgeflError(f"a step takes {len(names)} arrays ({', '.join(names)}), got {len(batch)}")
        count, total = len(batch[0]), 0.0
        if self._update is None:
            return self._take(self._kinds[kind], dict(zip(names, batch, strict=True)))
        for array in self._summed:
            array.fill(0)
        for start in range(0, count, part or count):
            pieces = [array[start : start + (part or count)] for array in batch]
            share = len(pieces[0]) / count
            self._now[SHARE].update_inplace(np.array(share, np.float32))
            total += share * self._take(self._kinds[kind], dict(zip(names, pieces, strict=True)))
        self._take(self._update, {})
        return total

    def tensors(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors that steps change: input → value, the optimizer's state included."""
        return {name: self._now[name].numpy().copy() for name in self._next if name not in self._sums}

    def sums(self) -> dict[str, np.ndarray]:
        """Return copies of the gradients of the last step in parts: input of the parameter → gradient."""
        return {value: self._now[name].numpy().copy() for name, value in self._sums.items()}

    def _take(self, run: _Run, arrays: Arrays) -> float:
        binding = run.session.io_binding()
        # A network may ignore one of several inputs.
        fitted = {name: _fitted(name, array, run.types[name]) for name, array in arrays.items() if name in run.types}
        try:
            for name in run.inputs:
                if name not in arrays:
                    binding.bind_ortvalue_input(name, self._now[name])
            for name, array in fitted.items():
                binding.bind_cpu_input(name, array)
            for name in run.changed:
                binding.bind_ortvalue_output(name + OUT, self._next[name])
            if run.has_loss:
                binding.bind_ortvalue_output(LOSS, self._loss)
            run.session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's exception types live in its C extension
            if refused := refusal_in(error):
                (asked, left), have = refused, self._arena_bytes or 0
                need = have - left + asked
                raise OutOfMemoryError(
                    f"a training step needs at least {need:,} bytes, {have:,} are allowed", need, have
                ) from None
            raise EdgeflError(f"onnxruntime cannot take the step: {first_line(error)}") from error
        for name in run.changed:
            self._now[name], self._next[name] = self._next[name], self._now[name]
        return float(self._loss.numpy())


class _Run:
    """A session, the names and types of its inputs, and name → shape of the tensors that it changes."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.session = session
        outputs = {value.name: tuple(value.shape) for value in session.get_outputs()}
        self.has_loss = LOSS in outputs
        self.changed = {name.removesuffix(OUT): shape for name, shape in outputs.items() if name.endswith(OUT)}
        self.inputs = [value.name for value in session.get_inputs()]
        self.types = {value.name: _type_of(value) for value in session.get_inputs()}


def peak_bytes(graph: bytes, feed: Arrays) -> int:
    """Return the peak bytes that onnxruntime had in use during one run of a training graph, without inputs, outputs and constants.

    It is ``mem_in_use_peak`` of onnxruntime's profile, with every value freed after its last use. ``feed`` maps inputs to values; tensors
    that the graph changes default to zeros.
    """
    with scratch_folder() as folder:
        run = _Run(opened(graph, profiled(options_for(1), str(folder)), _GRAPH))
        binding = run.session.io_binding()
        zeros = {name: np.zeros(shape, np.float32) for name, shape in run.changed.items()}
        kept = {name: _value({**zeros, **feed}[name]) for name in run.inputs}
        after = {name: _value(array) for name, array in zeros.items()}
        for name, value in kept.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in after.items():
            binding.bind_ortvalue_output(name + OUT, value)
        if run.has_loss:
            binding.bind_output(LOSS)
        run.session.run_with_iobinding(binding)
        arena = held_by(run.session)
    return arena.in_use_bytes - arena.reserved_bytes


_OTHER_NAMES = {"float": "float32", "double": "float64"}
"""Names of types in onnxruntime → in NumPy, where they differ."""


def _type_of(value: ort.NodeArg) -> np.dtype[Any]:
    """Return the type of an input's numbers."""
    name = value.type.removeprefix("tensor(").removesuffix(")")
    return np.dtype(_OTHER_NAMES.get(name, name))


def _fitted(name: str, values: Any, kind: np.dtype[Any]) -> np.ndarray:
    """Return the values of an input with the type that the graph reads; EdgeflError if a whole number or a mask would change."""
    array = np.asarray(values)
    fitted = np.asarray(array, kind, order="C")
    if kind.kind != "f" and not np.can_cast(array.dtype, kind) and not np.array_equal(fitted, array):
        raise EdgeflError(f"input {name}: got values of {array.dtype} that {kind}, which the graph reads, does not contain")
    return fitted


def _value(array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array) if array.ndim else array)


@lru_cache(maxsize=16)
def session_of(graph: bytes, threads: int) -> ort.InferenceSession:
    """Return a session for a training graph, from a cache; EdgeflError if onnxruntime does not accept the graph."""
    return opened(graph, options_for(threads), _GRAPH)
