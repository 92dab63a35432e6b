"""Exported graphs as a device runs them: onnxruntime and NumPy, no torch in the process.

:func:`predict_capped` holds memory to a device's budget, in a process of its own. What counts against ``memory_bytes``:

- the weights, once. onnxruntime stores weights that it repacks for its kernels in its CPU arena, and the others outside. They count with
  the file's size, or with their size in the arena if that is larger;
- everything else in the arena: activations, outputs, and the kernels' working memory, fragmentation included.

Not counted: the interpreter, the library, the parsed graph, and the caller's array of inputs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgefl.errors import EdgeflError
from edgefl.onnxgrad.session import Arena, computed, held_by, limited, opened, options_for, profiled, refusal_in

_OUT_OF_MEMORY = 9


class OutOfMemoryError(EdgeflError):
    """A graph needs at least ``need_bytes`` in all; its budget is ``have_bytes``."""

    def __init__(self, message: str, need_bytes: int, have_bytes: int) -> None:
        super().__init__(message)
        self.need_bytes = need_bytes
        self.have_bytes = have_bytes


@dataclass(frozen=True)
class Predicted:
    """Outputs (n, classes) float32, how long this computer took, and what the first batch held.

    ``peak_bytes`` is the least budget that it runs in; ``peak_activation_bytes`` the most that was in use at once besides weights, as
    onnxruntime reports it (``mem_in_use_peak``): the caller's own array of inputs is not in it.
    """

    logits: np.ndarray
    host_s: float
    peak_bytes: int
    peak_activation_bytes: int


@dataclass(frozen=True)
class _Order:
    """What the parent asks of its child, through files in one temporary folder."""

    model: str
    folder: str
    batch_size: int
    memory_bytes: int


def predict(model: bytes | Path, x: np.ndarray, *, batch_size: int, threads: int = 1) -> np.ndarray:
    """Return the outputs of a graph for samples ``x`` (n, …), of the type that it takes, ``batch_size`` at a time.

    Raises:
        EdgeflError: onnxruntime does not take the graph or the samples, or there is nothing to run.
    """
    _check(x, batch_size)
    session = opened(model, options_for(threads))
    return np.concatenate([_run(session, x[i : i + batch_size]) for i in range(0, len(x), batch_size)])


def predict_capped(model: bytes | Path, x: np.ndarray, *, batch_size: int, memory_bytes: int) -> Predicted:
    """Return the outputs of a graph whose weights and arena may take ``memory_bytes``, run on one thread in a process of its own.

    Raises:
        OutOfMemoryError: the graph needs more at this batch size; smaller batches may fit.
        EdgeflError: the process failed for another reason, in its own words.
    """
    _check(x, batch_size)
    with tempfile.TemporaryDirectory(prefix="edgefl-") as folder:
        path = model if isinstance(model, Path) else Path(folder) / "model.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        np.save(Path(folder) / "x.npy", x)
        order = _Order(str(path.resolve()), folder, batch_size, memory_bytes)
        done = _spawn(order)
        if done.returncode == _OUT_OF_MEMORY:
            raise OutOfMemoryError(**json.loads(done.stdout), have_bytes=memory_bytes)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EdgeflError(f"onnxruntime stopped with status {done.returncode}: {last}")
        return Predicted(np.load(Path(folder) / "logits.npy"), **json.loads(done.stdout))


def _spawn(order: _Order) -> subprocess.CompletedProcess[str]:
    """Run the child with this package on its path, and not the working directory, whose files could stand in for modules."""
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "edgefl.onnxgrad.predict", json.dumps(asdict(order))]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})


def _check(x: np.ndarray, batch_size: int) -> None:
    if batch_size < 1 or not len(x):
        raise EdgeflError(f"nothing to run: {len(x)} samples in batches of {batch_size}, expected at least one of each")


def _profiled(folder: str) -> ort.SessionOptions:
    options = profiled(options_for(1), folder)
    # The highest level is that of this computer's processor (x86's blocked layouts), which the simulated device does not have.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options


def _run(session: ort.InferenceSession, x: np.ndarray) -> np.ndarray:
    (output, *_) = computed(session, {session.get_inputs()[0].name: np.ascontiguousarray(x)}).values()
    return output.copy()  # it lies in the arena: a copy gives its room back, or memory would grow with the number of batches


def _child(order: _Order) -> int:
    """Run one order in this process, whose arena is limited for good, and print the figures as JSON."""
    x = np.load(Path(order.folder) / "x.npy")
    model_bytes = Path(order.model).stat().st_size
    # The arena reserves weights without looking at its limit, and a limit below them wraps around to none at all: learn them first.
    reserved = _first_batch(opened(Path(order.model), _profiled(order.folder)), x[:1])[1].reserved_bytes
    weight_bytes = max(model_bytes, reserved)
    room_bytes = order.memory_bytes - weight_bytes
    if room_bytes <= 0:
        message = f"the weights alone take {weight_bytes:,} bytes, {order.memory_bytes:,} are allowed"
        return _out_of_memory(message, weight_bytes)
    limit_bytes = reserved + room_bytes
    try:
        started = time.perf_counter()
        session = opened(Path(order.model), limited(_profiled(order.folder), limit_bytes))
        first, arena = _first_batch(session, x[: order.batch_size])
        rest = [_run(session, x[i : i + order.batch_size]) for i in range(order.batch_size, len(x), order.batch_size)]
        host_s = time.perf_counter() - started
    except EdgeflError as error:
        if refused := refusal_in(error.__cause__):
            return _exceeded(order, refused.asked_bytes, refused.left_bytes)
        raise
    peak_bytes = weight_bytes + arena.held_bytes - reserved
    if peak_bytes > order.memory_bytes:
        return _exceeded(order, peak_bytes - order.memory_bytes, 0)
    np.save(Path(order.folder) / "logits.npy", np.concatenate([first, *rest]))
    peak_activation_bytes = arena.in_use_bytes - reserved
    sys.stdout.write(json.dumps({"host_s": host_s, "peak_bytes": peak_bytes, "peak_activation_bytes": peak_activation_bytes}))
    return 0


def _exceeded(order: _Order, asked_bytes: int, left_bytes: int) -> int:
    allowed = f"batch of {order.batch_size}, {order.memory_bytes:,} bytes allowed"
    message = f"{allowed}: needs {asked_bytes:,} bytes more, has {left_bytes:,} left"
    return _out_of_memory(message, order.memory_bytes - left_bytes + asked_bytes)


def _out_of_memory(message: str, need_bytes: int) -> int:
    sys.stdout.write(json.dumps({"message": message, "need_bytes": need_bytes}))
    return _OUT_OF_MEMORY


def _first_batch(session: ort.InferenceSession, x: np.ndarray) -> tuple[np.ndarray, Arena]:
    """Run one batch and end the profile: an event per operator is cheap once, not for a whole data set."""
    logits = _run(session, x)
    return logits, held_by(session)


if __name__ == "__main__":
    try:
        sys.exit(_child(_Order(**json.loads(sys.argv[1]))))
    except EdgeflError as failure:
        sys.exit(str(failure))
