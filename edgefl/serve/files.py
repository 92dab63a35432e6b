"""The table of served files: address → file, complete before the first request. No address is ever joined to a folder."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from edgefl.bundle.manifest import MANIFEST, differences, read
from edgefl.errors import BundleError
from edgefl.util.files import shared

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
}


@dataclass(frozen=True)
class Served:
    """A file that is served, and the folder that it must not lead out of."""

    path: Path
    folder: Path

    @property
    def content_type(self) -> str:
        """By the ending of the name; what a browser does not need to know is only bytes."""
        return TYPES.get(self.path.suffix, "application/octet-stream")

    def open(self) -> BufferedReader:
        """Open the file; OSError if it is missing, not a plain file, or behind a link, whatever it was when the table was made."""
        if self.path.resolve() != self.folder.resolve() / self.path.relative_to(self.folder):
            raise OSError(None, "behind a symbolic link")
        if not stat.S_ISREG(self.path.lstat().st_mode):
            raise OSError(None, "not a plain file")  # opening a pipe would wait for its other end
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(self.path, flags), "rb")


def bundle_addresses(bundle: Path) -> dict[str, Served]:
    """Return address → file of a bundle: the manifest and what it lists, under ``/bundle/``; BundleError if anything is not as listed."""
    manifest = read(bundle)
    if problems := list(differences(manifest, lambda name: Served(bundle / name, bundle).open())):
        raise BundleError("\n".join(f"{bundle}: {name}: {what}" for name, what in problems))
    return {f"/bundle/{name}": Served(bundle / name, bundle) for name in (MANIFEST, *manifest.files)}


def page_addresses(runtime: Path) -> dict[str, Served]:
    """Return address → file of the page, at ``/``, and of onnxruntime-web's files in ``runtime``, under ``/ort/``."""
    page = _listed("/", shared("export") / "web", (".html", ".css", ".js", ".svg"))
    return {"/": page["/index.html"], **page, **_listed("/ort/", runtime, (".mjs", ".wasm"))}


def _listed(prefix: str, folder: Path, endings: tuple[str, ...]) -> dict[str, Served]:
    return {prefix + path.name: Served(path, folder) for path in sorted(folder.iterdir()) if path.suffix in endings}
