"""Folders that this process writes to: whether each is still where it was, or was moved or deleted meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from edgefl.errors import MovedError

_claims: dict[Path, tuple[int, int]] = {}
"""Folder → device and number of the file system's entry."""


@contextlib.contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Let :func:`check_claims` watch ``folder`` within a block; an error in the block is a :class:`MovedError` if it is gone."""
    _claims[folder] = place = _place(folder) or (0, 0)
    try:
        yield
    except Exception as error:
        if _place(folder) != place:
            raise _moved(folder) from error
        raise
    finally:
        _claims.pop(folder, None)


def check_claims(path: Path) -> None:
    """Raise :class:`MovedError` if ``path`` lies in a claimed folder that was moved or deleted: it must not be made anew."""
    for folder, place in list(_claims.items()):
        if (path == folder or folder in path.parents) and _place(folder) != place:
            raise _moved(folder)


def make_folder(folder: Path) -> None:
    """Make ``folder`` and its parents; a claimed folder among them is never made anew, also if it is moved at this very moment.

    Raises:
        MovedError: as :func:`check_claims`.
        FileNotFoundError: the claimed folder was moved since.
    """
    check_claims(folder)
    claim = next((claimed for claimed in _claims if folder.is_relative_to(claimed)), None)
    if claim is None:
        folder.mkdir(parents=True, exist_ok=True)
        return
    for part in (*reversed(folder.parents), folder):
        if claim in part.parents:
            part.mkdir(exist_ok=True)


def _place(folder: Path) -> tuple[int, int] | None:
    try:
        entry = folder.stat()
    except OSError:
        return None
    return entry.st_dev, entry.st_ino


def _moved(folder: Path) -> MovedError:
    return MovedError(f"the run's folder was moved or deleted: {folder}; move it back and add --resume, or begin a new run")
