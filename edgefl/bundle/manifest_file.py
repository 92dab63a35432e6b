"""``manifest.json`` as bytes: written with its own hash, and checked against the hash and the records when read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from edgefl.bundle.manifest import FORMAT_VERSION, MANIFEST, UNSEALED, Manifest
from edgefl.errors import BundleError
from edgefl.util.files import sha256
from edgefl.util.validation import explain, short

MAX_MANIFEST_BYTES = 16 << 20
_MAX_LINES = 20


def seal(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Return ``manifest`` with hash and length of every file of ``contents``, and its own hash.

    Raises:
        BundleError: a path leaves the bundle, or a tier names a file that is not among ``contents``.
    """
    files = {path: {"sha256": sha256(content), "bytes": len(content)} for path, content in sorted(contents.items())}
    try:
        unsealed = Manifest.model_validate({**manifest.model_dump(), "files": files, "manifest_sha256": UNSEALED})
        if absent := sorted({path for tier in unsealed.tiers for path in tier.paths} - contents.keys()):
            raise BundleError(f"{folder}: no content for {', '.join(absent)}, which its tiers name")
        return Manifest.model_validate({**unsealed.model_dump(), "manifest_sha256": sha256(text_of(unsealed))})
    except ValidationError as error:
        raise BundleError(_explain(folder, error)) from None


def text_of(manifest: Manifest) -> bytes:
    """Return ``manifest.json``'s bytes."""
    return (json.dumps(manifest.model_dump(mode="json"), indent=2, allow_nan=False) + "\n").encode()


def read(folder: Path) -> Manifest:
    """Return the manifest of a bundle, every key checked, and the whole against its own hash; files that it names are not opened.

    Raises:
        BundleError: no bundle, not JSON, another format version, a wrong key, or changed; names file, key and expectation.
    """
    return parse(folder / MANIFEST, content_of(folder))


def content_of(folder: Path) -> bytes:
    """Return the bytes of a bundle's manifest, which are at most 16 MiB.

    Raises:
        BundleError: no folder, or no such file in it.
    """
    path = folder / MANIFEST
    if folder.exists() and not folder.is_dir():
        raise BundleError(f"{folder}: a file; a folder is expected: unpack an archive of a bundle first")
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{folder}: holds no {MANIFEST}: not a bundle")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise BundleError(f"{path}: {path.stat().st_size:,} bytes, expected at most {MAX_MANIFEST_BYTES:,}")
    return content


def differences(manifest: Manifest, opened: Callable[[str], BufferedReader]) -> Iterator[tuple[str, str]]:
    """Yield name and problem of every listed file that is missing or changed; ``opened`` opens one, or raises OSError."""
    for name, entry in manifest.files.items():
        try:
            with opened(name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.bytes:
                    yield name, f"{size} bytes, the manifest says {entry.bytes}"
                elif hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    yield name, "changed: its SHA-256 is not the manifest's"
        except OSError as error:
            yield name, "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def parse(path: Path, content: bytes) -> Manifest:
    """Return the manifest that ``content``, read from ``path``, is.

    Raises:
        BundleError: as :func:`read`.
    """
    try:
        values = from_json(content)  # refuses nesting deeper than 200 levels
    except ValueError as error:
        raise BundleError(f"{path}: not valid JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: format_version {short(version)}, expected {FORMAT_VERSION}: made by another version of edgefl"
        )
    try:
        manifest = Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise BundleError(_explain(path, error)) from None
    # The hash is that of the file with zeros in its own place: any changed byte shows, and no canonical form of JSON is needed.
    if sha256(content.replace(manifest.manifest_sha256.encode(), UNSEALED.encode(), 1)) != manifest.manifest_sha256:
        raise BundleError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    return manifest


def _explain(path: Path, error: ValidationError) -> str:
    problems = error.errors()
    lines = [f"{path}: {explain(problem)}" for problem in problems[:_MAX_LINES]]
    if len(problems) > _MAX_LINES:
        lines.append(f"{path}: and {len(problems) - _MAX_LINES} more")
    return "\n".join(lines)
