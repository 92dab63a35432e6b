"""Samples of a file that is read block by block: in memory, or beyond a size in a temporary file that disappears with this process."""

import os
import sys
import tempfile
import weakref
from pathlib import Path

import numpy as np

from edgefl.errors import DataError, StorageError
from edgefl.util.files import storage_errors, user_cache

MAPPED_BYTES = 2**29
"""Arrays beyond this size are not held in memory but mapped: a page of the file is in memory while it is used."""


class Growing:
    """An array (n, …) to which blocks of rows are added. All have the type and the shape of the first.

    >>> rows = Growing("x")
    >>> rows.add(np.zeros((2, 3), np.uint8)), rows.add(np.ones((1, 3), np.uint8)), rows.whole().shape
    (None, None, (3, 3))
    """

    def __init__(self, where: str, most_bytes: int = MAPPED_BYTES) -> None:
        self._where, self._most_bytes = where, most_bytes
        self._blocks: list[np.ndarray] = []
        self._bytes, self._rows = 0, 0
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.uint8)
        self._path: Path | None = None

    def add(self, block: np.ndarray) -> None:
        """Add the rows of ``block`` (k, …); DataError if they differ from those before in shape."""
        if not len(block):
            return
        if not self._rows:
            self._shape, self._dtype = block.shape[1:], block.dtype
        elif block.shape[1:] != self._shape:
            sizes = f"sample {self._rows} has shape {block.shape[1:]}, those before {self._shape}"
            raise DataError(f"{self._where}: {sizes}; bring all samples to one size")
        self._blocks.append(np.ascontiguousarray(block, self._dtype))
        self._bytes += self._blocks[-1].nbytes
        self._rows += len(block)
        if self._bytes > self._most_bytes or self._path is not None:
            self._spill()

    def whole(self) -> np.ndarray:
        """Return all rows; mapped if they are in a file."""
        if self._path is None:
            return np.concatenate(self._blocks) if self._blocks else np.zeros((0, *self._shape), self._dtype)
        return np.memmap(self._path, self._dtype, "r", 0, (self._rows, *self._shape))

    def _spill(self) -> None:
        if self._path is None:
            folder = user_cache() / "data"
            with storage_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
                fd, name = tempfile.mkstemp(dir=folder)
            self._path = Path(name)
            if sys.platform == "linux":
                # The file has no name any more, and is gone however this process ends. Workers open it through this process.
                self._path.unlink()
                self._path = Path(f"/proc/{os.getpid()}/fd/{fd}")
            else:
                weakref.finalize(Growing, self._path.unlink, missing_ok=True)
                os.close(fd)
        try:
            with self._path.open("ab") as file:
                for block in self._blocks:
                    file.write(block.data)
        except OSError as error:
            raise StorageError(
                f"{user_cache()}: {error.strerror}; free space there, or set XDG_CACHE_HOME to a larger disk"
            ) from None
        self._blocks.clear()
