"""Results that follow from values and edgefl's own code alone, in the user's cache folder: a later process need not compute them again."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from edgefl.errors import EdgeflError, InputError
from edgefl.util.files import read_at_most, sha256, user_cache, write_bytes

T = TypeVar("T")
Facts = Mapping[str, Any]  # all that a result depends on, as JSON has it
_LONGEST_BYTES = 1 << 28


@dataclass(frozen=True)
class Shelf(Generic[T]):
    """Stored results of one kind; the least recently used ones go.

    Attributes:
        name: of the folder in the user's cache folder.
        to_bytes, of_bytes: from a result to the content of its file, and back; of_bytes raises ValueError if that is no result.
        places: how many results are stored.
    """

    name: str
    to_bytes: Callable[[T], bytes]
    of_bytes: Callable[[bytes], T]
    places: int = 256

    def recalled(self, facts: Facts | None, compute: Callable[[], T]) -> T:
        """Return the result that is stored for ``facts``, or else ``compute()``, which is stored if possible.

        None: facts cannot be told, so nothing is stored or recalled. A file that is cut or changed is replaced.

        >>> Shelf("numbers", str.encode, bytes.decode).recalled(None, lambda: "7")
        '7'
        """
        path = None if facts is None else self._path(facts)
        if path is None:
            return compute()
        with contextlib.suppress(Exception):  # there is none yet, or whatever a damaged file makes its reader raise
            return self._read(path)
        result = compute()
        with contextlib.suppress(EdgeflError, OSError):  # without a cache it is computed again the next time
            content = self.to_bytes(result)
            write_bytes(path, sha256(content).encode() + b"\n" + content)
            self._tidy(path.parent)
        return result

    def _path(self, facts: Facts) -> Path | None:
        """Return the file of a result; None if this user has no folder."""
        key = sha256(json.dumps(facts, sort_keys=True, default=str).encode())
        with contextlib.suppress(InputError):
            return user_cache() / self.name / key[:32]
        return None

    def _read(self, path: Path) -> T:
        digest, _, content = read_at_most(path, _LONGEST_BYTES, InputError).partition(b"\n")
        if digest != sha256(content).encode():
            raise ValueError(path)
        os.utime(path)
        return self.of_bytes(content)

    def _tidy(self, folder: Path) -> None:
        stored = sorted(
            (path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: path.stat().st_mtime
        )
        for path in stored[: -self.places]:
            path.unlink(missing_ok=True)


@functools.cache
def own_code_sha256() -> str:
    """Return the hash of edgefl's own code."""
    folder = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()
