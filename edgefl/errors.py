"""The errors that edgefl raises on purpose; the command line exits with their ``exit_code``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EdgeflError(Exception):
    """Base of every error that edgefl raises on purpose."""

    exit_code = 1


class InputError(EdgeflError):
    """Something given to edgefl is wrong; nothing was written."""

    exit_code = 2


class ConfigError(InputError):
    """A key of a run's configuration has a wrong name or value."""


class UnknownNameError(InputError):
    """A name that no registry knows; the message lists the nearest known ones.

    >>> raise UnknownNameError("method", "fedhn", ["fedavg", "fedhm"])
    Traceback (most recent call last):
        ...
    edgefl.errors.UnknownNameError: unknown method 'fedhn'; did you mean 'fedhm'? Known: fedavg, fedhm
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        hint = nearest(name, known)
        super().__init__(f"unknown {kind} {name!r};{hint} {'Known' if hint else 'known'}: {', '.join(known)}")


class ProfileError(InputError):
    """A device, link or fleet file is malformed."""


class DataError(InputError):
    """A data file is missing, truncated or malformed, or a partition cannot be made."""


class WireError(InputError):
    """A payload does not hold the declared tensors."""


class CheckpointError(InputError):
    """A run folder cannot be resumed, or already holds a run."""


class BundleError(InputError):
    """A bundle is not what its manifest says."""


class StorageError(InputError):
    """The disk is full or a path cannot be written."""


class BudgetError(EdgeflError):
    """No device of the fleet can hold any tier."""

    exit_code = 3


class AggregationError(EdgeflError):
    """Updates cannot be aggregated: none arrived, a weight is zero, or a value is not finite."""


def first_line(error: BaseException) -> str:
    """Return the first line of what another library's error says, or the error's type.

    >>> first_line(ValueError("too large")), first_line(KeyError())
    ('too large', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> nearest("heteroflx", ["fedavg", "heterofl"])
    " did you mean 'heterofl'?"
    """
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" did you mean {matches[0]!r}?" if matches else ""
