"""Sessions of onnxruntime: opened, limited in memory, run and measured. No torch in the process."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from edgefl.errors import EdgeflError, first_line

_REFUSED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")


@dataclass(frozen=True)
class Arena:
    """What a profile says of the arena: bytes of constants in it before the first operator, all it held, and had in use at the peak."""

    reserved_bytes: int
    held_bytes: int
    in_use_bytes: int


@dataclass(frozen=True)
class Refusal:
    """What an arena with a limit refused: what was asked for, and what was left."""

    asked_bytes: int
    left_bytes: int


def options_for(threads: int) -> ort.SessionOptions:
    """Return the options of a silent session that computes with so many threads."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return options


def profiled(options: ort.SessionOptions, folder: str) -> ort.SessionOptions:
    """Make a session write into ``folder`` what it holds, and hold no more than it must; return its options."""
    options.enable_profiling = True
    options.profile_file_prefix = str(Path(folder) / "profile")
    # A pattern would fill what room is left with a second block: use would then depend on the budget and the number of batches.
    options.enable_mem_pattern = False
    # Free a value after its last use, instead of keeping its room for a later one of the same size: up to a third less at the peak.
    options.enable_mem_reuse = False
    return options


def limited(options: ort.SessionOptions, limit_bytes: int) -> ort.SessionOptions:
    """Limit what sessions of this process may allocate, for good, and make this one obey; return its options."""
    arena = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    # 1: grow by what is asked for, no more. -1: the library's own chunk sizes; others have been seen to abort the process.
    ort.create_and_register_allocator(arena, ort.OrtArenaCfg(limit_bytes, 1, -1, -1))
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "1")
    return options


def opened(model: bytes | Path, options: ort.SessionOptions, what: str = "the graph") -> ort.InferenceSession:
    """Return a session on the processor.

    Raises:
        EdgeflError: onnxruntime does not take ``what``.
    """
    try:
        return ort.InferenceSession(
            model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's exception types live in its C extension
        raise EdgeflError(f"onnxruntime does not take {what}: {first_line(error)}") from error


def computed(session: ort.InferenceSession, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return name → output of a graph.

    Raises:
        EdgeflError: onnxruntime cannot run the graph with these inputs.
    """
    names = [value.name for value in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, feed), strict=True))
    except Exception as error:  # as above
        raise EdgeflError(f"onnxruntime cannot run the graph: {first_line(error)}") from error


def held_by(session: ort.InferenceSession) -> Arena:
    """End a session's profile and return what it says of memory.

    Raises:
        EdgeflError: this onnxruntime does not say.
    """
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels: list[dict[str, Any]] = [e["args"] for e in events if "mem_arena_held" in e.get("args", {})]
    if not kernels:
        raise EdgeflError(f"onnxruntime {ort.__version__} does not report its memory; 1.28 or newer does")
    reserved = int(kernels[0]["mem_bytes_in_use"]) - int(kernels[0]["mem_in_use_delta"])
    held, in_use = (max(int(kernel[key]) for kernel in kernels) for key in ("mem_arena_held", "mem_in_use_peak"))
    return Arena(reserved, held, in_use)


def refusal_in(error: BaseException | None) -> Refusal | None:
    """Return what an arena refused, if that is what ``error`` says."""
    found = _REFUSED.search(str(error))
    return None if found is None else Refusal(asked_bytes=int(found[2]), left_bytes=int(found[1]))
