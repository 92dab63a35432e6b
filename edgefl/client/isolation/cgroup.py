"""Memory cgroups (version 2): where this process may make them, their limit, and those that killed processes left behind."""

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


_NAME = "edgefl-{pid}"


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup (version 2) for one process at a time, named after the process that made it."""

    folder: Path

    @classmethod
    def make(cls, parent: Path) -> Self:
        """Make the cgroup of this process in the folder ``parent``."""
        folder = parent / _NAME.format(pid=os.getpid())
        folder.mkdir(exist_ok=True)
        return cls(folder)

    def enter(self, limit_bytes: int) -> None:
        """Move this process into the cgroup: from now on it may touch ``limit_bytes``, and nothing of it is swapped out."""
        with contextlib.suppress(OSError):  # this system does not account for swap
            (self.folder / "memory.swap.max").write_text("0", encoding="ascii")
        self.limit(max(0, limit_bytes))
        (self.folder / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")

    def limit(self, limit: int | Literal["max"]) -> None:
        """Set the limit in bytes; "max" removes it."""
        (self.folder / "memory.max").write_text(str(limit), encoding="ascii")

    def killed(self) -> bool:
        """Return whether the kernel killed a process of this cgroup for its memory."""
        try:
            events = (self.folder / "memory.events").read_text(encoding="ascii")
        except OSError:
            return False
        return any(int(count) for count in re.findall(r"^oom_kill (\d+)$", events, re.MULTILINE))

    def remove(self) -> None:
        """Remove the cgroup. Its processes have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def cgroup_folder(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Return the folder in which this process may make memory cgroups: that of its own cgroup or the one above; None: neither.

    A cgroup that contains processes cannot limit its children. Mostly it is the one above, which systemd delegates to a user.
    """
    try:
        line = next(line for line in membership.read_text(encoding="utf-8").splitlines() if line.startswith("0::/"))
    except (OSError, StopIteration):
        return None
    here = (root / line.removeprefix("0::/")).resolve()
    return next((f for f in (here, here.parent) if f.is_relative_to(root.resolve()) and _delegated(f)), None)


def sweep(folder: Path) -> None:
    """Remove the cgroups in ``folder`` that killed processes of edgefl left behind."""
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
