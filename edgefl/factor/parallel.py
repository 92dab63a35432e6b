"""Independent pieces of linear algebra on several threads, each to the bits that one thread gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def in_parallel(tasks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return name → what the task of that name returned; put those that take longest first.

    A task is computed by one thread of its own from its beginning to its end, so that its bits depend neither on the number of threads
    nor on what ran beside it. LAPACK and BLAS run without Python's lock.

    >>> in_parallel({"two": lambda: 1 + 1, "four": lambda: 2 + 2})
    {'two': 2, 'four': 4}
    """
    if not tasks:
        return {}
    before = torch.get_num_threads()
    try:
        # The number of threads inside an operation is every thread's own to set.
        with ThreadPoolExecutor(min(len(tasks), os.cpu_count() or 1), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            running = {name: pool.submit(task) for name, task in tasks.items()}
            return {name: future.result() for name, future in running.items()}
    finally:
        torch.set_num_threads(before)
