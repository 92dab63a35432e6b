"""Independent pieces of linear algebra on several threads, with the same bits as on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def in_parallel(tasks: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Return name → result of each task, one thread per task, so that its bits depend on nothing else; list the longest tasks first.

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
