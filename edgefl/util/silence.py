"""Silence for libraries in C++, which write to the process's own outputs."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

STDOUT, STDERR = 1, 2


@contextlib.contextmanager
def silent(outputs: Sequence[int] = (STDOUT, STDERR)) -> Iterator[None]:
    """Drop what anything in this process writes to ``outputs``, file descriptors, in the meantime.

    >>> with silent():
    ...     _ = os.write(STDOUT, b"dropped")
    """
    _flush()
    before = [os.dup(output) for output in outputs]
    try:
        with Path(os.devnull).open("wb") as nowhere:
            for output in outputs:
                os.dup2(nowhere.fileno(), output)
            yield
            _flush()
    finally:
        for output, copy in zip(outputs, before, strict=True):
            os.dup2(copy, output)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
