"""Temporary folders, and the removal of those that a killed process left."""

import contextlib
import shutil
import tempfile
import time
from pathlib import Path

from edgefl.onnxgrad.contexts import LOCK, PREFIX
from edgefl.onnxgrad.contexts import no_space as no_space
from edgefl.onnxgrad.contexts import scratch_folder as scratch_folder
from edgefl.onnxgrad.contexts import temporary_files as temporary_files

_NEW_S = 60.0
"""A folder younger than this may not have its lock yet."""


def sweep() -> None:
    """Remove the temporary folders of processes that were killed: nobody holds their lock."""
    from filelock import FileLock, Timeout

    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, Timeout):
            if (folder / LOCK).is_file() and time.time() - folder.stat().st_mtime > _NEW_S:
                with FileLock(folder / LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)
