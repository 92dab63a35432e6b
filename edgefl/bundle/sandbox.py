"""The sandbox for graphs of unknown origin: one child process, whose memory and time are limited."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from edgefl.client.isolation.limits import held
from edgefl.errors import InputError

POLL_S = 0.02
_START_S = 60.0  # until its first line, which a busy computer may take long to reach
_LEAST_BYTES = 4 << 30
_PER_BYTE = 8
_SHARE_OF_FREE = 0.8


@dataclass(frozen=True)
class Limits:
    """What checking a bundle may take: memory (None: from its files and this computer's memory), and time for each file."""

    memory_bytes: int | None = None
    file_s: float = 60.0


@dataclass
class Tried:
    """What came of it: per tier its largest differences (outputs; losses, where it trains), and (file or tier, problem) pairs."""

    errors: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)


def default_memory_bytes(bundle_bytes: int) -> int:
    """Return the default memory limit of a bundle's graphs: by the size of its files, at most four fifths of the free memory."""
    return int(min(_LEAST_BYTES + _PER_BYTE * bundle_bytes, _SHARE_OF_FREE * psutil.virtual_memory().available))


def try_tiers(folder: Path, labels: Sequence[str], limits: Limits, bundle_bytes: int) -> Tried:
    """Check the tiers of those ``labels`` in a child process, which is gone when this returns.

    Raises:
        InputError: the child could not start; in its own words.
    """
    memory_bytes = limits.memory_bytes or default_memory_bytes(bundle_bytes)
    order = {"folder": str(folder.resolve()), "labels": list(labels), "memory_bytes": memory_bytes, "parent": os.getpid()}
    with tempfile.TemporaryFile() as errors, _started(errors) as child:
        try:
            return _followed(child, order, limits.file_s, memory_bytes, errors)
        finally:
            child.kill()


def _started(errors: IO[bytes]) -> subprocess.Popen[str]:
    """Start the child with this package on its path, and not the working directory, whose files could stand in for modules."""
    package = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", "-m", "edgefl.bundle.sandbox_child"]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8", env=environment
    )


def _followed(
    child: subprocess.Popen[str], order: Mapping[str, Any], file_s: float, memory_bytes: int, errors: IO[bytes]
) -> Tried:
    """Collect what the child says of the tiers until it is done; kill it when one file takes too long or it holds too much."""
    assert child.stdin is not None  # a pipe, as asked for
    tried, at = Tried(), "its start"
    try:
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.close()
    except BrokenPipeError:
        pass  # it died; what it said before follows
    for line in _lines(child, file_s, memory_bytes):
        message: dict[str, Any] = json.loads(line)
        if "killed" in message:
            tried.problems.append((at, message["killed"]))
            return tried
        if "at" in message:
            at = message["at"]
        elif "problem" in message:
            tried.problems.append((f"tier {message['tier']}", message["problem"]))
        elif "tier" in message:
            tried.errors[message["tier"]] = tuple(message["errors"])
        else:
            return tried
    child.wait()
    errors.seek(0)
    last = (errors.read()[-2000:].decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if at == "its start":
        raise InputError(f"{order['folder']}: the process that checks it did not start: {last[:300]}")
    tried.problems.append((at, f"the process that ran it {_how(child.returncode)}"))
    return tried


def _lines(child: subprocess.Popen[str], file_s: float, memory_bytes: int) -> Iterator[str]:
    """Yield the lines that the child prints; the last one may say why it was killed."""
    assert child.stdout is not None
    lines: queue.Queue[str] = queue.Queue()

    def read(stream: IO[str]) -> None:
        for text in stream:
            lines.put(text)
        lines.put("")

    threading.Thread(target=read, args=(child.stdout,), daemon=True).start()
    deadline = time.monotonic() + max(file_s, _START_S)
    while True:
        try:
            text = lines.get(timeout=POLL_S)
        except queue.Empty:
            now = held(child.pid)
            if now is not None and now.resident_bytes > memory_bytes:
                yield json.dumps({"killed": f"needs more than {memory_bytes:,} bytes of memory; --memory allows more"})
                return
            if time.monotonic() > deadline:
                yield json.dumps({"killed": f"did not end in {file_s:g} s; --timeout allows more"})
                return
            continue
        if not text:
            return
        deadline = time.monotonic() + file_s
        yield text


def _how(status: int) -> str:
    """Say how a process ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"died of {signal.Signals(-status).name}"
    except ValueError:
        return f"died of signal {-status}"
