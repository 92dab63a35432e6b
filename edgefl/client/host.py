"""This computer as workers see it: which core they run on, and what becomes of memory that they free."""

from __future__ import annotations

import ctypes
import os
import sys

# From glibc's malloc.h, and the largest threshold that it takes on 64-bit systems (half of HEAP_MAX_SIZE).
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGEST_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 1 << 30
_TOP_PAD_BYTES = 16 << 20


def pin(worker: int, workers: int) -> int | None:
    """Let this process run on one core only, where each of ``workers`` can have its own; return the core, or None.

    That is where the system allows this process exactly as many cores as there are workers. With fewer workers two runs would choose the
    same cores; with more there is nothing to choose. A worker that moves between cores finds its caches empty.

    Args:
        worker: from 1.
        workers: how many there are.
    """
    if not hasattr(os, "sched_setaffinity"):  # macOS has no such thing
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) != workers:
        return None
    core = cores[worker - 1]
    os.sched_setaffinity(0, {core})
    return core


def keep_freed_memory() -> bool:
    """Let the C library keep the memory that this process frees, for its next allocations; return whether it can be told to (glibc).

    A training step frees what the next one allocates. By default glibc gives blocks of 128 KiB and more back to the system as soon as they
    are freed, until its threshold has grown, and takes them anew as pages of zeros. The process then keeps what it held at its peak, up to
    1 GiB of it beyond what is in use. Larger blocks than 32 MiB are given back as before. The opposite is
    :func:`edgefl.client.isolation.limits.give_back_freed`, for processes whose memory is limited.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    options = (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES), (_M_TOP_PAD, _TOP_PAD_BYTES)
    taken = [libc.mallopt(option, value) for option, value in options]
    return all(taken)
