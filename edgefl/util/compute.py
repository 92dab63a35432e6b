"""How torch computes: with threads and modes that never change the bits of a result, and without its compiler; what a tensor holds."""

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Block(contextlib.ExitStack):
    """The contexts that end with a block of :func:`one_thread`; ``eager``: the compiler is off until then."""

    eager = False


_open: list[_Block] = []
_COMPILER = "torch._dynamo.eval_frame"


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread in a block, so that sums have the same bits on any number of cores and workers.

    Gradients are computed there, also if the caller is inside ``torch.no_grad`` or ``torch.inference_mode``. Functions of ``torch.compile``
    are not compiled there, see :func:`uncompiled_from_here`.

    >>> with torch.no_grad(), one_thread():
    ...     torch.is_grad_enabled()
    True
    """
    with _Block() as block:
        block.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        block.enter_context(torch.inference_mode(False))  # ends no_grad too
        _open.append(block)
        block.callback(_open.remove, block)
        uncompiled_from_here()
        yield


def uncompiled_from_here() -> None:
    """Run functions of ``torch.compile`` as they are written, until the outermost block of :func:`one_thread` ends.

    Compiled code cannot be traced: on tensors without values it crashes the process. As long as torch's compiler is not imported, there
    is no such function, and importing it takes over a second. So this is called again when a user's code has been imported or has run.
    """
    if _open and not _open[0].eager and _COMPILER in sys.modules:
        _open[0].enter_context(torch.compiler.set_stance("force_eager"))
        _open[0].eager = True


def in_parallel(tasks: Mapping[str, Callable[[], T]], threads: int | None = None) -> dict[str, T]:
    """Run each task in one thread, so that its bits are always the same; return name → result. List the longest tasks first.

    Args:
        tasks: what to run, by name.
        threads: how many tasks run at a time; None: as many as the computer has cores.

    >>> in_parallel({"two": lambda: 1 + 1, "four": lambda: 2 + 2})
    {'two': 2, 'four': 4}
    """
    if not tasks:
        return {}
    before = torch.get_num_threads()
    try:
        # torch's number of threads inside an operation is set by each thread for itself.
        with ThreadPoolExecutor(
            min(len(tasks), threads or os.cpu_count() or 1), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            running = {name: pool.submit(task) for name, task in tasks.items()}
            return {name: future.result() for name, future in running.items()}
    finally:
        torch.set_num_threads(before)


def described(value: object) -> str:
    """Return what a message says of a value where a tensor was expected.

    >>> described(torch.zeros(2, 3)), described(0.5)
    ('a tensor (2, 3)', 'float')
    """
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def is_finite(tensor: Tensor) -> bool:
    """Return whether all values are finite. A finite sum proves it; otherwise, as the sum may overflow, every value is checked.

    >>> is_finite(torch.tensor([3e38, 3e38])), is_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    return math.isfinite(tensor.sum()) or bool(tensor.isfinite().all())
