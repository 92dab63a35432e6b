"""The memory arena of onnxruntime: which free block a request gets, and how much of it is in use."""

UNIT = 256
"""Every block is a multiple of so many bytes."""
_MOST_SPARE = 128 * 2**20
_FIRST, _MOST = 2**20, 2**30  # bytes of a region that doubles


def rounded(size: int) -> int:
    """Return ``size`` rounded up to whole units.

    >>> rounded(1), rounded(512)
    (256, 512)
    """
    return -(-size // UNIT) * UNIT


class Arena:
    """Counts the bytes in use, block by block, as onnxruntime's arena does (bfc_arena.cc).

    It grows by what is requested, as our arenas with a limit do, or with ``doubling`` by powers of two, which is onnxruntime's default. A
    request gets the smallest free block that is large enough, whole unless twice as much or 128 MiB more than requested. Neighbours
    that are free become one block. Bytes in use are those of blocks, so that they depend on what was freed before.

    Attributes:
        in_use_bytes: of the blocks that are in use now.

    >>> arena = Arena()
    >>> large = arena.take(1000)
    >>> arena.free(large)
    >>> small = arena.take(600)
    >>> arena.in_use_bytes
    1024
    """

    def __init__(self, doubling: bool = False) -> None:
        self.in_use_bytes = 0
        self._region = _FIRST if doubling else 0  # bytes of the next region; 0: what is requested
        self._end = 0
        self._sizes: dict[int, int] = {}  # begin of a block → its bytes
        self._free: set[int] = set()
        self._after: dict[int, int] = {}  # begin of a block → begin of the next one of its region
        self._before: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Return the begin of a block of at least ``size`` bytes, which :meth:`free` gives back; 0 bytes take none."""
        wanted = rounded(size)
        if not wanted:
            return -1
        fit = min(((self._sizes[begin], begin) for begin in self._free if self._sizes[begin] >= wanted), default=None)
        room, begin = (self._grow(wanted), self._end) if fit is None else fit
        if fit is None:
            self._end += room + UNIT  # regions have no neighbours
            self._sizes[begin] = room
        self._free.discard(begin)
        if room >= 2 * wanted or room - wanted >= _MOST_SPARE:
            self._split(begin, wanted)
        self.in_use_bytes += self._sizes[begin]
        return begin

    def _grow(self, wanted: int) -> int:
        """Return the bytes of a new region that holds ``wanted``."""
        if not self._region:
            return wanted
        size = self._region
        while size < wanted:
            size *= 2
        self._region = min(2 * size, _MOST) if size == self._region else size
        return size

    def free(self, begin: int) -> None:
        """Give a block back."""
        if begin < 0:
            return
        self.in_use_bytes -= self._sizes[begin]
        after = self._after.get(begin)
        if after in self._free:
            self._merge(begin, after)
        before = self._before.get(begin)
        if before in self._free:
            self._merge(before, begin)
            begin = before
        self._free.add(begin)

    def _split(self, begin: int, size: int) -> None:
        rest, after = begin + size, self._after.get(begin)
        self._sizes[rest], self._sizes[begin] = self._sizes[begin] - size, size
        self._link(rest, after)
        self._link(begin, rest)
        self._free.add(rest)

    def _merge(self, begin: int, after: int) -> None:
        self._free.discard(after)
        self._sizes[begin] += self._sizes.pop(after)
        self._before.pop(after)
        self._link(begin, self._after.pop(after, None))

    def _link(self, begin: int, after: int | None) -> None:
        if after is None:
            self._after.pop(begin, None)
        else:
            self._after[begin], self._before[after] = after, begin
