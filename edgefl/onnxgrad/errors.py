"""The errors that onnxgrad raises on purpose, and texts of errors. They are the roots of edgefl's tree."""

import difflib
import importlib.util
import linecache
import traceback
from collections.abc import Iterable
from pathlib import Path


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


def place_of(error: BaseException) -> str:
    """Return the innermost line of ``error``'s traceback outside of torch and this package, as " (at FILE:LINE: CODE)"; "" if none.

    >>> place_of(ValueError("never raised"))
    ''
    """
    torch = importlib.util.find_spec("torch")
    inner = ("<frozen", str(Path(__file__).parents[1]), *(torch.submodule_search_locations or () if torch else ()))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(inner)]
    if not frames or frames[-1].lineno is None:
        return ""
    line = linecache.getline(frames[-1].filename, frames[-1].lineno).strip()
    return f" (at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {line})"
