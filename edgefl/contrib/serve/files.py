"""The table of served files: address → file and its hashes. It is complete before the first request; no address is joined to a folder."""

import hashlib
import io
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from edgefl.bundle.manifest import MANIFEST, SIGNATURE, SIGNER
from edgefl.bundle.manifest_file import content_of, differences, parse
from edgefl.contrib.serve.runtime import FILES
from edgefl.errors import BundleError
from edgefl.util.files import shared

BLOCK_BYTES = 1 << 18
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".png": "image/png",
}


class ChangedError(Exception):
    """A file is not what it was when the server started."""


@dataclass(frozen=True)
class ServedFile:
    """A file that is served as it was when the server started: every block of it has a hash, and other bytes are not sent.

    Attributes:
        path: the file.
        folder: the folder that ``path`` must not lead out of.
        sha256: of the whole content, in hexadecimal.
        size_bytes: of the whole content.
        blocks: SHA-256 of each :data:`BLOCK_BYTES` of the content.
        stamp: the times of the last change of the file and of its inode, when it was hashed.
    """

    path: Path
    folder: Path
    sha256: str
    size_bytes: int
    blocks: tuple[bytes, ...]
    stamp: tuple[int, ...]

    @property
    def content_type(self) -> str:
        """The media type, by the ending of the name; ``application/octet-stream`` for other endings."""
        return TYPES.get(self.path.suffix, "application/octet-stream")

    def open(self) -> BufferedReader:
        """Open the file; OSError if by now it is missing, not a plain file, or behind a link."""
        return _opened(self.path, self.folder)

    def untouched(self, file: BinaryIO) -> bool:
        """Return whether the open file has the times that it had when it was hashed; ChangedError if it has another length."""
        facts = os.fstat(file.fileno())
        if facts.st_size != self.size_bytes:
            raise ChangedError
        return _stamp(facts) == self.stamp

    def block(self, file: BinaryIO, index: int) -> bytes:
        """Return a block of the open file; ChangedError if its bytes are not those that were hashed."""
        file.seek(index * BLOCK_BYTES)
        content = file.read(min(BLOCK_BYTES, self.size_bytes - index * BLOCK_BYTES))
        if hashlib.sha256(content).digest() != self.blocks[index]:
            raise ChangedError
        return content


def seal(path: Path, folder: Path, file: BinaryIO | None = None) -> ServedFile:
    """Return the file at ``path`` with the hashes of its present content, or of what ``file`` holds; OSError if it cannot be read."""
    stamp = _stamp(path.lstat())  # before the content: a change in between is found when the file is served
    whole, blocks = hashlib.sha256(), []
    size_bytes = 0
    with file or _opened(path, folder) as content:
        while block := content.read(BLOCK_BYTES):
            whole.update(block)
            blocks.append(hashlib.sha256(block).digest())
            size_bytes += len(block)
    return ServedFile(path, folder, whole.hexdigest(), size_bytes, tuple(blocks), stamp)


def bundle_addresses(bundle: Path) -> dict[str, ServedFile]:
    """Return address → file of a bundle, below ``/bundle/``: the manifest, its signature, and the files that it lists.

    Raises:
        BundleError: a file is missing or changed.
    """
    path = bundle / MANIFEST
    content = content_of(bundle)
    manifest = parse(path, content)
    sealed = {MANIFEST: seal(path, bundle, io.BytesIO(content))}

    def digest(name: str, file: BinaryIO) -> str:
        sealed[name] = seal(bundle / name, bundle, file)
        return sealed[name].sha256

    if problems := list(differences(manifest, lambda name: _opened(bundle / name, bundle), digest)):
        raise BundleError("\n".join(f"{bundle}: {name}: {what}" for name, what in problems))
    signature = [path for path in (bundle / SIGNATURE, bundle / SIGNER) if path.is_file() and not path.is_symlink()]
    return {
        f"/bundle/{name}": served for name, served in {**sealed, **{path.name: seal(path, bundle) for path in signature}}.items()
    }


def page_addresses(runtime: Path) -> dict[str, ServedFile]:
    """Return address → file for the page, at ``/``, the client's core, and onnxruntime-web's files in the folder ``runtime``."""
    top = shared("export")
    page = dict(_listed("/", top / "web", (".html", ".css", ".js", ".svg", ".png", ".webmanifest")))
    core = dict(_listed("/core/", top / "ts" / "lib" / "core", (".js",)))
    return {"/": page["/index.html"], **page, **core, **{f"/ort/{name}": seal(runtime / name, runtime) for name in FILES}}


def _listed(prefix: str, folder: Path, endings: tuple[str, ...]) -> Iterator[tuple[str, ServedFile]]:
    for path in sorted(folder.iterdir()):
        if path.suffix in endings:
            yield prefix + path.name, seal(path, folder)


def _opened(path: Path, folder: Path) -> BufferedReader:
    if path.resolve() != folder.resolve() / path.relative_to(folder):
        raise OSError(None, "behind a symbolic link")
    if not stat.S_ISREG(path.lstat().st_mode):
        raise OSError(None, "not a plain file")  # opening a pipe would wait for its other end
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags), "rb")


def _stamp(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_mtime_ns, facts.st_ctime_ns
