"""The plug-ins of a run: files and modules that define parts of it, with the hashes by which a resumed run finds them unchanged."""

import inspect
import re
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from edgefl.errors import ConfigError
from edgefl.registry import (
    ALL,
    Registry,
    adversaries,
    codecs,
    datasets,
    defences,
    engines,
    methods,
    models,
    objectives,
    samplers,
    server_optimizers,
    stages,
)
from edgefl.util import spec
from edgefl.util.datasets import is_own, options_in
from edgefl.util.modules import BY_PATH, OBJECT, imported, is_file, loaded, source_of, source_of_module, source_sha256

Sources = Mapping[str, str]
"""Path of a file, or name of a module → SHA-256 of its content."""
PARTS: Mapping[str, Registry] = {
    "method": methods, "model": models, "dataset": datasets, "codec": codecs, "objective": objectives,
    "server_optimizer": server_optimizers, "defence": defences, "adversary": adversaries, "engine": engines,
}  # fmt: skip
"""Key of a configuration → the registry that has its value."""


def load(given: Sources | Iterable[Any]) -> dict[str, str]:
    """Import plug-ins, and return their sources with hashes.

    Args:
        given: files, modules, and decorated classes or functions; or the result of this function, perhaps in another process.

    Raises:
        InputError: a plug-in is missing, raises an error, or is not complete; or its content has another hash than ``given``.
    """
    wanted = given if isinstance(given, Mapping) else dict.fromkeys(map(_source, given), "")
    found = {}
    for source, before in wanted.items():
        found[source] = _sha256(source)
        if before not in ("", found[source]):
            raise ConfigError(
                f"plugins: {source.removeprefix(OBJECT)} has changed since this run began: its SHA-256 was {before[:12]}…, now "
                f"{found[source][:12]}…; restore it, or start a new run in another folder"
            )
        if source not in _known():
            loaded(Path(source), "plugins") if source.endswith(".py") else imported(source, "plugins")
    return found


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration with ``plugins`` imported and complete: every plug-in that a key names is among them.

    ``package.module:Class`` becomes the name under which the class is registered. Other values, also wrong ones, stay as they are.
    """
    given = values.get("plugins")
    if isinstance(given, str) or not isinstance(given, (Iterable, type(None))):
        raise ConfigError(f"plugins: expected a list of files and modules, got {given!r}")
    found, sources = dict(values), load(given or ())
    if isinstance(texts := values.get("stages"), (list, tuple)):
        found["stages"] = [_resolved(stages, text, sources) if isinstance(text, str) else text for text in texts]
    if isinstance(text := values.get("sampler"), str):
        found["sampler"] = _resolved(samplers, text, sources)
    for key, registry in PARTS.items():
        if isinstance(name := values.get(key), str) and not _is_own(registry, name):
            named, rest = spec.named(name) if registry is adversaries else (name, "")
            names = [registry.resolve(part) for part in (named.split("+") if registry is datasets else [named])]
            found[key] = "+".join(names) + rest
            for definition, source in filter(None, map(registry.plugin, names)):
                sources.setdefault(source, source_sha256(source, definition))
    return found | ({"plugins": sources} if sources else {})


def _resolved(registry: Registry, text: str, sources: dict[str, str]) -> str:
    """Return ``text``, a name and perhaps options, with the name under which it is registered; add its source to ``sources``."""
    given, bracket, options = text.partition("(")
    name = registry.resolve(given)
    if (found := registry.plugin(name)) is not None:
        sources.setdefault(found.source, source_sha256(found.source, found.definition))
    return f"{name}{bracket}{options}"


def blamed(error: BaseException) -> str:
    """Return file, line and function of a plug-in in which an error was raised; "" if it was raised elsewhere.

    Where a function of edgefl failed by what a plug-in returned, it has an object of the plug-in as ``self``: this names the class.
    """
    definitions = [definition for registry in ALL for definition, _ in registry.plugins().values()]
    modules = {definition.__module__ for definition in definitions}
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_globals.get("__name__") in modules)
    found = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames]
    if found:
        return "{}, line {}, in {}".format(*found[-1])
    # A function that cannot take its arguments has no frame; its name begins the message.
    called = re.match(r"([\w.]+)\.(\w+)\(\) ", str(error)) if isinstance(error, TypeError) else None
    for definition in definitions if called else ():
        if called and (definition.__qualname__, True) == (called[1], hasattr(definition, called[2])):
            return f"{inspect.getsourcefile(definition) or definition.__module__}, in {called[2]}"
    objects = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    kinds = [type(one) for one in objects if type(one) in definitions]
    return f"{inspect.getsourcefile(kinds[-1]) or kinds[-1].__module__}, in {kinds[-1].__qualname__}" if kinds else ""


def only_here(sources: Sources | None) -> list[str]:
    """Return the names of definitions that other processes cannot import, such as those of a notebook."""
    return [source.removeprefix(OBJECT) for source in sources or () if source.startswith(OBJECT)]


def _is_own(registry: Registry, name: str) -> bool:
    """Whether ``name`` is a network or a data set of the user, which no registry has."""
    if registry is datasets:
        return (is_own(name) and not is_file(name)) or bool(options_in(name)[1])
    return registry is models and ":" in name


def _source(given: Any) -> str:
    if isinstance(given, ModuleType):
        return source_of_module(given)
    if isinstance(given, (str, Path)):
        return str(Path(given).resolve()) if str(given).endswith(".py") or isinstance(given, Path) else given
    if all(registry.name_of(given) is None for registry in ALL):
        told = getattr(given, "__name__", repr(given))
        raise ConfigError(f"plugins: {told} is not registered; decorate it, such as with @edgefl.extend.method('name')")
    return source_of(given)


def _known() -> dict[str, Any]:
    """Return source → one definition, of the plug-ins that this process has imported under a name of its own, or defines."""
    every = (found for registry in ALL for found in registry.plugins().values())
    return {found.source: found.definition for found in every if not found.definition.__module__.startswith(BY_PATH)}


def _sha256(source: str) -> str:
    if not source.startswith(OBJECT):
        return source_sha256(source)
    if source not in (known := _known()):
        raise ConfigError(
            f"plugins: {source.removeprefix(OBJECT)} was defined in a notebook or at a prompt, and only that process has it; "
            "define it there again, or put it into a file and give --plugin file.py"
        )
    return source_sha256(source, known[source])
