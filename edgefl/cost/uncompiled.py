"""Torch without its compiler. Fake tensors and optimizers import ``torch._dynamo`` for over a second, although nothing is compiled.

They only read a few of its settings and tell it what not to compile. Within :func:`uncompiled`, an empty package stands in for it. If
other attributes are read, the real package is imported after all. After the block it can be imported as usual, as torch's exporter does.
"""

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

_NAME, _SETTINGS = "torch._dynamo", "torch._dynamo.config"


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
    finder = _Finder(package)
    sys.meta_path.insert(0, finder)
    try:
        importlib.import_module(_SETTINGS)
        yield
    finally:
        sys.meta_path.remove(finder)
        _put_away(package)


class _Empty(ModuleType):
    """The package before its own code has run; reading any other attribute runs it.

    Attributes:
        compiled_autograd: what torch switches off around gradients under ``vmap``: it is off.
    """

    compiled_autograd = SimpleNamespace(_disable=contextlib.nullcontext)

    def graph_break(self) -> None:
        """Mark where compiled code would stop."""

    def disable(self, function: Callable[..., Any] | None = None, *options: Any, **more: Any) -> Callable[..., Any]:
        """Return ``function``, or a decorator that does: nothing is compiled."""
        return function if function is not None else lambda decorated: decorated

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of the import system
            raise AttributeError(name)
        return getattr(_real(self), name)


class _Finder(MetaPathFinder, Loader):
    """Finds the modules of the package. All except its settings need the whole package."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package
        self._spec: ModuleSpec | None = None

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to come by a module that has been imported with the whole package; None where that is not asked for."""
        if not name.startswith(f"{_NAME}.") or name == _SETTINGS or sys.modules.get(_NAME) is not self._package:
            return None
        _real(self._package)
        module = importlib.import_module(name)
        self._spec, module.__spec__ = module.__spec__, None  # with one of its own it would be run once more
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module that there is."""
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Leave it as it was."""
        module.__spec__ = self._spec


def _real(package: ModuleType) -> ModuleType:
    _put_away(package)
    return importlib.import_module(_NAME)


@functools.cache
def _empty() -> ModuleType:
    """Return the one that there is: it knows its settings once they have been imported."""
    package, spec = _Empty(_NAME), importlib.util.find_spec(_NAME)
    assert spec is not None  # a part of torch
    package.__spec__, package.__path__ = spec, list(spec.submodule_search_locations or ())
    return package


def _put_away(package: ModuleType) -> None:
    """Make room for the real package; its settings stay."""
    if sys.modules.get(_NAME) is package:
        del sys.modules[_NAME]
        del torch._dynamo
