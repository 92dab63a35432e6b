"""Registries find methods, models and other parts by name: in the files of the package, in plug-ins, and at entry points.

Parts of the package are found by their decorators, read from the source files: listing names imports neither torch nor these files. A
plug-in is any other imported module with decorated definitions. An installed package names its parts as entry points, such as
``[project.entry-points."edgefl.methods"]``, which are imported when they are used.
"""

import ast
import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from edgefl.errors import EdgeflError, InputError, UnknownNameError
from edgefl.util.extras import check_extra
from edgefl.util.interface import Interface
from edgefl.util.modules import OBJECT, object_in, source_named, source_of

T = TypeVar("T")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
Options = Mapping[str, Any]
"""The options that a user gives to a part, by name; the part itself checks them."""
CONTRIB = "edgefl.contrib"
"""Where features with parts of several kinds are, each in a folder."""


class Plugin(NamedTuple):
    """A definition that is not of the package, and its ``source`` as :func:`edgefl.util.modules.source_of` returns it."""

    definition: Any
    source: str


@functools.cache
def _entry_points() -> Any:
    """Return all entry points; reading them takes a few milliseconds."""
    from importlib.metadata import entry_points  # which imports the modules of mail

    return entry_points()


@functools.cache
def _texts(package: str) -> Mapping[str, str]:
    """Return name → text of the modules of a package, and of the packages in it."""
    folder = Path(__file__).parent.joinpath(*package.split(".")[1:])
    paths = sorted(folder.rglob("*.py") if package == CONTRIB else folder.glob("*.py"))
    named = ((".".join((package, *path.relative_to(folder).with_suffix("").parts)), path) for path in paths)
    return {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in named}


class Registry:
    """The definitions of one ``kind``, such as ``method``, which plug-ins define by the rules of ``interface``.

    Those of edgefl are in the files of ``package`` and of :data:`CONTRIB`, decorated with the kind's name. Where a name is expected,
    ``package.module:Class`` and ``file.py:Class`` are also possible. :meth:`resolve` returns the name under which such a definition is
    registered. Where kinds are ``shared``, a configuration names a part with a share and options, as in ``name:0.1(scale=10)``.

    >>> "fedhm" in methods.names(), "resnet18" in models.names()
    (True, True)
    >>> methods.load("fedhn")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    edgefl.errors.UnknownNameError: unknown method 'fedhn'; did you mean 'fedhm'? Known: clustered-fl, depthfl, ...
    """

    def __init__(self, kind: str, package: str, interface: Interface, plural: str = "", shared: bool = False) -> None:
        self.kind, self.package, self.interface, self.plural = kind, package, interface, plural or f"{kind}s"
        self.shared = shared
        self._title = kind.replace("_", " ")
        self._loaded: dict[str, Any] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._plugged: dict[str, Plugin] = {}  # those of ``_loaded`` that are not of the package

    def __call__(self, name: str, **facts: Any) -> Callable[[T], T]:
        """Return a decorator that registers a definition as ``name``, a literal string; :meth:`facts` returns ``facts``.

        The decorator raises InputError if a plug-in's name is taken, or its definition lacks a part of the interface.
        """

        def register(definition: T) -> T:
            if not f"{getattr(definition, '__module__', '')}.".startswith((f"{self.package}.", f"{CONTRIB}.")):
                plugin = Plugin(definition, source_of(definition))
                self._check(name, plugin, facts)
                self._plugged[name] = plugin
            self._loaded[name] = definition
            self._facts[name] = facts
            return definition

        return register

    @functools.cached_property
    def _decorators(self) -> dict[str, tuple[str, ast.Call]]:
        """Name → module and decorator, from the source files; EdgeflError if two files define the same name."""
        named: dict[str, tuple[str, ast.Call]] = {}
        decorated = re.compile(rf"^@{self.kind}\(.*?^(?=class |def )", re.MULTILINE | re.DOTALL)  # whole files take long to parse
        for module, text in {**_texts(self.package), **_texts(CONTRIB)}.items():
            tree = ast.parse("".join(f"{decorators}class _: ...\n" for decorators in decorated.findall(text)))
            definitions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
            for decorator in (d for definition in definitions for d in definition.decorator_list):
                match decorator:
                    case ast.Call(func=ast.Name(id=self.kind), args=[ast.Constant(value=str(name))]):
                        if name in named:
                            other, again = (place.rpartition(".")[2] for place in (named[name][0], module))
                            raise EdgeflError(f"{self.kind} {name!r} is defined in {other} and again in {again}")
                        named[name] = module, decorator
        return named

    @functools.cached_property
    def _entry_points(self) -> Mapping[str, list[str]]:
        """Name → ``module:definition`` of the packages that define it."""
        values: dict[str, list[str]] = {}
        for point in _entry_points().select(group=f"edgefl.{self.plural}"):
            values[point.name] = sorted({*values.get(point.name, ()), point.value})
        return values

    def installed(self) -> set[str]:
        """Return the modules that entry points of installed packages name."""
        return {value.partition(":")[0] for values in self._entry_points.values() for value in values}

    def names(self) -> list[str]:
        """Return every known name, sorted."""
        return sorted({*self._decorators, *self._plugged, *self._entry_points})

    def check(self, name: str) -> None:
        """Raise :class:`UnknownNameError` unless ``name`` is known; InputError if several places define it."""
        if ":" in name:
            self.resolve(name)
        elif not (places := list(self._places(name))):
            raise UnknownNameError(self._title, name, self.names())
        elif len(places) > 1:
            self._refuse(name, *places[:2])

    def resolve(self, name: str) -> str:
        """Return ``name``, or the registered name of the definition ``package.module:Class`` or ``file.py:Class``.

        A definition without a decorator is registered under its own name.
        """
        if ":" not in name:
            return name
        title, where = self._title, name.partition(":")[0]
        if where in self.names():
            raise InputError(f"{title} {name!r}: {where} takes nothing after a colon; give {where}, or your own as file.py:Class")
        try:
            definition = object_in(name, f"{title} {name}", f"a {title}")
        except InputError as error:
            if "." in where or importlib.util.find_spec(where):
                raise
            raise InputError(f"{error}; known by name: {', '.join(self.names())}") from None
        if (registered := self.name_of(definition)) is None:
            registered = str(getattr(definition, "__name__", type(definition).__name__))
            self(registered)(definition)
        return registered

    def load(self, name: str) -> Any:
        """Import the file that defines ``name`` and return the definition; raise :class:`UnknownNameError` if there is none."""
        name = self.resolve(name)
        self.check(name)
        if name in self._decorators:
            importlib.import_module(self._decorators[name][0])
        elif name not in self._plugged:
            self._load_entry_point(name)
        return self._loaded[name]

    def name_of(self, definition: object) -> str | None:
        """Return the name under which ``definition`` was registered, if any.

        >>> methods.name_of(methods.load("fedhm"))
        'fedhm'
        """
        return next((name for name, loaded in self._loaded.items() if loaded is definition), None)

    def plugin(self, name: str) -> Plugin | None:
        """Return what a plug-in or an installed package defines as ``name``, if any does."""
        if name in self._entry_points and name not in self._plugged:
            self.load(name)
        return self._plugged.get(name)

    def plugins(self) -> Mapping[str, Plugin]:
        """Return what imported plug-ins define, by name."""
        return self._plugged

    def facts(self, name: str) -> dict[str, Any]:
        """Return keyword → value of the decorator of ``name``; its file is imported only if a value is not a literal.

        >>> models.facts("resnet18")
        {'usual_input': (3, 32, 32)}
        """
        name = self.resolve(name)
        self.check(name)
        if name in self._decorators:
            try:
                return {str(fact.arg): ast.literal_eval(fact.value) for fact in self._decorators[name][1].keywords}
            except ValueError:
                pass
        self.load(name)
        return self._facts[name]

    def each(self, fact: str) -> list[Any]:
        """Return the values of one keyword of :meth:`facts`, of all names that have it."""
        return [facts[fact] for name in self.names() if fact in (facts := self.facts(name))]

    def check_installed(self, name: str, flag: str) -> None:
        """Raise InputError if the Python package that ``name`` needs is not installed; ``flag`` is how the user asked for it."""
        facts = self.facts(name)
        check_extra(flag, facts["needs"], facts["extra"])

    def _load_entry_point(self, name: str) -> None:
        value = self._entry_points[name][0]
        title = f"entry point edgefl.{self.plural}, {name} = {value}"
        definition = object_in(value, title, f"a {self._title}", here=False)
        if (other := self.name_of(definition)) not in (name, None):
            raise InputError(f"{title}: is registered as {other!r}; give both the same name")
        if name not in self._plugged:
            self(name)(definition)

    def _places(self, name: str) -> Iterator[str]:
        """Yield where ``name`` is defined: modules, and files of plug-ins."""
        if name in self._decorators:
            yield self._decorators[name][0]
        plugged = self._plugged.get(name)
        if plugged is not None:
            yield plugged.source
        for value in self._entry_points.get(name, ()):
            if plugged is None or not (
                plugged.source == source_named(value.partition(":")[0])
                or plugged.definition is object_in(value, name, "a definition", here=False)
            ):
                yield value

    def _check(self, name: str, plugin: Plugin, facts: Mapping[str, Any]) -> None:
        title = f"{self._title} {name!r}, in {plugin.source}"
        if not _WORD.fullmatch(name):
            raise InputError(f"{title}: expected a name of letters, digits and -, _ or . after the first")
        if lacking := self.interface.lacking(plugin.definition, facts):
            raise InputError(f"{title}: {lacking}")
        if name in self._decorators:
            self._refuse(name, self._decorators[name][0], plugin.source)
        if (other := self._plugged.get(name)) is None or plugin.source.startswith(OBJECT):
            return
        # The same file may be run again: a module that is reloaded, a file that was changed.
        (one, source), two = other, plugin.definition
        again = one.__module__ != two.__module__ or one.__qualname__ == two.__qualname__
        if not again or source != plugin.source:
            self._refuse(name, source, plugin.source)

    def _refuse(self, name: str, one: str, other: str) -> None:
        raise InputError(f"{self._title} {name!r} is defined in {one} and again in {other}; rename one of them")


_CHOICE = ("needs",)
_NETWORK = Interface(
    "", ("input_shape", "classes"), ("width",), ("usual_classes", "vocabulary", "large", "per_token"), ("usual_input",)
)
_ENGINE = Interface("", ("clients", "workers"), (), ("keeps_state", "shares_memory", "groups_clients", "remote", "cluster_keys"))
method = methods = Registry("method", "edgefl.methods", Interface("edgefl.methods.base:Method"))
model = models = Registry("model", "edgefl.models", _NETWORK)
dataset = datasets = Registry("dataset", "edgefl.data", Interface("", ("data_dir",), (), ("owners",)))
codec = codecs = Registry("codec", "edgefl.wire.codecs", Interface("edgefl.wire.codec:Codec", facts=_CHOICE))
objective = objectives = Registry(
    "objective", "edgefl.client.objectives", Interface("edgefl.client.objective:Objective", facts=_CHOICE)
)
stage = stages = Registry("stage", "edgefl.client.stages", Interface("edgefl.client.stage:Stage", facts=_CHOICE))
server_optimizer = server_optimizers = Registry(
    "server_optimizer", "edgefl.server.optimizers", Interface("edgefl.server.optimizer:ServerOptimizer", facts=_CHOICE)
)
defence = defences = Registry("defence", CONTRIB, Interface("edgefl.server.defence:Defence", facts=_CHOICE))
sampler = samplers = Registry("sampler", "edgefl.server.samplers", Interface("edgefl.server.sampler:Sampler", facts=_CHOICE))
engine = engines = Registry("engine", "edgefl.engine", _ENGINE)
logger = loggers = Registry("logger", "edgefl.log", Interface("", ("run",), required=("needs", "extra")))
key_group = key_groups = Registry(
    "key_group",
    CONTRIB,
    Interface(
        "edgefl.config.group:KeyGroup", facts=("host", "needs", "titles", "of_policies", "compared"), required=("after", "place")
    ),
)
conduct = conducts = Registry("conduct", CONTRIB, Interface("edgefl.client.conduct:Conduct"))
feature = features = Registry("feature", CONTRIB, Interface("edgefl.run.feature:Feature", facts=("figures",)))
added_fields = Registry("added_fields", CONTRIB, Interface("", required=("of",)), "added_fields")
section = sections = Registry("section", CONTRIB, Interface("", ("summary", "rounds")))
view = views = Registry("view", CONTRIB, Interface())
"""Actions of the core's commands that a part of contrib does."""
export_format = export_formats = Registry(
    "export_format", "edgefl.bundle.formats", Interface("", ("network", "sample"), required=("needs", "extra", "suffix"))
)


def _of_features() -> tuple[Registry, ...]:
    """Return the kinds of parts that features bring: ``KIND`` in the file ``kinds.py`` of each that has one."""
    files = sorted(Path(__file__).parent.joinpath(*CONTRIB.split(".")[1:]).glob("*/kinds.py"))
    return tuple(importlib.import_module(f"{CONTRIB}.{file.parent.name}.kinds").KIND for file in files)


OF_FEATURES = _of_features()
"""The registries of the kinds of parts that features bring."""
ALL = (
    methods, models, datasets, codecs, objectives, stages, server_optimizers, defences, *OF_FEATURES, samplers, engines, loggers,
    export_formats,
)  # fmt: skip
"""Every registry whose parts may also be those of plug-ins."""


def compared_keys() -> list[str]:
    """Return the keys of features that all runs of a comparison have in common, and that its page shows."""
    return [key for keys in key_groups.each("compared") for key in keys]


def __getattr__(name: str) -> Registry:
    """Return a registry of :data:`OF_FEATURES` by its kind or plural."""
    if (found := next((own for own in globals().get("OF_FEATURES", ()) if name in (own.kind, own.plural)), None)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return cast("Registry", found)
