"""Torch without its compiler: fake tensors and optimizers import ``torch._dynamo``, for over a second, to ask it what concerns nobody here.

They read three of its settings, and tell it what not to compile; nothing is compiled. Within :func:`uncompiled` an empty package
answers them in its place, whose modules are the real ones. Afterwards the compiler can be imported as ever, as torch's exporter does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_NAME = "torch._dynamo"


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Keep ``torch._dynamo`` from being imported within a block, unless it has been; one thread at a time.

    >>> with uncompiled():
    ...     optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    """
    if _NAME in sys.modules:
        yield
        return
    package = _empty()
    sys.modules[_NAME] = package
    torch._dynamo = package
    try:
        yield
    finally:
        _put_away(package)


class _Empty(ModuleType):
    """The package before its own code has run: its modules can be imported, and what else is asked of it makes it run.

    Attributes:
        compiled_autograd: what torch switches off around gradients under ``vmap``: it is off.
    """

    compiled_autograd = SimpleNamespace(_disable=contextlib.nullcontext)

    def graph_break(self) -> None:
        """Mark where compiled code would stop."""

    def disable(self, function: Callable[..., Any], *options: Any, **more: Any) -> Callable[..., Any]:
        """Return what is never compiled: all of it."""
        return function

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system
            raise AttributeError(name)
        _put_away(self)
        return getattr(importlib.import_module(_NAME), name)


@functools.cache
def _empty() -> ModuleType:
    """Return the one that there is: it knows those of its modules that have been imported."""
    package, spec = _Empty(_NAME), importlib.util.find_spec(_NAME)
    assert spec is not None  # a part of torch
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
    return package


def _put_away(package: ModuleType) -> None:
    """Make room for the real package; those of its modules that were imported stay."""
    if sys.modules.get(_NAME) is package:
        del sys.modules[_NAME]
        del torch._dynamo
