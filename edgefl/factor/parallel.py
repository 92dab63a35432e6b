"""Independent pieces of linear algebra on several threads, with the same bits as on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def in_parallel(tasks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return name → the result of the task; list the longest tasks first.

    One thread computes a task from start to end, so that its bits depend neither on the number of threads nor on other tasks. LAPACK and
    BLAS run without Python's lock.

    >>> in_parallel({"two": lambda: 1 + 1, "four": lambda: 2 + 2})
    {'two': 2, 'four': 4}
    """
    if not tasks:
        return {}
    before = torch.get_num_threads()
    try:
        # Each thread sets the number of threads inside its own operations.
        with ThreadPoolExecutor(min(len(tasks), os.cpu_count() or 1), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            running = {name: pool.submit(task) for name, task in tasks.items()}
            return {name: future.result() for name, future in running.items()}
    finally:
        torch.set_num_threads(before)
