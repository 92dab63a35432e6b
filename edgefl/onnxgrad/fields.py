"""One value, or several by name: the inputs of samples as arrays, tensors or descriptions. Code that treats both alike is written here."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Fields: TypeAlias = T | Mapping[str, T]
"""One value without a name, or name → value."""


def each(change: Callable[..., Any], values: Any, *others: Any) -> Any:
    """Return ``change(value)``, or name → ``change(value)``; ``others`` are of the form of ``values`` and are further arguments.

    >>> each(abs, -1), each(max, {"ids": 1, "mask": 2}, {"ids": 4, "mask": 0})
    (1, {'ids': 4, 'mask': 2})
    """
    if isinstance(values, Mapping):
        return {name: change(value, *(other[name] for other in others)) for name, value in values.items()}
    return change(values, *others)


def named(values: Fields[T], name: str) -> dict[str, T]:
    """Return ``name`` → value, or ``name.KEY`` → value of several.

    >>> named(7, "x"), named({"ids": 1, "mask": 2}, "x")
    ({'x': 7}, {'x.ids': 1, 'x.mask': 2})
    """
    return {f"{name}.{key}": value for key, value in values.items()} if isinstance(values, Mapping) else {name: values}


def unnamed(values: Mapping[str, T], name: str) -> Fields[T]:
    """Return the values of which :func:`named` has made a part of ``values``.

    >>> unnamed({"x.ids": 1, "x.mask": 2, "y": 3}, "x"), unnamed({"x": 7, "y": 3}, "x")
    ({'ids': 1, 'mask': 2}, 7)
    """
    if name in values:
        return values[name]
    return {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}


def listed(values: Fields[Any], between: str = " ") -> str:
    """Return the values as text.

    >>> listed("3x8x8"), listed({"ids": 6, "mask": 6})
    ('3x8x8', 'ids 6, mask 6')
    """
    return ", ".join(f"{name}{between}{of}" for name, of in values.items()) if isinstance(values, Mapping) else str(values)


def first(values: Fields[T]) -> T:
    """Return the value, or the first of several; all have as many samples."""
    return next(iter(values.values())) if isinstance(values, Mapping) else values


def rows(values: Any, index: Any) -> Any:
    """Return the samples at ``index`` of every array or tensor (samples, …)."""
    return each(lambda value: value[index], values)
