"""How a configuration names a user's network: by an import path, a file, a library, an ONNX file, or an object of this process only."""

import functools
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from edgefl.util.files import sha256, whole_path
from edgefl.util.modules import OBJECT, content_sha256, is_file

_objects: dict[str, Callable[..., Any]] = {}


def spec_of(network: Callable[..., Any]) -> str:
    """Return the name of a factory or module, from which this process finds it again: an import path if it has one.

    The name of an object that cannot be imported contains a hash of its content, so that an equal object resumes a run.

    >>> spec_of(Path), spec_of(lambda: None)[:16]
    ('pathlib:Path', 'object:<lambda>-')
    """
    module, name = (str(getattr(network, key, "")) for key in ("__module__", "__qualname__"))
    main = str(getattr(sys.modules["__main__"], "__file__", None) or "")
    if module == "__main__" and not main.endswith(".py"):
        module = ""
    try:
        importable = bool(module and name) and attrgetter(name)(sys.modules[module]) is network
    except (KeyError, AttributeError):
        importable = False
    if not importable:
        return named(name.rpartition(".")[2] or type(network).__name__, _content(network), network)
    spec = canonical(f"{main if module == '__main__' else module}:{name}")
    _objects[spec] = network
    return spec


def named(title: str, digest: str, value: Any) -> str:
    """Return the name of an object with a content of this hash, from which this process finds it again."""
    spec = f"{OBJECT}{title}-{digest[:12]}"
    _objects[spec] = value
    return spec


def object_of(spec: str) -> Callable[..., Any] | None:
    """Return the object that :func:`spec_of` has named so in this process, if any."""
    return _objects.get(spec)


def is_onnx(spec: str) -> bool:
    """Whether ``spec`` is the path of an ONNX file."""
    return spec.endswith(".onnx")


def is_own(spec: str) -> bool:
    """Whether ``spec`` is no name of a reference network."""
    return ":" in spec or is_onnx(spec)


def canonical(spec: str) -> str:
    """Return ``spec`` with the whole path of its file, so that it means the same in any folder."""
    if is_onnx(spec):
        return whole_path(spec)
    path, _, name = spec.rpartition(":")
    return f"{whole_path(path)}:{name}" if is_file(spec) else spec


def title_of(spec: str) -> str:
    """Return the name of a network in messages and files: without folders and hashes.

    >>> title_of("/home/me/lab/net.py:small"), title_of("object:Net-0123456789ab"), title_of("lab.net:small")
    ('net.py:small', 'Net', 'lab.net:small')
    """
    if spec.startswith(OBJECT):
        return spec.removeprefix(OBJECT).rpartition("-")[0]
    if is_onnx(spec):
        return Path(spec).name
    path, _, name = spec.rpartition(":")
    return f"{Path(path).name}:{name}" if is_file(spec) else spec


def _content(network: Any) -> str:
    """Return a hash of a module's layers and tensors, or of a function's source and the values that it captured."""
    if isinstance(network, functools.partial):
        parts = [spec_of(network.func), repr(network.args), repr(network.keywords)]
    elif hasattr(network, "state_dict"):
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
        parts = [repr(network), *(f"{name} {tensor.dtype} {tensor.numpy().tobytes()!r}" for name, tensor in tensors.items())]
    else:
        return content_sha256(network)
    return sha256("\0".join(parts).encode())
