"""What a server remembers of single clients, inside a state's tensors: ``client/<number>/<name>``.

It grows with the number of clients that ever took part. Serving one client never changes what is remembered of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor

PREFIX = "client/"
Shape = tuple[int, ...]


def remembered(client: int, name: str) -> str:
    """Return the state's name of ``name`` of ``client``.

    >>> remembered(7, "fc.u")
    'client/7/fc.u'
    """
    return f"{PREFIX}{client}/{name}"


def clients_in(tensors: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of the clients of whom the names ``tensors`` remember anything, ascending.

    >>> clients_in(["fc.u", "client/11/fc.u", "client/2/fc.u"])
    (2, 11)
    """
    return tuple(sorted({int(name.split("/", 2)[1]) for name in tensors if name.startswith(PREFIX)}))


def memory_of(tensors: Mapping[str, Tensor], client: int) -> dict[str, Tensor]:
    """Return name → tensor of what is remembered of ``client``; empty where it never took part."""
    prefix = remembered(client, "")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def misfit(first: Mapping[str, Shape], each: Mapping[str, Shape | None], tensors: Mapping[str, Tensor]) -> str:
    """Return why ``tensors`` cannot be the tensors ``first`` and, for each client that took part, ``each``; or nothing.

    A shape of None stands for a vector of any length.
    """
    plain = {name: tuple(tensor.shape) for name, tensor in tensors.items() if not name.startswith(PREFIX)}
    if plain != dict(first):
        return "its tensors are of another model"
    by_client: dict[str, dict[str, Shape]] = {}
    for name, tensor in tensors.items():
        if name.startswith(PREFIX):
            number, _, rest = name.removeprefix(PREFIX).partition("/")
            if not number.isdecimal():
                return f"{name} names no client"
            by_client.setdefault(number, {})[rest] = tuple(tensor.shape)
    for number, shapes in by_client.items():
        for name in sorted(shapes.keys() | each.keys()):
            if name not in shapes or name not in each:
                return f"what it remembers of client {number} is of another model ({name} is missing or not expected)"
            shape, expected = shapes[name], each[name]
            if shape != expected and not (expected is None and len(shape) == 1):
                return f"what it remembers of client {number} is of another model ({name} has shape {shape}, expected {expected})"
    return ""
