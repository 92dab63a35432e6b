"""Methods, models and datasets are found by file: adding one means adding a file with one decorated definition.

The names are read from the source text, so listing them (for ``--help``, for a message about a misspelt name) imports neither torch
nor the file that defines them; ``load`` imports just that file.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edgefl.errors import EdgeflError, UnknownNameError

T = TypeVar("T")


class Registry:
    """The definitions of one kind, decorated with the registry's own name in the files of one package.

    >>> "fedhm" in methods.names(), "resnet18" in models.names()
    (True, True)
    >>> methods.load("fedhn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    edgefl.errors.UnknownNameError: unknown method 'fedhn'; did you mean 'fedhm'? Known: clustered-fl, factorized-fl, ...
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._loaded: dict[str, Any] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def __call__(self, name: str, **facts: Any) -> Callable[[T], T]:
        """Register the decorated definition as ``name``, which must be a literal string, with facts that :meth:`facts` returns."""

        def register(definition: T) -> T:
            self._loaded[name] = definition
            self._facts[name] = facts
            return definition

        return register

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """Name → module, from the source files.

        Raises:
            EdgeflError: two files define the same name.
        """
        found: dict[str, str] = {}
        folder = Path(__file__).parent.joinpath(*self.package.split(".")[1:])
        for path in sorted(folder.glob("*.py")):
            for name in self._decorated(path):
                if name in found:
                    raise EdgeflError(f"{self.kind} {name!r} is defined in {found[name]} and again in {path.stem}")
                found[name] = f"{self.package}.{path.stem}"
        return found

    def _decorated(self, path: Path) -> list[str]:
        """Return the names in ``@kind("name")`` above the functions and classes of a file."""
        tree = ast.parse(path.read_text(encoding="utf-8"))
        definitions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
        names = []
        for decorator in (d for definition in definitions for d in definition.decorator_list):
            match decorator:
                case ast.Call(func=ast.Name(id=self.kind), args=[ast.Constant(value=str(name))]):
                    names.append(name)
        return names

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted(self.files)

    def check(self, name: str) -> None:
        """Raise :class:`UnknownNameError` unless ``name`` is known."""
        if name not in self.files:
            raise UnknownNameError(self.kind, name, self.files)

    def load(self, name: str) -> Any:
        """Import the file that defines ``name`` and return the definition."""
        self.check(name)
        importlib.import_module(self.files[name])
        return self._loaded[name]

    def facts(self, name: str) -> dict[str, Any]:
        """Import the file that defines ``name`` and return the facts beside its name.

        >>> models.facts("resnet18")
        {'usual_input': (3, 32, 32)}
        """
        self.load(name)
        return self._facts[name]


method = methods = Registry("method", "edgefl.methods")
model = models = Registry("model", "edgefl.models")
dataset = datasets = Registry("dataset", "edgefl.data")
