"""The plug-ins of a run: files and modules that define parts of it, with the hashes by which a resumed run finds them unchanged."""

import inspect
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from edgefl.errors import ConfigError
from edgefl.registry import (
    ALL,
    OF_FEATURES,
    Registry,
    codecs,
    datasets,
    defences,
    engines,
    loggers,
    methods,
    models,
    objectives,
    samplers,
    server_optimizers,
    stages,
)
from edgefl.util import spec
from edgefl.util.datasets import is_own, options_in
from edgefl.util.files import whole_path
from edgefl.util.modules import BY_PATH, OBJECT, imported, is_file, loaded, source_of, source_of_module, source_sha256
from edgefl.util.networks import is_onnx

Sources = Mapping[str, str]
"""Path of a file, or name of a module → SHA-256 of its content."""
PARTS: Mapping[str, Registry] = {
    "method": methods, "model": models, "dataset": datasets, "codec": codecs, "objective": objectives,
    "server_optimizer": server_optimizers, "defence": defences, "engine": engines, **{kind.kind: kind for kind in OF_FEATURES},
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
    sources = {}
    for source, before in wanted.items():
        sources[source] = _sha256(source)
        if before not in ("", sources[source]):
            raise ConfigError(changed(source, before, sources[source]))
        if source not in _known():
            loaded(Path(source), "plugins") if source.endswith(".py") else imported(source, "plugins")
    return sources


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a configuration with ``plugins`` imported and complete: every plug-in that a key names is among them.

    ``package.module:Class`` becomes the name under which the class is registered. Other values, also wrong ones, stay as they are.
    """
    given = values.get("plugins")
    if isinstance(given, str) or not isinstance(given, (Iterable, type(None))):
        raise ConfigError(f"plugins: expected a list of files and modules, got {given!r}")
    keys, sources = dict(values), load(given or ())
    if isinstance(texts := values.get("stages"), (list, tuple)):
        keys["stages"] = [_resolved(stages, text, sources) if isinstance(text, str) else text for text in texts]
    if isinstance(text := values.get("sampler"), str):
        keys["sampler"] = _resolved(samplers, text, sources)
    if isinstance(networks := values.get("tier"), Mapping):
        keys["tier"] = {tier: _network(model, sources) for tier, model in networks.items()}
    for key, registry in PARTS.items():
        if isinstance(name := values.get(key), str) and (parts := _parts(registry, name)):
            names = list(map(registry.resolve, parts))
            keys[key] = "+".join(names) + (spec.named(name)[1] if registry.shared else "")
            for definition, source in filter(None, map(registry.plugin, names)):
                sources.setdefault(source, source_sha256(source, definition))
    return keys | ({"plugins": sources} if sources else {})


def _resolved(registry: Registry, text: str, sources: dict[str, str]) -> str:
    """Return ``text``, a name and perhaps options, with the name under which it is registered; add its source to ``sources``."""
    given, bracket, options = text.partition("(")
    name = registry.resolve(given)
    if (plugin := registry.plugin(name)) is not None:
        sources.setdefault(plugin.source, source_sha256(plugin.source, plugin.definition))
    return f"{name}{bracket}{options}"


def _network(model: Any, sources: dict[str, str]) -> Any:
    """Return the name under which the network of a tier is registered; one of the user's own stays as it is."""
    return _resolved(models, model, sources) if isinstance(model, str) and _parts(models, model) else model


def code_in(values: Any) -> Iterator[tuple[str, str]]:
    """Yield key and source of all code that the keys of a configuration name: a file's path, or the name of a module.

    Networks of libraries and losses of torch are none: there a name chooses one of a fixed set.

    >>> list(code_in({"model": "timm:resnet18", "loss": "lab.losses:mine", "method": "fedhm", "plugins": ["mine.py"]}))
    [('plugins', 'mine.py'), ('loss', 'lab.losses')]
    """
    if not isinstance(values, Mapping):
        return
    given = values.get("plugins")
    for source in given if isinstance(given, (Mapping, list, tuple)) else ():
        if isinstance(source, (str, Path)) and not str(source).startswith(OBJECT):
            yield "plugins", str(source)
    named = [(key, registry, [values.get(key)]) for key, registry in PARTS.items()]
    for key, registry in (("log", loggers), ("stages", stages), ("sampler", samplers)):
        several = listed if isinstance(listed := values.get(key), (list, tuple)) else [listed]
        named.append((key, registry, [name.partition("(")[0] for name in several if isinstance(name, str)]))
    for key, registry, names in named:
        for part in (part for name in names if isinstance(name, str) for part in _parts(registry, name)):
            where, colon, _ = part.rpartition(":")
            if colon and part.partition(":")[0] not in registry.names():
                yield key, where
    networks = values.get("tier")
    of_tiers = [("tier", model) for model in networks.values()] if isinstance(networks, Mapping) else []
    functions = [(key, values.get(key)) for key in ("loss", "metric", "lr_schedule")]
    for key, name in (("model", values.get("model")), *of_tiers, *functions):
        if isinstance(name, (str, Path)) and not _is_data(key, str(name)):
            yield key, str(name).rpartition(":")[0]


def _is_data(key: str, name: str) -> bool:
    """Whether the name of a network, a loss, a metric or a rule names no module or file that is imported for its sake."""
    where, colon, attribute = name.rpartition(":")
    network = key in ("model", "tier")
    if not colon or name.startswith(OBJECT) or (network and is_onnx(name)):
        return True
    return where in ("timm", "torchvision") if network else where in _LOSSES and attribute.isidentifier()


_LOSSES = ("torch.nn.functional", "torch.nn")


def _parts(registry: Registry, name: str) -> list[str]:
    """Return the names in the value of a key; none if it is a network or a data set of the user, which no registry has."""
    own_data = registry is datasets and ((is_own(name) and not is_file(name)) or bool(options_in(name)[1]))
    if own_data or (registry is models and ":" in name):
        return []
    named = spec.named(name)[0] if registry.shared else name
    return named.split("+") if registry is datasets else [named]


def blamed(error: BaseException) -> str:
    """Return file, line and function of a plug-in in which an error was raised; "" if it was raised elsewhere.

    Where a function of edgefl failed by what a plug-in returned, it has an object of the plug-in as ``self``: this names the class.
    """
    definitions = [definition for registry in ALL for definition, _ in registry.plugins().values()]
    modules = {definition.__module__ for definition in definitions}
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_globals.get("__name__") in modules)
    places = [(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) for frame in frames]
    if places:
        return "{}, line {}, in {}".format(*places[-1])
    # A function that cannot take its arguments has no frame; its name begins the message.
    called = re.match(r"([\w.]+)\.(\w+)\(\) ", str(error)) if isinstance(error, TypeError) else None
    for definition in definitions if called else ():
        if called and (definition.__qualname__, True) == (called[1], hasattr(definition, called[2])):
            return f"{inspect.getsourcefile(definition) or definition.__module__}, in {called[2]}"
    objects = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    kinds = [type(one) for one in objects if type(one) in definitions]
    return f"{inspect.getsourcefile(kinds[-1]) or kinds[-1].__module__}, in {kinds[-1].__qualname__}" if kinds else ""


def changed(source: str, before: str, now: str) -> str:
    """Return the message that a plug-in has another hash than a run has recorded."""
    start = f"plugins: {source.removeprefix(OBJECT)} has changed since this run began"
    return f"{start}: its SHA-256 was {str(before)[:12]}…, now {now[:12]}…; restore it, or start a new run in another folder"


def only_here(sources: Sources | None) -> list[str]:
    """Return the names of definitions that other processes cannot import, such as those of a notebook."""
    return [source.removeprefix(OBJECT) for source in sources or () if source.startswith(OBJECT)]


def _source(given: Any) -> str:
    if isinstance(given, ModuleType):
        return source_of_module(given)
    if isinstance(given, (str, Path)):
        return whole_path(given) if str(given).endswith(".py") or isinstance(given, Path) else given
    if all(registry.name_of(given) is None for registry in ALL):
        name = getattr(given, "__name__", repr(given))
        raise ConfigError(f"plugins: {name} is not registered; decorate it, such as with @edgefl.extend.method('name')")
    return source_of(given)


def _known() -> dict[str, Any]:
    """Return source → one definition, of the plug-ins that this process has imported under a name of its own, or defines."""
    every = (plugin for registry in ALL for plugin in registry.plugins().values())
    return {plugin.source: plugin.definition for plugin in every if not plugin.definition.__module__.startswith(BY_PATH)}


def _sha256(source: str) -> str:
    if not source.startswith(OBJECT):
        return source_sha256(source)
    if source not in (definitions := _known()):
        raise ConfigError(
            f"plugins: {source.removeprefix(OBJECT)} was defined in a notebook or at a prompt, and only that process has it; "
            "define it there again, or put it into a file and give --plugin file.py"
        )
    return source_sha256(source, definitions[source])
