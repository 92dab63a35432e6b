"""Memory that several processes share: the pages of a file without a name, which they inherit as an open descriptor.

The file disappears with the last process that has it open, however that process ends. It is not in ``/dev/shm``, so the size limit there
(64 MB in many containers) does not apply. On systems without ``memfd_create``, such as macOS, it is an unlinked temporary file.
"""

import bisect
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.client.messages import defined
from edgefl.data.sources import Dataset
from edgefl.wire.message import MessageFields

_ALIGN_BYTES = 64  # a cache line, and more than any array needs
_GROW_BYTES = 1 << 20


def nameless_file(size_bytes: int) -> int:
    """Return a descriptor of a new file of zeros, whose pages are allocated when they are written."""
    try:
        fd = os.memfd_create("edgefl", os.MFD_CLOEXEC)
    except (AttributeError, OSError):  # not Linux, or not allowed here
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size_bytes)
    return fd


class SharedFile:
    """A nameless file in memory, which other processes may make longer. The object owns the descriptor ``fd``."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._pages = mmap.mmap(fd, 0)

    def read(self, start: int, length: int) -> bytes:
        """Return a copy of the ``length`` bytes that begin at byte ``start``."""
        self._reach(start + length)
        return self._pages[start : start + length]

    def write(self, start: int, content: bytes) -> None:
        """Copy ``content`` to the bytes that begin at ``start``."""
        self._reach(start + len(content))
        self._pages[start : start + len(content)] = content

    def close(self) -> None:
        """Close the pages and the descriptor."""
        self._pages.close()
        os.close(self.fd)

    def _reach(self, end: int) -> None:
        if end > len(self._pages):
            self._pages.close()
            self._pages = mmap.mmap(self.fd, 0)


@dataclass(frozen=True)
class Region:
    """Bytes of an arena that are in use: position of the first one, and their number."""

    start: int
    size: int


class SharedArena(SharedFile):
    """A nameless file whose regions this process allocates. It grows when it is full, and never shrinks.

    It allocates at the lowest position with enough room, so that pages which were written before are reused.

    >>> arena = SharedArena()
    >>> first, second = arena.allocate(100), arena.allocate(1)
    >>> arena.free(first)
    >>> first, second, arena.allocate(60)
    (Region(start=0, size=128), Region(start=128, size=64), Region(start=0, size=64))
    >>> arena.close()
    """

    def __init__(self) -> None:
        super().__init__(nameless_file(_GROW_BYTES))
        self._size = _GROW_BYTES
        self._gaps: list[tuple[int, int]] = [(0, self._size)]  # start and end, ascending, no two adjacent

    def allocate(self, size_bytes: int) -> Region:
        """Return a region of at least ``size_bytes``; its content is arbitrary."""
        size = max(_ALIGN_BYTES, size_bytes + -size_bytes % _ALIGN_BYTES)
        while True:
            for place, (start, end) in enumerate(self._gaps):
                if end - start >= size:
                    self._gaps[place : place + 1] = [(start + size, end)] if end - start > size else []
                    return Region(start, size)
            self._grow(size)

    def free(self, region: Region) -> None:
        """Free a region."""
        start, end = region.start, region.start + region.size
        place = bisect.bisect(self._gaps, (start, end))
        first, last = place, place
        if place < len(self._gaps) and self._gaps[place][0] == end:
            end, last = self._gaps[place][1], place + 1
        if place and self._gaps[place - 1][1] == start:
            start, first = self._gaps[place - 1][0], place - 1
        self._gaps[first:last] = [(start, end)]

    def _grow(self, more: int) -> None:
        """Make the file longer by ``more`` bytes, or a quarter if that is more: pages that are never written take no memory."""
        before = self._size
        more = max(more, before // 4)
        self._size += more + -more % _GROW_BYTES
        os.ftruncate(self.fd, self._size)
        self.free(Region(before, self._size - before))


def share(data: Dataset) -> tuple[int, MessageFields]:
    """Copy the arrays of ``data`` to a nameless file, except those that are mapped from files of their own.

    Return the file's descriptor and a JSON table. The table has the data set's class, its plain fields, and each array's dtype, shape and
    first byte, with path and strides if it is mapped.
    """
    facts, every = data.apart()
    mapped = {name: array for name, array in every.items() if isinstance(array, np.memmap)}
    arrays = {name: array for name, array in every.items() if name not in mapped}
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = (array.dtype.str, array.shape, end)
        end += array.nbytes + -array.nbytes % _ALIGN_BYTES
    fd = nameless_file(max(1, end))
    with mmap.mmap(fd, 0) as pages:
        for name, array in arrays.items():
            dtype, shape, start = places[name]
            np.copyto(np.ndarray(shape, dtype, pages, start), array)
    kind = type(data)
    return fd, {
        "class": f"{kind.__module__}:{kind.__qualname__}",
        "facts": facts,
        "arrays": places,
        "mapped": {name: _place(array) for name, array in mapped.items()},
    }


def shared(fd: int, fields: MessageFields) -> Dataset:
    """Return the data set of :func:`share`, with read-only arrays, and close ``fd``; raise :class:`WireError` if its class is unknown."""
    pages = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
    os.close(fd)
    return data_in(pages, fields)


def data_in(pages: Any, fields: MessageFields) -> Dataset:
    """Return the data set of :func:`share`. ``pages`` is the content of its file, a read-only buffer; WireError if its class is unknown."""
    arrays = {name: np.ndarray(shape, dtype, pages, start) for name, (dtype, shape, start) in fields["arrays"].items()}
    arrays |= {name: _mapped(*place) for name, place in fields["mapped"].items()}
    facts = {name: tuple(value) if isinstance(value, list) else value for name, value in fields["facts"].items()}
    data: Dataset = defined(fields["class"], Dataset).together(facts, arrays)
    return data


def _place(array: np.memmap[Any, Any]) -> tuple[str, str, tuple[int, ...], tuple[int, ...], int]:
    """Return file, dtype, shape, strides and first byte of a mapped array."""
    root = array
    while isinstance(root.base, np.memmap):
        root = root.base
    start = root.offset + array.ctypes.data - root.ctypes.data
    return str(array.filename), array.dtype.str, array.shape, array.strides, start


def _mapped(path: str, dtype: str, shape: list[int], strides: list[int], start: int) -> np.ndarray:
    size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) // np.dtype(dtype).itemsize + 1
    values: Any = np.memmap(path, dtype, "r", start, (size,))
    return np.lib.stride_tricks.as_strided(values, tuple(shape), tuple(strides), subok=True, writeable=False)
