"""Python's garbage collector, which repeats its search through all objects while an import or a trace creates millions of them."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Do not look for reference cycles in a block that mostly creates objects, such as the export of a network.

    >>> with uncollected():
    ...     gc.isenabled()
    False
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
