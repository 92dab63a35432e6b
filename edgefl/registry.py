"""Registries find methods, models and other parts by their decorators, which they read from the source files.

Listing names imports neither torch nor these files. Adding a part means adding a file with one decorated definition.
"""

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from edgefl.errors import EdgeflError, UnknownNameError

T = TypeVar("T")


class Registry:
    """The definitions of one ``kind``, such as ``method``: those in the files of ``package`` that are decorated with the kind's name.

    >>> "fedhm" in methods.names(), "resnet18" in models.names()
    (True, True)
    >>> methods.load("fedhn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    edgefl.errors.UnknownNameError: unknown method 'fedhn'; did you mean 'fedhm'? Known: clustered-fl, depthfl, ...
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind, self.package = kind, package
        self._loaded: dict[str, Any] = {}
        self._facts: dict[str, dict[str, Any]] = {}

    def __call__(self, name: str, **facts: Any) -> Callable[[T], T]:
        """Return a decorator that registers a definition as ``name``, a literal string; :meth:`facts` returns ``facts``."""

        def register(definition: T) -> T:
            self._loaded[name] = definition
            self._facts[name] = facts
            return definition

        return register

    @functools.cached_property
    def _decorators(self) -> dict[str, tuple[str, ast.Call]]:
        """Name → module and decorator, from the source files; EdgeflError if two files define the same name."""
        found: dict[str, tuple[str, ast.Call]] = {}
        folder = Path(__file__).parent.joinpath(*self.package.split(".")[1:])
        for path in sorted(folder.glob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            definitions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
            for decorator in (d for definition in definitions for d in definition.decorator_list):
                match decorator:
                    case ast.Call(func=ast.Name(id=self.kind), args=[ast.Constant(value=str(name))]):
                        if name in found:
                            other = found[name][0].rpartition(".")[2]
                            raise EdgeflError(f"{self.kind} {name!r} is defined in {other} and again in {path.stem}")
                        found[name] = f"{self.package}.{path.stem}", decorator
        return found

    def names(self) -> list[str]:
        """Return every known name, sorted."""
        return sorted(self._decorators)

    def check(self, name: str) -> None:
        """Raise :class:`UnknownNameError` unless ``name`` is known."""
        if name not in self._decorators:
            raise UnknownNameError(self.kind.replace("_", " "), name, self._decorators)

    def load(self, name: str) -> Any:
        """Import the file that defines ``name`` and return the definition; raise :class:`UnknownNameError` if there is none."""
        self.check(name)
        importlib.import_module(self._decorators[name][0])
        return self._loaded[name]

    def name_of(self, definition: object) -> str:
        """Return the name under which ``definition`` was registered.

        >>> methods.name_of(methods.load("fedhm"))
        'fedhm'
        """
        return next(name for name, loaded in self._loaded.items() if loaded is definition)

    def facts(self, name: str) -> dict[str, Any]:
        """Return keyword → value of the decorator of ``name``; its file is imported only if a value is not a literal.

        >>> models.facts("resnet18")
        {'usual_input': (3, 32, 32)}
        """
        self.check(name)
        try:
            return {str(fact.arg): ast.literal_eval(fact.value) for fact in self._decorators[name][1].keywords}
        except ValueError:
            self.load(name)
            return self._facts[name]


method = methods = Registry("method", "edgefl.methods")
model = models = Registry("model", "edgefl.models")
dataset = datasets = Registry("dataset", "edgefl.data")
codec = codecs = Registry("codec", "edgefl.wire.codecs")
objective = objectives = Registry("objective", "edgefl.client.objectives")
server_optimizer = server_optimizers = Registry("server_optimizer", "edgefl.server.optimizers")
engine = engines = Registry("engine", "edgefl.engine")
logger = loggers = Registry("logger", "edgefl.log")
