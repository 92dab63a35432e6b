"""The table of served files: address → file. It is complete before the first request, and no address is ever joined to a folder."""

import os
import stat
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from edgefl.bundle.manifest import MANIFEST
from edgefl.bundle.manifest_file import differences, read
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
    """A file that is served; its path must not lead out of ``folder``."""

    path: Path
    folder: Path

    @property
    def content_type(self) -> str:
        """The media type, by the ending of the name; ``application/octet-stream`` for other endings."""
        return TYPES.get(self.path.suffix, "application/octet-stream")

    def open(self) -> BufferedReader:
        """Open the file; OSError if by now it is missing, not a plain file, or behind a link."""
        if self.path.resolve() != self.folder.resolve() / self.path.relative_to(self.folder):
            raise OSError(None, "behind a symbolic link")
        if not stat.S_ISREG(self.path.lstat().st_mode):
            raise OSError(None, "not a plain file")  # opening a pipe would wait for its other end
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(self.path, flags), "rb")


def bundle_addresses(bundle: Path) -> dict[str, Served]:
    """Return address → file for a manifest and the files that it lists, below ``/bundle/``; BundleError if one is missing or changed."""
    manifest = read(bundle)
    if problems := list(differences(manifest, lambda name: Served(bundle / name, bundle).open())):
        raise BundleError("\n".join(f"{bundle}: {name}: {what}" for name, what in problems))
    return {f"/bundle/{name}": Served(bundle / name, bundle) for name in (MANIFEST, *manifest.files)}


def page_addresses(runtime: Path) -> dict[str, Served]:
    """Return address → file for the page, at ``/``, and for onnxruntime-web's files in the folder ``runtime``, below ``/ort/``."""
    page = _listed("/", shared("export") / "web", (".html", ".css", ".js", ".svg"))
    return {"/": page["/index.html"], **page, **_listed("/ort/", runtime, (".mjs", ".wasm"))}


def _listed(prefix: str, folder: Path, endings: tuple[str, ...]) -> dict[str, Served]:
    return {prefix + path.name: Served(path, folder) for path in sorted(folder.iterdir()) if path.suffix in endings}
