"""The errors that edgefl raises on purpose: each message says what was received, what was expected and what to do.

The command line prints the message and exits with the class's ``exit_code``.
"""

import difflib
from collections.abc import Iterable
from pathlib import PurePath

from edgefl.onnxgrad.errors import EdgeflError as EdgeflError
from edgefl.onnxgrad.errors import InputError as InputError
from edgefl.onnxgrad.errors import StorageError as StorageError
from edgefl.onnxgrad.errors import first_line as first_line
from edgefl.onnxgrad.errors import printable as printable

for _kind in (EdgeflError, InputError, StorageError):  # tracebacks name the module that users import them from
    _kind.__module__ = __name__


class ConfigError(InputError):
    """A key of a run's configuration is unknown, or its value is wrong."""


class UnknownNameError(InputError):
    """No part is registered under a name; the message suggests the nearest known name and lists all.

    ``kind`` is what was looked up, such as "method"; ``known`` are all registered names.

    >>> raise UnknownNameError("method", "fedhn", ["fedavg", "fedhm"])
    Traceback (most recent call last):
        ...
    edgefl.errors.UnknownNameError: unknown method 'fedhn'; did you mean 'fedhm'? Known: fedavg, fedhm
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = _of_path(kind, name) or _ELSEWHERE.get((kind, _letters(name)), "") or nearest(name, known)
        own = "; for your own: edgefl devices --template FILE" if kind in ("device", "profile") else ""
        super().__init__(f"unknown {kind} {name!r};{hint} {'Known' if hint else 'known'}: {', '.join(known)}{own}")


class ProfileError(InputError):
    """A device, link or fleet file is malformed."""


class DataError(InputError):
    """A data file is missing, truncated or malformed, or a partition cannot be made."""


class WireError(InputError):
    """A payload, an update file or a message is damaged, or does not hold what was declared."""


class CheckpointError(InputError):
    """A run folder cannot be resumed, or already holds a run."""


class BundleError(InputError):
    """The files of a bundle do not match its manifest."""


class NoBundleError(BundleError):
    """The network of a run cannot be written as graphs; the message says why."""


class MovedError(EdgeflError):
    """The folder of a run was moved or deleted while the run wrote to it."""


class BudgetError(EdgeflError):
    """No device of the fleet can hold any tier."""

    exit_code = 3


class Interrupted(KeyboardInterrupt):
    """A run was interrupted with Ctrl-C; ``command`` continues it."""

    def __init__(self, command: str) -> None:
        super().__init__(command)
        self.command = command


class OutOfTimeError(EdgeflError):
    """The moment has come at which no more rounds are trained; runs that were not complete can be resumed."""

    exit_code = 3


class AggregationError(EdgeflError):
    """Updates cannot be aggregated: none arrived, a weight is zero, or a value is not finite."""


class NotFiniteError(AggregationError):
    """Finite updates have an aggregate with NaN or infinity."""


class MetricError(EdgeflError):
    """A model has no metric: its outputs, or its metric, are not finite."""


_MEANT = {"fmnist": "fashion-mnist", "fashion": "fashion-mnist", "noniid": "dirichlet", "niid": "dirichlet", "lda": "dirichlet"}
"""What the field calls some names, where spelling alone would suggest another."""
_ELSEWHERE = {
    ("method", name): f" it combines with any method: {flag}."
    for name, flag in {
        "fedprox": "--objective prox",
        "feddyn": "--objective dyn",
        "scaffold": "--objective scaffold",
        "fedavgm": "--server-optimizer avgm",
        "fedadam": "--server-optimizer adam",
        "fedyogi": "--server-optimizer yogi",
    }.items()
}
"""What a name of a kind is here, if it is no part of this kind."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> nearest("heteroflx", ["fedavg", "heterofl"]), nearest("non-iid", ["iid", "dirichlet"])
    (" did you mean 'heterofl'?", " did you mean 'dirichlet'?")
    """
    known = list(known)
    matches = [meant for meant in known if meant == _MEANT.get(_letters(name))]
    matches = matches or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    matches = matches or [other for other in known if len(name) > 1 and _letters(name) in _letters(other)]
    return f" did you mean {matches[0]!r}?" if matches else ""


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _of_path(kind: str, name: str) -> str:
    """Return what to say of a name that looks like a path; "" if it does not."""
    ending = PurePath(name).suffix.lower()
    if kind == "model" and ending == ".py":
        return f" name the file's function too, such as {name}:make."
    if kind == "model" and ending in (".pt", ".pth", ".ckpt", ".safetensors"):
        return " it looks like a file of weights: give the network, such as net.py:make, and the weights by --weights."
    if kind == "model" and ending:
        return f" a file of a network is an .onnx file, or file.py:function; {ending} is neither."
    return " no such file or folder." if "/" in name or ending else ""
