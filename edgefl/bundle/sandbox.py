"""Runs graphs of unknown origin in one child process with limited memory and time."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from edgefl.client.isolation.limits import held
from edgefl.errors import InputError
from edgefl.util.files import module_command

POLL_S = 0.02
_START_S = 60.0  # at least so long until the first line: a busy computer starts processes slowly
_LEAST_BYTES = 4 << 30
_PER_BYTE = 8
_SHARE_OF_FREE = 0.8


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of a check: bytes of the child process (None: :func:`default_memory_bytes`), and seconds for each file."""

    memory_bytes: int | None = None
    file_s: float = 60.0


@dataclass
class TierChecks:
    """The result of :func:`check_tiers`.

    Attributes:
        errors: label of a tier that passed → largest difference of its outputs (absolute) and of its losses (relative; None: no training).
        problems: (file or tier, problem), in the order in which they were found.
    """

    errors: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)


def default_memory_bytes(bundle_bytes: int) -> int:
    """Return the default memory limit: 4 GiB plus eight times the bundle's size, at most four fifths of the free memory."""
    return int(min(_LEAST_BYTES + _PER_BYTE * bundle_bytes, _SHARE_OF_FREE * psutil.virtual_memory().available))


def check_tiers(folder: Path, labels: Sequence[str], limits: SandboxLimits, bundle_bytes: int) -> TierChecks:
    """Check the tiers with these ``labels`` of the bundle in ``folder``, in a child process that has ended when this returns.

    ``bundle_bytes`` is the size of all files. The default memory limit follows from it. InputError if the child does not start.
    """
    memory_bytes = limits.memory_bytes or default_memory_bytes(bundle_bytes)
    order = {"folder": str(folder.resolve()), "labels": list(labels), "memory_bytes": memory_bytes, "parent": os.getpid()}
    command, environment = module_command("edgefl.bundle.sandbox_child")
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, env=environment, encoding="utf-8") as child,
    ):
        try:
            return _followed(child, order, limits.file_s, memory_bytes, errors)
        finally:
            child.kill()


def _followed(
    child: subprocess.Popen[str], order: Mapping[str, object], file_s: float, memory_bytes: int, errors: IO[bytes]
) -> TierChecks:
    """Collect the child's results. They end with a problem if it dies, or exceeds ``file_s`` for a file or ``memory_bytes``."""
    assert child.stdin is not None  # a pipe
    checks, place = TierChecks(), "its start"
    try:
        child.stdin.write(json.dumps(order) + "\n")
        child.stdin.close()
    except BrokenPipeError:
        pass  # the child died; the lines that it wrote before are read below
    for line in _lines(child, file_s, memory_bytes):
        message = json.loads(line)
        if "killed" in message:
            checks.problems.append((place, message["killed"]))
            return checks
        if "at" in message:
            place = message["at"]
        elif "problem" in message:
            checks.problems.append((f"tier {message['tier']}", message["problem"]))
        elif "tier" in message:
            checks.errors[message["tier"]] = tuple(message["errors"])
        else:
            return checks
    child.wait()
    errors.seek(0)
    last = (errors.read()[-2000:].decode(errors="replace").strip().splitlines() or ["no message"])[-1]
    if place == "its start":
        raise InputError(f"{order['folder']}: the process that checks it did not start: {last[:300]}")
    checks.problems.append((place, f"the process that ran it {_how(child.returncode)}"))
    return checks


def _lines(child: subprocess.Popen[str], file_s: float, memory_bytes: int) -> Iterator[str]:
    """Yield the lines that the child prints. At a limit the last one is ``{"killed": reason}``; the caller then kills the child."""
    assert child.stdout is not None
    lines: queue.Queue[str] = queue.Queue()

    def read(stream: IO[str]) -> None:
        for text in stream:
            lines.put(text)
        lines.put("")

    threading.Thread(target=read, args=(child.stdout,), daemon=True).start()
    allowed_s = max(file_s, _START_S)
    deadline = time.monotonic() + allowed_s
    while True:
        try:
            text = lines.get(timeout=POLL_S)
        except queue.Empty:
            now = held(child.pid)
            if now is not None and now.resident_bytes > memory_bytes:
                yield json.dumps({"killed": f"needs more than {memory_bytes:,} bytes of memory; --memory allows more"})
                return
            if time.monotonic() > deadline:
                yield json.dumps({"killed": f"did not end in {allowed_s:g} s; --timeout allows more"})
                return
            continue
        if not text:
            return
        allowed_s = file_s
        deadline = time.monotonic() + allowed_s
        yield text


def _how(status: int) -> str:
    """Return how a process ended, as the end of a sentence."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"died of {signal.Signals(-status).name}"
    except ValueError:
        return f"died of signal {-status}"
