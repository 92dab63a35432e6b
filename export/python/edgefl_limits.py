"""Limits of this process while it runs a graph that it does not know: memory and time. A loop without an end has one, too."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_LEAST_BYTES = 4 << 30
_PER_BYTE = 8


@contextlib.contextmanager
def watched(seconds: float | None, what: str) -> Iterator[None]:
    """End the process with status 3 if the block takes more than ``seconds`` (None: no limit): onnxruntime cannot always be interrupted."""
    if seconds is None:
        yield
        return

    def give_up() -> None:
        sys.stderr.write(f"Error: {what} took more than {seconds:g} s; --timeout allows more, if you trust the bundle\n")
        sys.stderr.flush()
        os._exit(3)

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def limited_memory(bundle_bytes: int) -> Iterator[None]:
    """Let this process take 4 GiB and eight times the bundle's size more than it has; allocations beyond that fail. On Linux only."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
    except (ImportError, OSError):
        yield
        return
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = pages * resource.getpagesize() + _LEAST_BYTES + _PER_BYTE * bundle_bytes
    least = min([limit, *(known for known in before if known != resource.RLIM_INFINITY)])
    resource.setrlimit(resource.RLIMIT_DATA, (least, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
