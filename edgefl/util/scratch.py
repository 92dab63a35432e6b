"""Temporary folders, and the removal of those that a killed process left."""

import contextlib
import errno
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from edgefl.errors import StorageError
from edgefl.util.lock import LOCK

_PREFIX = "edgefl-"
_NEW_S = 60.0
"""A folder younger than this may not have its lock yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, which is removed at the end. While it is in use its lock is held, so that :func:`sweep` leaves it.

    Raises:
        StorageError: the disk of temporary files is full.

    >>> with scratch_folder() as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """
    from filelock import FileLock

    with (
        temporary_files(),
        tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name,
        FileLock(Path(name) / LOCK),
    ):
        yield Path(name)


@contextlib.contextmanager
def temporary_files() -> Iterator[None]:
    """Turn the error of a full disk into a :class:`StorageError` that names the folder of temporary files."""
    try:
        yield
    except OSError as error:
        # NumPy does not say why it could not write: "3686 requested and 0 written".
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or (error.errno is None and "requested and" in str(error)):
            raise no_space() from error
        raise


def no_space() -> StorageError:
    """Return the error of a full disk of temporary files."""
    folder = tempfile.gettempdir()
    return StorageError(f"{folder}: no space left on the device for temporary files; free some, or set TMPDIR to another folder")


def sweep() -> None:
    """Remove the temporary folders of processes that were killed: nobody holds their lock."""
    from filelock import FileLock, Timeout

    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            if (folder / LOCK).is_file() and time.time() - folder.stat().st_mtime > _NEW_S:
                with FileLock(folder / LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)
