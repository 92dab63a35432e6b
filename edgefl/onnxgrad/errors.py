"""The errors that onnxgrad raises on purpose, and texts of errors. They are the roots of edgefl's tree."""

import difflib
from collections.abc import Iterable


class EdgeflError(Exception):
    """Base of every error that edgefl raises on purpose; ``exit_code`` is the status with which a command ends."""

    exit_code = 1


class InputError(EdgeflError):
    """Wrong input: an option, a value or a file. It is raised before anything is written."""

    exit_code = 2


class StorageError(InputError):
    """The disk is full or a path cannot be written."""


def first_line(error: BaseException) -> str:
    """Return the first line of the message of another library's error, at most 300 characters, or its type if there is no message.

    >>> first_line(ValueError("too large")), first_line(KeyError())
    ('too large', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def printable(text: str, layout: str = "\n\t") -> str:
    r"""Return ``text`` with what would change a terminal escaped, except ``layout``; names of files and texts may come from anybody.

    >>> printable("a\x1b[2Jb"), printable("a\nb", layout="")
    ('a\\x1b[2Jb', 'a\\nb')
    """
    return "".join(c if c.isprintable() or c in layout else ascii(c)[1:-1] for c in text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``" did you mean 'x'?"`` for the closest known name, or an empty string.

    >>> nearest("ReluX", ["Relu", "Conv"])
    " did you mean 'Relu'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" did you mean {found[0]!r}?" if found else ""
