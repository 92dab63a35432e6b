"""Blocks in which something is otherwise: nothing is printed, no garbage is collected, a temporary folder is there."""

import contextlib
import errno
import gc
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from edgefl.onnxgrad.errors import StorageError


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's many prints, logs and warnings."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for reference cycles in a block that mostly creates objects, such as the export of a network.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
