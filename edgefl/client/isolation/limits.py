"""A process and the system: limits of its memory and time, the memory that it holds, its core and its allocator.

There are three ways to limit memory. Not every system has all of them:

- a memory cgroup (version 2), if this process may make one: the kernel kills a process that exceeds ``memory.max``.
- a watchdog on every system: another process reads the resident memory every 20 ms and kills. On Linux it also reads the kernel's own peak
  at the end, which includes shorter peaks.
- ``RLIMIT_DATA`` on Linux: private writable memory, touched or not. An allocation beyond it fails, and torch raises. Kernels that oneDNN
  generates for a layer reserve far more than they touch, so this limit is higher than the watchdog's.

All of them count pages of 4 KiB or more. These contain what the allocator caches or wastes, and what kernels use inside one operation. No
meter of tensors sees either.
"""

import contextlib
import ctypes
import mmap
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from edgefl.client.isolation.cgroup import Cgroup

MIB = 1 << 20
# Of glibc's malloc.h. Allocations of the threshold or more are mappings of their own, returned to the system when freed.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
# 32 MiB is the largest threshold on 64-bit systems.
_KEEPING = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 1 << 30, _M_TOP_PAD: 16 << 20}
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


@dataclass(frozen=True)
class Guard:
    """Which ways limit memory: RLIMIT_DATA, the watchdog, and cgroups in a folder, which replace RLIMIT_DATA (None: no cgroups)."""

    data_limit: bool = True
    watchdog: bool = True
    cgroups: Path | None = None


@dataclass(frozen=True)
class Held:
    """Memory of a process: ``data_bytes`` are private and writable, touched or not, ``resident_bytes`` touched and backed by no file."""

    data_bytes: int
    resident_bytes: int

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.data_bytes - other.data_bytes, self.resident_bytes - other.resident_bytes)


def held(pid: int | None = None) -> Held | None:
    """Return what process ``pid`` (None: this one) holds, or None if it is gone; on other systems than Linux, both are the resident set.

    >>> now = held()
    >>> 0 < now.resident_bytes
    True
    """
    if sys.platform != "linux":
        try:
            resident = psutil.Process(pid).memory_info().rss
        except psutil.Error:
            return None
        return Held(resident, resident)
    try:
        sizes = _status_bytes(pid or "self", "VmData|RssAnon")
    except OSError:
        return None
    return Held(sizes["VmData"], sizes["RssAnon"]) if len(sizes) == 2 else None


def _status_bytes(pid: int | str, names: str) -> dict[str, int]:
    """Return name → bytes in the status that ``/proc`` has of a process; ``names`` is a regular expression."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return {name: 1024 * int(kb) for name, kb in re.findall(rf"^({names}):\s+(\d+) kB$", status, re.MULTILINE)}


def own() -> Held:
    """Return what this process holds."""
    now = held()
    assert now is not None  # because it runs
    return now


def reset_peak() -> None:
    """Restart the peak of :func:`peak_bytes` at the present memory (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return a lower bound of the peak of memory backed by no file: on Linux the kernel's peak minus file pages, which only grow."""
    now = own().resident_bytes
    if sys.platform != "linux":
        return now
    sizes = _status_bytes("self", "VmHWM|RssFile|RssShmem")
    return max(now, sizes.get("VmHWM", 0) - sizes.get("RssFile", 0) - sizes.get("RssShmem", 0))


def set_data_limit(limit_bytes: int | None) -> None:
    """Limit this process to ``limit_bytes`` of private writable memory; None removes the limit."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = hard if limit_bytes is None else max(0, limit_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def set_cpu_limit(limit_s: int) -> None:
    """Send this process SIGXCPU after ``limit_s`` processor seconds and SIGKILL a second later, without a core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))


def data_limit_holds() -> bool:
    """Return whether this system enforces RLIMIT_DATA for mappings (Linux from 4.7 on; not macOS, not every sandbox)."""
    if sys.platform != "linux":
        return False
    set_data_limit(own().data_bytes + 8 * MIB)
    try:
        mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
    except OSError:
        return True
    finally:
        set_data_limit(None)
    return False


def _libc(function: str, *arguments: int) -> bool:
    """Call a function of the C library, if this is Linux and the function exists; return whether its result is not zero."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return hasattr(library, function) and bool(getattr(library, function)(*arguments))


def give_back_freed() -> None:
    """Let glibc return larger blocks to the system as soon as they are freed: ResNet-9 needs 6 % more than its tensors instead of 42 %.

    Training a network of a few MB may take 1.5 times as long, because the system clears such memory every time.
    """
    _libc("mallopt", _M_MMAP_THRESHOLD, 64 << 10)


def keep_freed_memory() -> bool:
    """Let the C library retain freed memory for later allocations; return whether it can (glibc).

    A training step allocates what the last one freed. By default glibc returns blocks of 128 KiB or more to the system, which clears them.
    Afterwards the process holds up to 1 GiB beyond what is in use. Blocks above 32 MiB are still returned.
    """
    taken = [_libc("mallopt", option, value) for option, value in _KEEPING.items()]
    return all(taken)


def trim() -> None:
    """Return all freed memory to the system, small blocks too, so that later allocations are new and count."""
    _libc("malloc_trim", 0)


def pin(worker: int, workers: int) -> int | None:
    """Bind this process to one core if each of ``workers`` can have its own; return the core, or None.

    The process must be allowed exactly as many cores as there are workers: otherwise two runs would choose the same cores. A worker that
    moves to another core finds its caches empty. ``worker`` counts from 1.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []  # macOS has no such function
    if len(cores) != workers:
        return None
    os.sched_setaffinity(0, {cores[worker - 1]})
    return cores[worker - 1]


def die_with(parent: int) -> None:
    """Let the system kill this process when its parent dies (Linux). ``parent`` is the parent's process number."""
    _libc("prctl", _PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:  # it died before the call above
        os._exit(1)


@contextlib.contextmanager
def limited(guard: Guard, cgroup: Cgroup | None, data_bytes: int, private_bytes: int) -> Iterator[None]:
    """Limit this process in a block, by ``cgroup`` to touching ``private_bytes``, or without a cgroup to ``data_bytes``, touched or not."""
    if cgroup is not None:
        cgroup.enter(private_bytes)
    elif guard.data_limit:
        set_data_limit(data_bytes)
    try:
        yield
    finally:
        if cgroup is not None:
            cgroup.limit("max")
        elif guard.data_limit:
            set_data_limit(None)
