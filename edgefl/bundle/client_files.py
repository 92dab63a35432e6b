"""The clients that may travel with a bundle: Python and browser programs that need neither torch nor edgefl."""

from __future__ import annotations

from edgefl.bundle.manifest import CLIENT_FOLDER
from edgefl.util.files import shared

_FOLDERS = ("python", "web")
_NOT_SHIPPED = ("node_modules", "__pycache__")


def client_files() -> dict[str, bytes]:
    """Return the files of the clients by their paths in a bundle.

    >>> "client/python/edgefl_client.py" in client_files()
    True
    """
    top = shared("export")
    found = {}
    for path in sorted(path for folder in _FOLDERS for path in (top / folder).rglob("*") if path.is_file()):
        inner = path.relative_to(top)
        if not any(part in _NOT_SHIPPED or part.startswith(".") for part in inner.parts):
            found[f"{CLIENT_FOLDER}/{inner.as_posix()}"] = path.read_bytes()
    return found
