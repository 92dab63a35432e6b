"""One writer of a folder at a time, by a lock of the operating system that ends with its process."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edgefl.errors import CheckpointError
from edgefl.util.claims import claimed
from edgefl.util.files import storage_errors

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK = ".lock"


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which is made if need be.

    Raises:
        CheckpointError: another process holds it; the message says which.
        MovedError: the block failed, and the folder is not there any more.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, only_writer(Path(folder)):
        ...     (Path(folder) / LOCK).read_text().startswith(f"process {os.getpid()} on ")
        True
    """
    lock = _acquired(folder)
    # By its number, the folder is found wherever it was moved.
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY) if os.unlink in os.supports_dir_fd else None
    try:
        with claimed(folder):
            yield
    finally:
        with contextlib.suppress(OSError):  # Windows deletes no open file
            os.unlink(folder / LOCK if number is None else LOCK, dir_fd=number)
        lock.release()
        if number is not None:
            os.close(number)


def _acquired(folder: Path) -> BaseFileLock:
    from filelock import FileLock, Timeout

    path = folder / LOCK
    with storage_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise CheckpointError(
                f"{folder}: {_holder(path)} is writing to it; wait for its end, or give another --out"
            ) from None
        path.write_text(f"process {os.getpid()} on {platform.node()}", encoding="utf-8")
    return lock


def _holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")[:100] or "another process"
    except (OSError, UnicodeDecodeError):  # Windows locks the content too
        return "another process"
