"""Runs training steps in onnxruntime, with a limit of memory and the tensors of objectives."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from edgefl_bundle import BudgetError, Bundle, ClientError, InputError, Tensors, first_line
from edgefl_limits import watched
from edgefl_runtime import ort

_REFUSED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
_limits: list[int] = []
"""The memory limit of this process, once it is set: onnxruntime cannot change it."""


def options(threads: int) -> ort.SessionOptions:
    """Return the options of a session that logs nothing and frees every value after its last use."""
    found = ort.SessionOptions()
    found.intra_op_num_threads, found.inter_op_num_threads = threads, 1
    found.enable_mem_pattern = found.enable_mem_reuse = False
    found.log_severity_level = 4
    return found


def run(session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return copies of all outputs for ``feeds``, input → value; ClientError if onnxruntime fails."""
    try:
        return [output.copy() for output in session.run(None, {n: np.ascontiguousarray(v) for n, v in feeds.items()})]
    except Exception as error:  # onnxruntime's exception types live in its C extension
        raise ClientError(f"onnxruntime {ort.__version__} cannot run the graph: {first_line(error)}") from error


def fitting(session: ort.InferenceSession, values: Mapping[str, np.ndarray]) -> Tensors:
    """Return those of ``values`` that a graph takes, input → value; InputError if it takes another type."""
    kinds = _dtypes(session)
    found = {name: value for name, value in values.items() if name in kinds}
    for name, value in found.items():
        if value.dtype != kinds[name]:
            raise InputError(f"input {name}: got {value.dtype}, expected {np.dtype(kinds[name])}, as the graph takes it")
    return found


def _dtypes(session: ort.InferenceSession) -> dict[str, type]:
    return {one.name: _TYPES.get(one.type, np.float32) for one in session.get_inputs()}


class NotFiniteError(ClientError):
    """A step computed NaN or infinity."""


class Steps:
    """The training graphs of a tier, and the tensors that they train.

    Tensors that steps change have two buffers, one to read and one to write, which are swapped: nothing is copied between steps.
    """

    def __init__(
        self,
        bundle: Bundle,
        graphs: list[str],
        feeds: Mapping[str, Any],
        batch: Tensors,
        threads: int,
        memory_bytes: int | None,
    ) -> None:
        self._samples, self._memory_bytes, self._timeout_s = len(batch["y"]), memory_bytes, bundle.timeout_s
        sessions = [bundle.session(path, options(threads)) for path in graphs]
        arrays: Tensors = {}
        for session in sessions:
            arrays |= _complete(session, feeds)
            fitting(session, batch)
        changed = {one.name.removesuffix(".out") for s in sessions for one in s.get_outputs() if one.name.endswith(".out")}
        self._now = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        self._next = {name: ort.OrtValue.ortvalue_from_numpy(np.zeros_like(arrays[name])) for name in arrays if name in changed}
        self._loss = ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.float32))
        if memory_bytes:
            held = [value.tensor_size_in_bytes() for value in (*self._now.values(), *self._next.values())]
            held += [part.nbytes for part in batch.values()]
            one = {name: part[:1] for name, part in batch.items()}
            self._limit(sum(held), [_reserved(bundle, path, {**arrays, **one}) for path in graphs])
            sessions = [bundle.session(path, _in_arena(threads)) for path in graphs]
        self._bound = [(session, session.io_binding(), list(_dtypes(session))) for session in sessions]
        self._outputs = [{one.name for one in session.get_outputs()} for session in sessions]

    def _limit(self, outside_bytes: int, reserved_bytes: list[int]) -> None:
        """Limit onnxruntime's memory to the limit minus ``outside_bytes``: weights, their second buffers and the batch."""
        have, need = int(self._memory_bytes or 0), outside_bytes + sum(reserved_bytes)
        # onnxruntime does not check constants against the limit; a limit smaller than them would overflow to no limit.
        if need >= have:
            raise BudgetError(f"weights, optimizer state and a batch take {need:,} bytes, {have:,} are allowed", need, have)
        limit = have - outside_bytes
        if not _limits:
            arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
            # 1: grow by the requested bytes only. -1: default chunk sizes; with others the process sometimes aborted.
            ort.create_and_register_allocator(arena, ort.OrtArenaCfg(limit, 1, -1, -1))
            _limits.append(limit)
        elif _limits != [limit]:
            raise InputError("memory_bytes: this process has another limit already, for good; train in a new process")

    def step(self, batch: Tensors, number: int) -> float:
        """Run one step of graph ``number`` on a batch, and return its loss.

        Raises:
            BudgetError: the step needs more memory than allowed.
            NotFiniteError: the loss, a parameter or a statistic is NaN or infinite; all tensors are those before the step.
        """
        session, binding, inputs = self._bound[number]
        for name in inputs:
            given = batch.get(name)
            value = self._now[name] if given is None else ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(given))
            binding.bind_ortvalue_input(name, value)
        written = [name for name in self._next if f"{name}.out" in self._outputs[number]]
        for name in written:
            binding.bind_ortvalue_output(f"{name}.out", self._next[name])
        binding.bind_ortvalue_output("loss", self._loss)
        try:
            with watched(self._timeout_s, "a step"):
                session.run_with_iobinding(binding)
        except Exception as error:  # as above
            if refused := _REFUSED.search(str(error)):
                left, asked = int(refused[1]), int(refused[2])
                have = int(self._memory_bytes or 0)
                need = have - left + asked
                message = f"a step of {self._samples} samples needs at least {need:,} bytes, {have:,} are allowed"
                raise BudgetError(f"{message}; a smaller --batch-size needs less", need, have) from None
            raise ClientError(f"onnxruntime {ort.__version__} cannot run the step: {first_line(error)}") from error
        loss = float(self._loss.numpy())
        if not math.isfinite(loss):
            raise NotFiniteError(f"the loss is {loss}")
        for name in written:
            if name[:2] in ("p.", "s.") and not is_finite(self._next[name].numpy()):
                raise NotFiniteError(f"{name[2:]} would hold NaN or infinity")
        for name in written:
            self._now[name], self._next[name] = self._next[name], self._now[name]
        return loss

    def changing(self) -> Tensors:
        """Return copies of all that steps change, the optimizer's state included: input → value."""
        return {name: self._now[name].numpy().copy() for name in self._next}

    def restore(self, values: Tensors, where: str) -> None:
        """Continue from what :meth:`changing` returned; InputError, which begins with ``where``, if it is of other graphs."""
        for name in self._next:
            now = self._now[name].numpy()
            if name not in values or (values[name].shape, values[name].dtype) != (now.shape, now.dtype):
                raise InputError(f"{where}: {name}: missing or of another shape, expected {now.shape}")
            self._now[name] = ort.OrtValue.ortvalue_from_numpy(values[name])

    def tensors(self) -> Tensors:
        """Return copies of parameters and statistics: name in the network → value."""
        # numpy() may return a view of the buffer, which is freed with this object.
        return {name[2:]: value.numpy().copy() for name, value in self._now.items() if name[:2] in ("p.", "s.")}


def is_finite(array: np.ndarray) -> bool:
    """Return whether an array has neither NaN nor infinity."""
    with np.errstate(all="ignore"):  # a sum is faster than a look at each entry; that of finite numbers may be infinite
        return array.dtype.kind != "f" or bool(np.isfinite(array.sum()) or np.isfinite(array).all())


def _complete(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> Tensors:
    """Return input → value of a graph, except samples and labels; the optimizer's state begins with zeros."""
    found: Tensors = {}
    fitting(session, {name: value for name, value in feeds.items() if isinstance(value, np.ndarray)})
    for name, kind in _dtypes(session).items():
        if name in ("x", "y") or name.startswith("x."):
            continue
        value = feeds.get(name)
        if value is None and name in ("t", "seed"):
            value = 0
        if value is None and name[:2] in ("m.", "v."):
            value = np.zeros_like(feeds[f"p.{name[2:]}"])
        if value is None:
            raise InputError(f"a training graph has an input {name!r}, for which the bundle has no value")
        found[name] = np.array(value, kind, order="C")
    return found


def _reserved(bundle: Bundle, path: str, arrays: Tensors) -> int:
    """Return the bytes of a graph's constants in onnxruntime's memory, from its profile of one step."""
    with tempfile.TemporaryDirectory() as folder:
        profiled = options(1)
        profiled.enable_profiling, profiled.profile_file_prefix = True, str(Path(folder) / "step")
        session = bundle.session(path, profiled)
        with watched(bundle.timeout_s, "a step"):
            run(session, fitting(session, arrays))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [event["args"] for event in events if "mem_in_use_delta" in event.get("args", {})]
    if not kernels:
        raise InputError(f"memory_bytes: onnxruntime {ort.__version__} does not report its memory; 1.28 or newer does")
    return int(kernels[0]["mem_bytes_in_use"]) - int(kernels[0]["mem_in_use_delta"])


def _in_arena(threads: int) -> ort.SessionOptions:
    found = options(threads)
    found.add_session_config_entry("session.use_env_allocators", "1")
    return found


class Objective:
    """The term that ``prox``, ``dyn`` and ``scaffold`` add to the loss: μ/2·‖w − w₀‖² + ⟨s, w⟩ over the uploaded parameters.

    w₀ are the weights at the start of the round; s is −h for ``dyn`` and c − cₖ for ``scaffold``. After K steps at rate η,
    h ← h − μ(w − w₀) and cₖ⁺ = cₖ − c + (w₀ − w)/(K·η) stay on the device; ``scaffold`` sends cₖ⁺ − cₖ.
    """

    def __init__(self, table: Mapping[str, Any], given: Tensors, before: Mapping[str, np.ndarray | None]) -> None:
        self.name, self.strength = table["objective"]["name"], float(table["objective"]["strength"])
        names = [name for name in table["trained"] if name not in table["personal"]] if self.name != "none" else []
        self.start = {name: given[name] for name in names}
        self.control = {name: given.get(f"control:{name}", np.zeros_like(given[name])) for name in names}
        remembered = {name: before.get(name) for name in names}
        self.before = {n: np.zeros_like(given[n]) if kept is None else kept for n, kept in remembered.items()}

    def feeds(self) -> Tensors:
        """Return the inputs ``f.start.NAME`` (w₀) and ``f.shift.NAME`` (s) of the training graphs."""
        sign = 1 if self.name == "scaffold" else 0
        shifts = {f"f.shift.{name}": sign * self.control[name] - self.before[name] for name in self.start}
        return {f"f.start.{name}": value for name, value in self.start.items()} | shifts

    def finish(self, after: Tensors, travelled: float) -> Tensors:
        """Return the tensors that the device stores and sends in addition to weights; ``travelled`` is K·η, the sum of the steps' rates."""
        found: Tensors = {}
        for name, start in self.start.items() if self.name in ("dyn", "scaffold") else ():
            moved, before = after[name] - start, self.before[name]
            if self.name == "scaffold":
                kept = before - self.control[name] - moved / np.float32(travelled)
                found[f"control:{name}"] = kept - before
            else:
                kept = before - np.float32(self.strength) * moved
            found |= {f"memory:{name}": kept, f"before:{name}": before}
        return found
