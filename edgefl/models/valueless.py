"""Runs of a user's network without values, and what their errors say."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from edgefl.util.places import place_of


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Create tensors on the device ``meta``, and let networks name it to ``torch.autocast``, which does not know it.

    >>> with on_meta(), torch.autocast(torch.ones(1).device.type, enabled=False):
    ...     pass
    """
    begin = torch.autocast.__init__

    def begun(self: Any, device_type: str, *options: Any, **more: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *options, **more)

    torch.autocast.__init__ = begun  # type: ignore[method-assign]  # networks import the class under several names
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]


def reason(error: BaseException) -> str:
    """Return what a failed run says of itself, and where: the innermost frame outside torch and this package.

    >>> reason(ValueError("no")).startswith("ValueError: no")
    True
    """
    if isinstance(error, (DataDependentOutputException, DynamicOutputShapeException)):
        said = f"{error.func} depends on the values of its input, and costs come from shapes alone; leave it out, "
        said += "or switch off the option that asks for it (transformers: pad_token_id=None, attn_implementation='eager')"
    elif "on meta tensors" in str(error):
        said = "it depends on the values of its input, and shapes alone are traced"
    else:
        said = (str(error).strip().splitlines() or ["no message"])[0]
        said = said if isinstance(error, RuntimeError) else f"{type(error).__name__}: {said}"
    return said + place_of(error)
