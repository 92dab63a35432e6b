"""Exported graphs as a device runs them: onnxruntime and NumPy, no torch in the process.

:func:`predict_capped` holds memory to a device's budget: a process of its own runs the graph with onnxruntime's CPU arena limited. The
arena holds activations and what kernels ask for; onnxruntime keeps weights outside its limit, so the graph's file size, which is that of
its weights, comes off the budget first. The interpreter, the library and the caller's array of inputs are not counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edgefl.errors import EdgeflError

_REFUSED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
_OUT_OF_MEMORY = 9


class OutOfMemoryError(EdgeflError):
    """A graph needed more than its memory budget."""


@dataclass(frozen=True)
class Predicted:
    """Outputs (n, classes) float32, and how long this computer took."""

    logits: np.ndarray
    host_s: float


def session_of(model: bytes | Path, threads: int = 1, *, shared_arena: bool = False) -> ort.InferenceSession:
    """Return an onnxruntime session for a graph.

    Raises:
        EdgeflError: onnxruntime does not take the graph.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if shared_arena:
        options.add_session_config_entry("session.use_env_allocators", "1")
    try:
        source = model if isinstance(model, bytes) else str(model)
        return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exception types live in its C extension
        if _REFUSED.search(str(error)):
            raise
        raise EdgeflError(f"onnxruntime does not take the graph: {str(error).splitlines()[0]}") from None


def predict(model: bytes | Path, x: np.ndarray, *, batch_size: int, threads: int = 1) -> np.ndarray:
    """Return the outputs of a graph for samples ``x`` (n, …) float32, ``batch_size`` at a time.

    Raises:
        EdgeflError: onnxruntime does not take the graph, or fails while running it.
    """
    return _run(session_of(model, threads), x, batch_size)


def _run(session: ort.InferenceSession, x: np.ndarray, batch_size: int) -> np.ndarray:
    name = session.get_inputs()[0].name
    parts = [session.run(None, {name: np.ascontiguousarray(x[i : i + batch_size])})[0] for i in range(0, len(x), batch_size)]
    return np.concatenate(parts)


def predict_capped(model: Path, x: np.ndarray, *, batch_size: int, memory_bytes: int) -> Predicted:
    """Return the outputs of a graph whose weights and arena may take ``memory_bytes``, run in a process of its own.

    Raises:
        OutOfMemoryError: the graph needs more at this batch size; smaller batches may fit.
        EdgeflError: the process failed for another reason, in its own words.
    """
    arena_bytes = memory_bytes - model.stat().st_size
    if arena_bytes <= 0:
        raise OutOfMemoryError(f"the weights alone take {model.stat().st_size:,} bytes, {memory_bytes:,} are allowed")
    with tempfile.TemporaryDirectory(prefix="edgefl-") as folder:
        inputs, outputs = Path(folder) / "x.npy", Path(folder) / "logits.npy"
        np.save(inputs, x)
        order = {
            "model": str(model.resolve()),
            "inputs": str(inputs),
            "outputs": str(outputs),
            "batch_size": batch_size,
            "arena_bytes": arena_bytes,
        }
        command = [sys.executable, "-m", "edgefl.local.onnx_runtime", json.dumps(order)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"batch of {batch_size}, {memory_bytes:,} bytes allowed: {done.stderr.strip()}")
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise EdgeflError(f"onnxruntime stopped with status {done.returncode}: {last}")
        return Predicted(np.load(outputs), json.loads(done.stdout)["host_s"])


def _child(order: dict[str, str | int]) -> int:
    """Run one order in this process, whose arena is limited for good."""
    arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    # The last three keep the library's own chunk sizes; others have been seen to abort the process.
    ort.create_and_register_allocator(arena, ort.OrtArenaCfg(int(order["arena_bytes"]), 1, -1, -1))
    started = time.perf_counter()
    try:
        session = session_of(Path(str(order["model"])), shared_arena=True)
        logits = _run(session, np.load(str(order["inputs"])), int(order["batch_size"]))
    except Exception as error:  # onnxruntime's exception types live in its C extension
        if refused := _REFUSED.search(str(error)):
            sys.stderr.write(f"needs {int(refused[2]):,} bytes more, has {int(refused[1]):,} left")
            return _OUT_OF_MEMORY
        raise
    np.save(str(order["outputs"]), logits)
    sys.stdout.write(json.dumps({"host_s": time.perf_counter() - started}))
    return 0


if __name__ == "__main__":
    sys.exit(_child(json.loads(sys.argv[1])))
