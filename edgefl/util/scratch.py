"""Temporary folders, and the removal of those that a killed process left."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edgefl.util.lock import LOCK

_PREFIX = "edgefl-"
_NEW_S = 60.0
"""A folder younger than this may not have its lock yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, which is removed at the end. While it is in use its lock is held, so that :func:`sweep` leaves it.

    >>> with scratch_folder() as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """
    from filelock import FileLock

    with tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name, FileLock(Path(name) / LOCK):
        yield Path(name)


def sweep() -> None:
    """Remove the temporary folders of processes that were killed: nobody holds their lock."""
    from filelock import FileLock, Timeout

    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            if (folder / LOCK).is_file() and time.time() - folder.stat().st_mtime > _NEW_S:
                with FileLock(folder / LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)
