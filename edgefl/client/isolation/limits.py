"""A process and this computer: limits of memory and time that the system enforces, what a process holds, its core and its allocator.

There are three ways to limit memory; a platform has some of them:

- a memory cgroup (version 2), if this process may make one: the kernel kills a process that exceeds ``memory.max``.
- a watchdog on every platform: another process reads every 20 ms what is resident, and kills. On Linux the kernel's own peak is read at the
  end, which finds shorter peaks.
- ``RLIMIT_DATA`` on Linux: private writable memory, touched or not. An allocation beyond it fails, and torch raises. Kernels that are
  generated for a layer (oneDNN) reserve far more than they touch, so this limit lies at some distance behind the watchdog's.

None of them sees tensors. All count pages (4 KiB and more), with what the allocator caches or wastes, and what kernels use inside one
operation, which no meter of tensors sees.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

MIB = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_NAME = "edgefl-{pid}"
# glibc's malloc.h. Allocations from the threshold on are mappings of their own, given back to the system when freed.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_GIVING_BACK = {_M_MMAP_THRESHOLD: 64 << 10}
# 32 MiB is the most that 64-bit systems take.
_KEEPING = {_M_MMAP_THRESHOLD: 32 << 20, _M_TRIM_THRESHOLD: 1 << 30, _M_TOP_PAD: 16 << 20}
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


@dataclass(frozen=True)
class Guard:
    """The ways in which memory is limited: by RLIMIT_DATA or by cgroups in a folder (None: without), and by the watchdog."""

    data_limit: bool = True
    watchdog: bool = True
    cgroups: Path | None = None


@dataclass(frozen=True)
class Held:
    """Bytes of a process: ``data_bytes`` private and writable, touched or not; ``resident_bytes`` in memory and backed by no file."""

    data_bytes: int
    resident_bytes: int

    def __sub__(self, other: Held) -> Held:
        return Held(self.data_bytes - other.data_bytes, self.resident_bytes - other.resident_bytes)


def held(pid: int | None = None) -> Held | None:
    """Return what process ``pid`` (None: this one) holds, or None if it is gone; without ``/proc``, both numbers are the resident set.

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
        found = _status_bytes(pid or "self", "VmData|RssAnon")
    except OSError:
        return None
    return Held(found["VmData"], found["RssAnon"]) if len(found) == 2 else None


def _status_bytes(pid: int | str, names: str) -> dict[str, int]:
    """Return the numbers of ``names``, a regular expression, that ``/proc`` has of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    return {name: 1024 * int(kb) for name, kb in re.findall(rf"^({names}):\s+(\d+) kB$", status, re.MULTILINE)}


def own() -> Held:
    """Return what this process holds."""
    now = held()
    assert now is not None  # it runs
    return now


def reset_peak() -> None:
    """Let :func:`peak_bytes` count from now on, if the kernel records a peak (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return a lower bound of the most memory that was resident and backed by no file: the kernel's peak less files, which only grow."""
    now = own().resident_bytes
    if sys.platform != "linux":
        return now
    found = _status_bytes("self", "VmHWM|RssFile|RssShmem")
    return max(now, found.get("VmHWM", 0) - found.get("RssFile", 0) - found.get("RssShmem", 0))


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
    """Call a function of the C library, on Linux and if there is one; return whether its result is not zero."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return hasattr(library, function) and bool(getattr(library, function)(*arguments))


def give_back_freed() -> None:
    """Let glibc give larger blocks back as soon as they are freed: ResNet-9 needs 6 % more than its tensors instead of 42 %.

    A network of a few MB may need half as much time again, because such memory is touched anew.
    """
    for option, value in _GIVING_BACK.items():
        _libc("mallopt", option, value)


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for its next allocations; return whether it can be told to (glibc).

    A training step frees what the next one allocates. By default glibc gives blocks of 128 KiB and more back, and gets them again as pages
    of zeros. The process then keeps its peak, at most 1 GiB beyond what is in use. Blocks above 32 MiB are given back as before.
    """
    taken = [_libc("mallopt", option, value) for option, value in _KEEPING.items()]
    return all(taken)


def trim() -> None:
    """Give back all freed memory, small blocks too: what the process allocates from here on is allocated anew, and seen."""
    _libc("malloc_trim", 0)


def pin(worker: int, workers: int) -> int | None:
    """Bind this process to one core if each of ``workers`` can have its own; return the core, or None.

    The system must allow this process exactly as many cores as there are workers: else two runs would choose the same cores. A worker that
    moves between cores finds its caches empty. ``worker`` counts from 1.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []  # macOS has no such function
    if len(cores) != workers:
        return None
    os.sched_setaffinity(0, {cores[worker - 1]})
    return cores[worker - 1]


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent, of process number ``parent``, dies."""
    _libc("prctl", _PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup (version 2) for one process at a time, named after the process that made it."""

    folder: Path

    @classmethod
    def make(cls, parent: Path) -> Cgroup:
        """Make this process's cgroup in the folder ``parent``."""
        folder = parent / _NAME.format(pid=os.getpid())
        folder.mkdir(exist_ok=True)
        return cls(folder)

    def enter(self, limit_bytes: int) -> None:
        """Move this process in: it may touch ``limit_bytes`` from now on, with nothing swapped out."""
        with contextlib.suppress(OSError):  # no swap is accounted for here
            (self.folder / "memory.swap.max").write_text("0", encoding="ascii")
        self.limit(max(0, limit_bytes))
        (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def limit(self, limit: int | Literal["max"]) -> None:
        """Set the limit; "max" removes it."""
        (self.folder / "memory.max").write_text(str(limit), encoding="ascii")

    def killed(self) -> bool:
        """Return whether the kernel killed a process in here for its memory."""
        try:
            events = (self.folder / "memory.events").read_text(encoding="ascii")
        except OSError:
            return False
        return any(int(count) for count in re.findall(r"^oom_kill (\d+)$", events, re.MULTILINE))

    def remove(self) -> None:
        """Remove it; the processes in it have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def cgroup_folder(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the folder in which this process may make memory cgroups: its own cgroup's or the one above; None if neither.

    A cgroup with processes cannot limit those of its children. Mostly it is the one above, as systemd delegates it to a user.
    """
    try:
        line = next(line for line in membership.read_text(encoding="utf-8").splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return None
    here = (root / line.removeprefix("0::/")).resolve()
    return next((f for f in (here, here.parent) if f.is_relative_to(root.resolve()) and _delegated(f)), None)


def sweep(folder: Path) -> None:
    """Remove the cgroups in ``folder`` whose makers were killed."""
    for left in folder.glob(_NAME.format(pid="*")):
        pid = left.name.removeprefix(_NAME.format(pid=""))
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            Cgroup(left).remove()


def _delegated(folder: Path) -> bool:
    try:
        controllers = (folder / "cgroup.subtree_control").read_text(encoding="ascii").split()
    except OSError:
        return False
    return "memory" in controllers and os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


@contextlib.contextmanager
def limited(guard: Guard, cgroup: Cgroup | None, data_bytes: int, private_bytes: int) -> Iterator[None]:
    """Limit this process in a block: to ``private_bytes`` that it touches in ``cgroup``, or to ``data_bytes``, untouched ones included."""
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
