"""What a process may take, and what it has taken: limits that the system enforces, read and set for a client's own process.

Three ways to hold memory, of which a platform has some:

- a memory cgroup (version 2), where this process may make one: the kernel kills what goes over ``memory.max``. Pages count.
- a watchdog on every platform: another process reads every 20 ms what is resident, and kills. On Linux the peak that the kernel keeps is
  read at the end, so that a shorter one does not escape, though it was not prevented.
- ``RLIMIT_DATA`` on Linux: private writable memory, touched or not. An allocation beyond it fails, and torch says so. Kernels that are
  generated for a layer (oneDNN) reserve far more than they touch, so that this is a wall at some distance behind the watchdog.

None of them sees tensors. All count in pages (4 KiB and more), with what the allocator keeps or wastes, and what kernels use inside of one
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

import psutil

MIB = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_NAME = "edgefl-{pid}"
# glibc: allocations from this size on are mappings of their own, given back to the system when freed. Its default moves up to 32 MiB.
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 64 << 10
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9


@dataclass(frozen=True)
class Guard:
    """The ways in which memory is held: by RLIMIT_DATA, by the watchdog, by cgroups made in a folder (None: without).

    A cgroup takes the place of RLIMIT_DATA; the watchdog comes on top of either.
    """

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
    """Return what process ``pid`` (None: this one) holds, or None where it is gone.

    Where there is no ``/proc`` both are the resident set, in which files count too.

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
        status = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = dict(re.findall(r"^(VmData|RssAnon):\s+(\d+) kB$", status, re.MULTILINE))
    return Held(1024 * int(found["VmData"]), 1024 * int(found["RssAnon"])) if len(found) == 2 else None


def own() -> Held:
    """Return what this process holds."""
    now = held()
    assert now is not None  # it runs
    return now


def reset_peak() -> None:
    """Let :func:`peak_bytes` count from now on, where the kernel keeps a peak (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return the most that was resident of this process and backed by no file: at least so much, or what there is now, if no more is known.

    The kernel keeps the peak of everything that is resident. Files only get more, so that what there is of them now can be taken off.
    """
    now = own().resident_bytes
    if sys.platform != "linux":
        return now
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    found = {name: 1024 * int(kb) for name, kb in re.findall(r"^(VmHWM|RssFile|RssShmem):\s+(\d+) kB$", status, re.MULTILINE)}
    return max(now, found.get("VmHWM", 0) - found.get("RssFile", 0) - found.get("RssShmem", 0))


def set_data_limit(limit_bytes: int | None) -> None:
    """Let no allocation of this process go beyond ``limit_bytes`` of private writable memory; None takes the limit away."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = hard if limit_bytes is None else max(0, limit_bytes)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def set_cpu_limit(limit_s: int) -> None:
    """Send this process SIGXCPU after ``limit_s`` seconds of processor time, SIGKILL a second later; and let it leave no core file."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 1))


def data_limit_holds() -> bool:
    """Return whether this system enforces RLIMIT_DATA for mappings (Linux from 4.7 on; not macOS, not every sandbox).

    The limit of this process is set and taken away.
    """
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


def give_back_freed() -> None:
    """Let the C library of this process give larger blocks back as soon as they are freed, where it can be told to (glibc).

    What a process holds is then what it uses, but for small blocks: ResNet-9 takes 6 % more than its tensors, and not 42 %. It costs time,
    as such memory is touched anew: up to half as much again for a network of a few MB.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)


def trim() -> None:
    """Give back what this process has freed, small blocks too: whatever it takes from here on, it takes anew, and is seen to take."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


def die_with(parent: int) -> None:
    """Have the system kill this process when its parent, of process number ``parent``, dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _SIGKILL)
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
        """Move this process in; what it touches from now on may be ``limit_bytes``, with nothing swapped out."""
        with contextlib.suppress(OSError):  # no swap is accounted for here
            self._write("memory.swap.max", "0")
        self._write("memory.max", str(max(0, limit_bytes)))
        self._write("cgroup.procs", str(os.getpid()))

    def lift(self) -> None:
        """Take the limit away."""
        self._write("memory.max", "max")

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

    def _write(self, name: str, value: str) -> None:
        (self.folder / name).write_text(value, encoding="ascii")


def cgroup_folder(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the folder in which this process may make memory cgroups: that of its own cgroup or the one above; None if neither.

    A cgroup that has processes cannot limit those of its children (the rule of no internal processes), so that most often it is the one
    above, as systemd delegates it to a user.
    """
    try:
        line = next((line for line in membership.read_text(encoding="utf-8").splitlines() if line.startswith("0::/")), None)
    except OSError:
        return None
    if line is None:
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
    """Hold this process, within a block, by what it can be held by without a watchdog.

    Args:
        guard: the ways to use.
        cgroup: the one that it enters; None: without.
        data_bytes: how much private writable memory it may have, untouched included.
        private_bytes: what it may touch in ``cgroup``.
    """
    if cgroup is not None:
        cgroup.enter(private_bytes)
    elif guard.data_limit:
        set_data_limit(data_bytes)
    try:
        yield
    finally:
        if cgroup is not None:
            cgroup.lift()
        elif guard.data_limit:
            set_data_limit(None)
