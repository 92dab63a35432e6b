"""This computer: its processor, its usable threads, its memory, and the load of other programs."""

import contextlib
import math
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MODEL = Path("/proc/device-tree/model")
_PROCESSORS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Machine:
    """A computer as a profile describes it, without identifying data; ``threads`` is the number of :func:`usable_threads`."""

    processor: str
    system: str
    threads: int
    total_bytes: int
    free_bytes: int
    battery: bool


def this_machine() -> Machine:
    """Return a description of this computer at this moment."""
    memory = psutil.virtual_memory()
    limit, battery = memory.total, None
    with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max"
        limit = int(_LIMIT.read_text(encoding="utf-8"))
    with contextlib.suppress(AttributeError, OSError, RuntimeError):  # some systems lack the function, some boards raise
        battery = psutil.sensors_battery()
    return Machine(
        processor=processor_name(),
        system=f"{platform.system()} {platform.machine()}",
        threads=usable_threads(),
        total_bytes=min(memory.total, limit),
        free_bytes=min(memory.available, limit),
        battery=battery is not None,
    )


class Others:
    """The load of other programs since this object was made."""

    def __init__(self) -> None:
        self._start = self._now()

    def share(self) -> float:
        """Return the share of all cores that other processes used, in [0, 1]."""
        elapsed, busy, own = (now - start for now, start in zip(self._now(), self._start, strict=True))
        cores = psutil.cpu_count() or 1
        return min(1.0, max(0.0, (busy - own) / (elapsed * cores))) if elapsed > 0 else 0.0

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        # "guest" is part of "user", and a core that waits for a disk ("iowait") is free.
        busy = sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq", "steal"))
        return time.perf_counter(), busy, time.process_time()


def usable_threads() -> int:
    """Return how many cores this process may use. Two threads of one core count once, because they share its arithmetic units.

    A container's quota of processor time counts, too: with 150 ms in every 100 ms, it is one core, as two would wait for each other.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min(allowed, psutil.cpu_count(logical=False) or allowed)
    return max(1, min(cores, math.floor(quota) if (quota := cpu_quota()) else cores))


def cpu_quota(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return how many cores of time this process's control groups leave it; None: no limit.

    The smallest quota counts of the group and all around it, of cgroup 2 (``cpu.max``) and 1 (``cpu.cfs_quota_us``).
    """
    quotas = []
    for folder in _groups(own, mounts):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii") for name in ("quota", "period"))
            if int(quota) > 0:
                quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _groups(own: Path, mounts: Path) -> list[Path]:
    """Return the folders of a process's control groups for processor time, and of those around them."""
    try:
        lines = [line.split(":", 2) for line in own.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        lines = []
    roots = [(mounts, path) for line in lines if len(line) == 3 for _, kinds, path in [line] if kinds == ""]
    roots += [
        (mounts / name, path) for line in lines if len(line) == 3 for _, kinds, path in [line] if "cpu" in kinds.split(",")
        for name in (kinds, "cpu")
    ]  # fmt: skip
    folders = [
        root.joinpath(*Path(path.lstrip("/")).parts[:depth]) for root, path in roots for depth in range(len(Path(path).parts))
    ]
    # In a container without a namespace of its own, the path is the host's, and the mount itself is the group.
    return [*dict.fromkeys([mounts, mounts / "cpu", mounts / "cpu,cpuacct", *folders])]


def processor_name() -> str:
    """Return the board's or the processor's name, as the system reports it."""
    name = ""
    if _MODEL.is_file():
        name = _MODEL.read_text(encoding="utf-8", errors="replace").rstrip("\0")
    elif _PROCESSORS.is_file():
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2] for line in lines if line.startswith("model name")), "")
    elif platform.system() == "Darwin":
        command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        name = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    name = "".join(c for c in name or platform.processor() if c.isprintable())
    return " ".join(name.split()) or platform.machine() or "an unnamed processor"
