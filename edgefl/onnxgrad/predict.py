"""Runs inference graphs as a device does, with onnxruntime and NumPy. Imports no torch.

:func:`predict_capped` limits memory to a device's budget, in a process of its own. These count against ``memory_bytes``:

- the weights, once. onnxruntime stores weights that it repacks for its kernels in its CPU arena, and the others outside. They count with
  the file's size, or with their size in the arena if that is larger;
- everything else in the arena: activations, outputs, and the temporary memory of kernels, fragmentation included.

The interpreter, the library, the parsed graph and the caller's array of inputs do not count.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import onnxruntime as ort

from edgefl.onnxgrad.contexts import scratch_folder, temporary_files
from edgefl.onnxgrad.errors import EdgeflError, StorageError
from edgefl.onnxgrad.fields import Fields, first, named, rows, unnamed
from edgefl.onnxgrad.session import Arena, OutOfMemoryError, computed, held_by, limited, opened, options_for, profiled, refusal_in

_OUT_OF_MEMORY, _NO_SPACE = 9, 10
_LEAST, _MOST = 4, 200
"""So many times a graph is timed."""


@dataclass(frozen=True)
class Predicted:
    """The outputs (n, classes) float32 of a graph, the seconds on this computer, and the memory of the first batch.

    Attributes:
        peak_bytes: smallest budget in which the graph runs.
        peak_activation_bytes: most in use at once without weights, by onnxruntime (``mem_in_use_peak``); the inputs are not included.
    """

    logits: np.ndarray
    host_s: float
    peak_bytes: int
    peak_activation_bytes: int


def predict(model: bytes | Path, x: Fields[np.ndarray], *, batch_size: int, threads: int = 1) -> np.ndarray:
    """Return the outputs of a graph for samples ``x`` (n, …), computed ``batch_size`` at a time; EdgeflError if onnxruntime fails.

    Several inputs, name → (n, …), are those that the graph calls ``x.NAME``.
    """
    count = _checked(x, batch_size)
    session = opened(model, options_for(threads))
    return np.concatenate([_run(session, rows(x, slice(i, i + batch_size))) for i in range(0, count, batch_size)])


def predict_capped(model: bytes | Path, x: Fields[np.ndarray], *, batch_size: int, memory_bytes: int) -> Predicted:
    """Run a graph on ``x`` (n, …) with ``memory_bytes`` for weights and arena, on one thread in a process of its own.

    Raises:
        OutOfMemoryError: the graph needs more at this batch size; smaller batches may fit.
        StorageError: the disk of temporary files is full.
        EdgeflError: the process failed for another reason; the message has its last line of output.
    """
    _checked(x, batch_size)
    with scratch_folder() as folder:
        path = model if isinstance(model, Path) else folder / "model.onnx"
        if isinstance(model, bytes):
            path.write_bytes(model)
        for name, array in named(x, "x").items():
            np.save(folder / f"{name}.npy", array)
        done = _spawn(str(path.resolve()), str(folder), batch_size, memory_bytes)
        if done.returncode == _OUT_OF_MEMORY:
            raise OutOfMemoryError(**json.loads(done.stdout), have_bytes=memory_bytes)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            if done.returncode == _NO_SPACE:
                raise StorageError(last)
            raise EdgeflError(f"onnxruntime stopped with status {done.returncode}: {last}")
        return Predicted(np.load(folder / "logits.npy"), **json.loads(done.stdout))


def median_seconds(models: Sequence[bytes], x: Fields[np.ndarray], seconds: float = 0.5) -> list[float]:
    """Return the median time of each graph on one batch ``x`` and one thread; the graphs take turns, for about so many ``seconds``."""
    sessions = [opened(model, options_for(1)) for model in models]
    rounds: list[list[float]] = []
    begun = time.perf_counter()
    while len(rounds) < _LEAST or (time.perf_counter() - begun < seconds and len(rounds) < _MOST):
        rounds.append([])
        for session in sessions:
            started = time.perf_counter()
            _run(session, x)
            rounds[-1].append(time.perf_counter() - started)
    return [median(taken) for taken in zip(*rounds[1:], strict=True)]  # the first round warms up


def _spawn(*order: str | int) -> subprocess.CompletedProcess[str]:
    # Not from the working directory, whose files could shadow modules.
    paths = os.pathsep.join(filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "edgefl.onnxgrad.predict", json.dumps(order)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths})


def _checked(x: Fields[np.ndarray], batch_size: int) -> int:
    """Return the number of samples."""
    count = len(first(x))
    if batch_size < 1 or not count:
        raise EdgeflError(f"nothing to run: {count} samples in batches of {batch_size}, expected at least one of each")
    return count


def _profiled(folder: str) -> ort.SessionOptions:
    options = profiled(options_for(1), folder)
    # The highest level uses memory layouts of this computer's processor (x86), which the simulated device does not have.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options


def feed_of(session: ort.InferenceSession, x: Fields[np.ndarray]) -> dict[str, np.ndarray]:
    """Return input → samples, as a session takes them; one array is its only input, whatever its name."""
    known, inputs = named(x, "x"), session.get_inputs()
    feed = {inputs[0].name: x} if isinstance(x, np.ndarray) else {entry.name: known[entry.name] for entry in inputs}
    return {name: np.ascontiguousarray(array) for name, array in feed.items()}


def _run(session: ort.InferenceSession, x: Fields[np.ndarray]) -> np.ndarray:
    (output, *_) = computed(session, feed_of(session, x)).values()
    return output.copy()  # a copy: the original is in the arena, which would grow with the number of batches


def _child(model: str, folder: str, batch_size: int, memory_bytes: int) -> int:
    """Run a graph on the samples in ``folder`` in this process. Its arena stays limited as long as it lives.

    The outputs become a file in ``folder``. Print figures as JSON, and return the exit status.
    """
    x = unnamed({path.stem: np.load(path) for path in sorted(Path(folder).glob("*.npy"))}, "x")
    count = len(first(x))
    # onnxruntime does not check weights against the limit; a limit smaller than them would overflow to no limit. So measure them first.
    reserved = _first_batch(opened(Path(model), _profiled(folder)), rows(x, slice(1)))[1].reserved_bytes
    weight_bytes = max(Path(model).stat().st_size, reserved)
    if memory_bytes <= weight_bytes:
        return _out_of_memory(f"the weights alone take {weight_bytes:,} bytes, {memory_bytes:,} are allowed", weight_bytes)
    exceeded = partial(_exceeded, batch_size, memory_bytes)
    try:
        started = time.perf_counter()
        session = opened(Path(model), limited(_profiled(folder), reserved + memory_bytes - weight_bytes))
        begun, arena = _first_batch(session, rows(x, slice(batch_size)))
        rest = [_run(session, rows(x, slice(i, i + batch_size))) for i in range(batch_size, count, batch_size)]
        host_s = time.perf_counter() - started
    except EdgeflError as error:
        if refused := refusal_in(error.__cause__):
            return exceeded(*refused)
        raise
    peak_bytes = weight_bytes + arena.held_bytes - reserved
    if peak_bytes > memory_bytes:
        return exceeded(peak_bytes - memory_bytes, 0)
    np.save(Path(folder) / "logits.npy", np.concatenate([begun, *rest]))
    peak_activation_bytes = arena.in_use_bytes - reserved
    sys.stdout.write(json.dumps({"host_s": host_s, "peak_bytes": peak_bytes, "peak_activation_bytes": peak_activation_bytes}))
    return 0


def _exceeded(batch_size: int, memory_bytes: int, asked_bytes: int, left_bytes: int) -> int:
    allowed = f"batch of {batch_size}, {memory_bytes:,} bytes allowed"
    message = f"{allowed}: needs {asked_bytes:,} bytes more, has {left_bytes:,} left"
    return _out_of_memory(message, memory_bytes - left_bytes + asked_bytes)


def _out_of_memory(message: str, need_bytes: int) -> int:
    sys.stdout.write(json.dumps({"message": message, "need_bytes": need_bytes}))
    return _OUT_OF_MEMORY


def _first_batch(session: ort.InferenceSession, x: Fields[np.ndarray]) -> tuple[np.ndarray, Arena]:
    """Run one batch and end the profile, which would slow down the other batches."""
    logits = _run(session, x)
    return logits, held_by(session)


if __name__ == "__main__":
    try:
        with temporary_files():
            sys.exit(_child(*json.loads(sys.argv[1])))
    except StorageError as failure:
        sys.stderr.write(str(failure))
        sys.exit(_NO_SPACE)
    except EdgeflError as failure:
        sys.exit(str(failure))
