"""How a configuration names a user's data set: by its path, its name on the Hugging Face hub, or as an object of this process."""

import hashlib
import re
from pathlib import Path
from typing import Any

from edgefl.errors import InputError
from edgefl.util.files import exists
from edgefl.util.modules import OBJECT
from edgefl.util.networks import named

HUB = "hf:"
"""Begins the name of a data set of the Hugging Face hub."""
DRAWN = "drawn:"
"""Begins the name of random samples, see :mod:`edgefl.data.drawn`."""
_BLOCK = 1024


OPTIONS = {"channels": ("first", "last"), "alpha": ("drop", "white", "black", "only"), "as": ("images", "table")}
"""The options that may follow the path of a user's data, as ``PATH:channels=last,alpha=white``, and their values."""
_OPTIONS = re.compile(r":([a-z]+=[^:/\\\\]*)$")


def options_in(spec: str) -> tuple[str, dict[str, str]]:
    """Return the path of a user's data without its options, and these.

    >>> options_in("photos:alpha=white,as=images"), options_in("own.npz")
    (('photos', {'alpha': 'white', 'as': 'images'}), ('own.npz', {}))

    Raises:
        InputError: an option or its value is unknown.
    """
    if (match := _OPTIONS.search(spec)) is None or spec.startswith((OBJECT, DRAWN)) or exists(Path(spec)):
        return spec, {}
    options = dict(part.partition("=")[::2] for part in match[1].split(","))
    for name, value in options.items():
        if name not in OPTIONS:
            raise InputError(f"dataset: {spec}: unknown option {name!r} of the data, expected {', '.join(OPTIONS)}")
        if value not in OPTIONS[name]:
            raise InputError(f"dataset: {spec}: {name}: got {value!r}, expected {', '.join(OPTIONS[name])}")
    return spec[: match.start()], options


def is_own(spec: str) -> bool:
    """Whether ``spec`` names a user's data set, in the form that :func:`data_spec` returns.

    >>> is_own("digits+fashion-mnist"), is_own("/data/own.npz"), is_own("hf:mnist")
    (False, True, True)
    """
    return spec.startswith((HUB, OBJECT, DRAWN)) or Path(spec).is_absolute()


def data_spec(data: Any, known: list[str]) -> Any:
    """Return the name of ``data``, a data set by its name, its path or itself; of a path, the whole one.

    A text is a path unless it consists of ``known`` names, if it exists, has a separator, or ends like a file.
    """
    if isinstance(data, str):
        bare, _ = options_in(data)
        path, options = Path(bare), data[len(bare) :]
        if data.startswith((HUB, OBJECT, DRAWN)) or not data or set(data.split("+")) <= set(known):
            return data
        return f"{path.resolve()}{options}" if len(path.parts) > 1 or path.suffix or options or exists(path) else data
    if isinstance(data, Path):
        return str(data.resolve())
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (list, tuple, dict, bytes)):
        return named(type(data).__name__, _digest(data), data)
    if hasattr(data, "apart"):
        facts, arrays = data.apart()
        return named(data.name, _digest([repr(facts), *arrays.values()]), data)
    return data


def data_title(spec: str) -> str:
    """Return the name of a data set in messages and folders: without folders, endings and hashes.

    >>> data_title("/home/me/own.npz"), data_title("hf:uoft-cs/cifar10"), data_title("digits+fashion-mnist")
    ('own', 'cifar10', 'digits+fashion-mnist')
    """
    if spec.startswith(OBJECT):
        return spec.removeprefix(OBJECT).rpartition("-")[0]
    if spec.startswith(DRAWN):
        return "none"
    if spec.startswith(HUB):
        return spec.removeprefix(HUB).partition(":")[0].rpartition("/")[2]
    return Path(options_in(spec)[0]).stem if is_own(spec) else spec


def share_in(held_out: str | None) -> float | None:
    """Return the share in (0, 1) that ``held_out`` gives; None if it is a file or None."""
    try:
        share = float(held_out or "")
    except ValueError:
        return None
    return share if 0 < share < 1 else None


def _digest(parts: Any) -> str:
    """Return a hash of the values of texts, arrays, tensors, and tuples of them."""
    import numpy as np  # help and names need none

    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, (tuple, list)):
            for part in value:
                add(part)
        elif isinstance(value, np.ndarray):
            digest.update(f"{value.dtype}{value.shape}".encode())
            for start in range(0, len(value) if value.ndim else 0, _BLOCK):
                digest.update(np.ascontiguousarray(value[start : start + _BLOCK]).tobytes())
            if not value.ndim:
                digest.update(value.tobytes())
        else:
            digest.update(value.encode() if isinstance(value, str) else np.asarray(value).tobytes())

    for number in range(len(parts)):
        try:
            part = parts[number]
        except Exception as error:
            raise InputError(
                f"dataset: sample {number} of {type(parts).__name__} raised {type(error).__name__}: {error}"
            ) from error
        add(part)
    return digest.hexdigest()
