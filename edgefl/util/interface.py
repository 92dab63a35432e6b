"""Whether a class or function of a user has all that its callers need, checked when it is registered."""

import importlib
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, get_args, get_origin, get_type_hints


@dataclass(frozen=True)
class Interface:
    """The needs of the callers of a definition.

    Attributes:
        base: ``module:Class``, whose subclass the definition is; empty: it is a function.
        arguments, keywords: how the function is called, by position and by name.
        facts, required: keywords that its decorator may have, and those that it must have.
    """

    base: str = ""
    arguments: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def lacking(self, definition: Any, facts: Collection[str]) -> str:
        """Return what ``definition``, decorated with ``facts``, lacks or has wrong; "" if nothing.

        >>> Interface(arguments=("data_dir",)).lacking(lambda: None, ())
        'cannot be called with (data_dir): too many positional arguments'
        >>> Interface("collections.abc:Sized").lacking(int, ())
        'is int, expected a subclass of Sized'
        """
        if unknown := sorted(set(facts) - {*self.facts, *self.required}):
            known = ", ".join((*self.required, *self.facts)) or "none"
            return f"its decorator has no keyword {unknown[0]!r}; known: {known}"
        if missing := [fact for fact in self.required if fact not in facts]:
            return f"its decorator lacks {', '.join(missing)}"
        return self._of_class(definition) if self.base else self._of_function(definition)

    def _of_class(self, definition: Any) -> str:
        module, _, name = self.base.partition(":")
        base: Any = getattr(importlib.import_module(module), name)
        if not (isinstance(definition, type) and issubclass(definition, base)):
            return f"is {getattr(definition, '__name__', type(definition).__name__)}, expected a subclass of {name}"
        declared = [
            key
            for kind in reversed(base.__mro__)
            for key, hint in inspect.get_annotations(kind).items()
            if "ClassVar" in str(hint)
        ]
        lacks = [key for key in declared if not hasattr(definition, key)]
        lacks += sorted(getattr(definition, "__abstractmethods__", ()))
        # What a class needs may depend on what it says of itself.
        needed = getattr(definition, "needed", tuple)
        lacks += [key for key in needed() if getattr(definition, key) is getattr(base, key)]
        if lacks:
            return f"lacks {', '.join(lacks)}, which every {name} defines"
        return _of_another_type(definition, base) or _uncallable(definition, base)

    def _of_function(self, definition: Any) -> str:
        if not callable(definition):
            return f"is {type(definition).__name__}, expected a function"
        try:
            inspect.signature(definition).bind(*self.arguments, **dict.fromkeys(self.keywords))
        except (TypeError, ValueError) as error:
            return f"cannot be called with ({', '.join((*self.arguments, *(f'{key}=…' for key in self.keywords)))}): {error}"
        return ""


def _of_another_type(definition: type, base: type) -> str:
    """Return which attribute of ``definition`` has not the type that ``base`` declares by a ClassVar; "" if all have.

    >>> class Base:
    ...     sizes: ClassVar[tuple[float, ...]] = (1.0,)
    >>> class Mine(Base):
    ...     sizes = 1.0
    >>> _of_another_type(Mine, Base)
    'sizes is 1.0, expected tuple[float, ...]'
    """
    from pydantic import TypeAdapter, ValidationError  # lists of names need none

    for key, hint in get_type_hints(base).items():
        # A property decides when it is read.
        if get_origin(hint) is not ClassVar or hasattr(value := inspect.getattr_static(definition, key), "__get__"):
            continue
        (kind,) = get_args(hint)
        try:
            TypeAdapter(kind).validate_python(value, strict=True)
        except ValidationError:
            return f"{key} is {value!r}, expected {getattr(kind, '__name__', kind) if isinstance(kind, type) else kind}"
    return ""


def _uncallable(definition: type, base: type) -> str:
    """Return which method of ``definition`` cannot be called with the arguments that the first one of its name needs; "" if all can.

    The first one is that of ``base`` or of a class between the two.

    >>> class Base:
    ...     def scaled(self, x, factor=1): ...
    >>> class Mine(Base):
    ...     def scaled(self): ...
    >>> _uncallable(Mine, Base)
    'scaled cannot be called with (x): too many positional arguments'
    """
    for name, method in inspect.getmembers(definition, inspect.isroutine):
        kinds = (kind for kind in reversed(definition.__mro__) if issubclass(kind, base) and name in vars(kind))
        theirs = next((vars(kind)[name] for kind in kinds), None)
        if theirs is None or inspect.getattr_static(definition, name) is theirs or not inspect.isfunction(theirs):
            continue
        first, *needed = inspect.signature(theirs).parameters.values()
        names = [p.name for p in needed if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        try:
            # Of a static or class method, the first argument is no ``self``.
            itself = (first.name,) if inspect.isfunction(inspect.getattr_static(definition, name)) else ()
            inspect.signature(method).bind(*itself, *names)
        except (TypeError, ValueError) as error:
            return f"{name} cannot be called with ({', '.join(names)}): {error}"
    return ""
