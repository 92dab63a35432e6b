"""Torch's threads, with the same bits for any number of them, and whether tensors are finite."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that sums have the same bits on any number of cores and workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


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


if TYPE_CHECKING:
    from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite: if one is not, the sum is not; if the sum overflows, every value is checked.

    >>> import torch
    >>> is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
