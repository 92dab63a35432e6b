"""Why a network cannot be traced, in one line that names the operation and the line of the network's own source."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

_NOT_THE_NETWORK = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), "<frozen")


def reason(error: BaseException) -> str:
    """Return what a failed trace says of itself, and where: the innermost frame outside torch and this package.

    >>> reason(ValueError("no")).startswith("ValueError: no")
    True
    """
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        said = f"{error.func} depends on the values of its input, and costs come from shapes alone"
    else:
        said = (str(error).strip().splitlines() or ["no message"])[0]
        said = said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"
    return said + _place(error)


def _place(error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_THE_NETWORK)]
    if not frames or frames[-1].lineno is None:
        return ""
    line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {line})"
