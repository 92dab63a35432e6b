"""Temporary folders, each of which a lock holds while it is in use."""

import contextlib
import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgefl.onnxgrad.errors import StorageError

PREFIX, LOCK = "edgefl-", ".lock"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a temporary folder, which is removed at the end. While it is in use, its lock is held.

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
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name,
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
