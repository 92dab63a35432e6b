"""Opens, limits, runs and measures sessions of onnxruntime. Imports no torch."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgefl.onnxgrad.contexts import no_space
from edgefl.onnxgrad.errors import EdgeflError, first_line

ort.set_default_logger_severity(4)  # also of what no session logs, such as failed allocations: errors are exceptions
_REFUSED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")


@dataclass(frozen=True)
class Arena:
    """The memory of a session's CPU arena: constants before the first operator, most held with fragmentation, most in use at once."""

    reserved_bytes: int
    held_bytes: int
    in_use_bytes: int


class OutOfMemoryError(EdgeflError):
    """A graph needs at least ``need_bytes`` of memory; ``have_bytes`` are allowed."""

    def __init__(self, message: str, need_bytes: int, have_bytes: int) -> None:
        super().__init__(message)
        self.need_bytes = need_bytes
        self.have_bytes = have_bytes


def options_for(threads: int) -> ort.SessionOptions:
    """Return the options of a session that logs nothing and computes with so many ``threads``."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def profiled(options: ort.SessionOptions, folder: str) -> ort.SessionOptions:
    """Let a session write a memory profile into ``folder`` and free every value after its last use; return ``options``."""
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder) / "profile")
    # A memory pattern would allocate a second block in the room that is left: use would depend on the limit and the number of batches.
    options.enable_mem_pattern = False
    # Otherwise buffers are held for later values of the same size: up to half as much again at the peak.
    options.enable_mem_reuse = False
    return options


def limited(options: ort.SessionOptions, limit_bytes: int) -> ort.SessionOptions:
    """Limit the arena that sessions of this process share, which cannot be undone, and let this one use it; return ``options``."""
    arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    # 1: grow by the requested bytes only. -1: default chunk sizes; with others the process sometimes aborted.
    ort.create_and_register_allocator(arena, ort.OrtArenaCfg(limit_bytes, 1, -1, -1))
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def opened(model: bytes | Path, options: ort.SessionOptions, what: str = "the graph") -> ort.InferenceSession:
    """Return a session on the CPU for a serialized ``model`` or its file; EdgeflError if onnxruntime does not accept ``what``."""
    try:
        return ort.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's exception types live in its C extension
        raise EdgeflError(f"onnxruntime does not take {what}: {first_line(error)}") from error


def computed(session: ort.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph on ``feed``, input → value, and return output → value; EdgeflError if onnxruntime fails."""
    names = [value.name for value in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, feed), strict=True))
    except Exception as error:  # as above
        raise EdgeflError(f"onnxruntime cannot run the graph: {first_line(error)}") from error


def held_by(session: ort.InferenceSession) -> Arena:
    """End the profile of a session opened with :func:`profiled`, and return its memory.

    Raises:
        EdgeflError: onnxruntime is too old.
        StorageError: onnxruntime could not write the whole profile, which it does not say itself.
    """
    path = Path(session.end_profiling())
    try:
        events = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise no_space() from None
    kernels: list[dict[str, Any]] = [e["args"] for e in events if "mem_arena_held" in e.get("args", {})]
    if not kernels:
        raise EdgeflError(f"onnxruntime {ort.__version__} does not report its memory; 1.28 or newer does")
    reserved = int(kernels[0]["mem_bytes_in_use"]) - int(kernels[0]["mem_in_use_delta"])
    held, in_use = (max(int(kernel[key]) for kernel in kernels) for key in ("mem_arena_held", "mem_in_use_peak"))
    return Arena(reserved, held, in_use)


def refusal_in(error: BaseException | None) -> tuple[int, int] | None:
    """Return the bytes asked for and the bytes left below the limit, if ``error`` says that a limited arena refused them; else None."""
    found = _REFUSED.search(str(error))
    return None if found is None else (int(found[2]), int(found[1]))
