"""The disk is full at a random moment: that of the result or that of temporary files. One message, and the command continues with space."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from attacks.harness import Bench, Case, Ended, Finding, Rng, Zygote, check_clean
from attacks.kills import compare, target_of, targets, whole


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    names = sorted(targets(bench))

    def case(rng: Rng, folder: Path) -> str:
        name, share = str(rng.choice(names)), 1.2 * rng.random()
        target, (wanted, _), here = target_of(bench, name), whole(bench, name), folder / "here"
        here.mkdir(parents=True)
        size_bytes = max(4096, int(share * sum(path.stat().st_size for path in [wanted, *wanted.rglob("*")] if path.is_file())))
        full = str(rng.choice(["the folder", "temporary files"]))
        with small_disk(here if full == "the folder" else Zygote.temporary(here), size_bytes) as disk:
            limit = None if disk is not None else int(rng.integers(4096, 120_000))
            ended = bench.edgefl.run(*target.arguments, cwd=here, file_bytes=limit)
            _check(ended, full)
            if ended.status and target.once and (here / "out").exists():
                raise Finding(f"{name} failed on a full disk, and wrote out")
            check_clean(here)
            if disk is not None:
                disk(1 << 30)
            if ended.status:
                bench.edgefl.run(*target.arguments, *target.again, cwd=here).check((0,))
            compare(bench, here / "out", wanted, target)
        where = full if limit is None else "large files"
        return f"{name}: no space for {where}" if ended.status else f"{name}: enough space for {where}"

    return case


def _check(ended: Ended, full: str) -> None:
    """Raise :class:`Finding` unless a command ended well, or with one message about the disk."""
    ended.check((0, 2))
    if ended.status and not any(text in ended.errors.lower() for text in ("no space left", "disk is full", "file too large")):
        raise Finding(f"no space for {full}: a message that does not say so: {ended.errors[-2000:]}")


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Callable[[int], bool] | None]:
    """Make ``folder`` a disk of ``size_bytes`` and yield a function that changes the size; yield None where mounting is not allowed."""

    def mount(*how: str) -> bool:
        return (
            subprocess.run(["mount", "-t", "tmpfs", *how, "none", str(folder)], capture_output=True, check=False).returncode == 0  # noqa: S607 - root's own PATH
        )

    if not mount("-o", f"size={size_bytes}"):
        yield None
        return
    try:
        yield lambda more_bytes: mount("-o", f"remount,size={more_bytes}")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607 - as above
