"""The file ``manifest.json``: written with its own hash, read and checked."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from edgefl.bundle.manifest import MANIFEST, UNSEALED, Manifest
from edgefl.errors import BundleError
from edgefl.util.files import no_key_twice, read_at_most, sha256
from edgefl.util.validation import explain

FORMAT_VERSION = 2
MAX_MANIFEST_BYTES = 16 << 20
_MAX_LINES = 20
_OPTIONAL = ("inputs", "target_shape", "metric", "other_formats")
"""Keys that a manifest has only if they are used."""


def seal(folder: Path, manifest: Manifest, contents: Mapping[str, bytes]) -> Manifest:
    """Return ``manifest`` with its own hash, and those of ``contents`` (path → content); BundleError if a path or tier's file is wrong."""
    files = {path: {"sha256": sha256(content), "bytes": len(content)} for path, content in sorted(contents.items())}
    try:
        unsealed = Manifest.model_validate({**manifest.model_dump(), "files": files, "manifest_sha256": UNSEALED})
        if absent := sorted({path for tier in unsealed.tiers for path in tier.paths} - contents.keys()):
            raise BundleError(f"{folder}: no content for {', '.join(absent)}, which its tiers name")
        return Manifest.model_validate({**unsealed.model_dump(), "manifest_sha256": sha256(text_of(unsealed))})
    except ValidationError as error:
        raise BundleError(_explain(folder, error)) from None


def text_of(manifest: Manifest) -> bytes:
    """Return the content of ``manifest.json``: indented JSON in UTF-8, without unused keys of :data:`_OPTIONAL` and ``clip_gradient``."""
    values = manifest.model_dump(mode="json")
    values = {key: value for key, value in values.items() if value is not None or key not in _OPTIONAL}
    for train in (tier["train"] for tier in values["tiers"] if tier["train"] is not None):
        if train["clip_gradient"] is None:
            del train["clip_gradient"]
    return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode()


def read(folder: Path) -> Manifest:
    """Return the manifest of the bundle in ``folder``, after checking every key and the manifest's own hash. No other file is opened.

    Raises:
        BundleError: the folder is no bundle, or its manifest is not JSON, has another format version or a wrong key, or was changed. The
            message names file, key and expectation.
    """
    return parse(folder / MANIFEST, content_of(folder))


def content_of(folder: Path) -> bytes:
    """Return the unchecked content of a bundle's manifest; BundleError if it is missing, a link, unreadable or larger than 16 MiB."""
    path = folder / MANIFEST
    if not folder.exists():
        raise BundleError(f"{folder}: no such folder; give the folder bundle of a run, or one from edgefl export")
    if not folder.is_dir():
        raise BundleError(f"{folder}: a file; a folder is expected: unpack an archive of a bundle first")
    if path.is_symlink() or not path.is_file():
        inside = folder / "bundle"
        remedy = (
            f"give {inside}" if (inside / MANIFEST).is_file() else "give the folder bundle of a run, or one from edgefl export"
        )
        raise BundleError(f"{folder}: holds no {MANIFEST}: not a bundle; {remedy}")
    return read_at_most(path, MAX_MANIFEST_BYTES, BundleError)


def _digest(name: str, file: BufferedReader) -> str:
    return hashlib.file_digest(file, "sha256").hexdigest()


def differences(
    manifest: Manifest, opened: Callable[[str], BufferedReader], digest: Callable[[str, BufferedReader], str] = _digest
) -> Iterator[tuple[str, str]]:
    """Yield path and problem of every listed file that is missing or changed.

    Args:
        manifest: what the files should be.
        opened: opens a path in the bundle, or raises OSError.
        digest: reads an open file of the right length and returns its SHA-256 in hexadecimal.
    """
    for name, entry in manifest.files.items():
        try:
            with opened(name) as file:
                size = os.fstat(file.fileno()).st_size
                if size != entry.bytes:
                    yield name, f"{size} bytes, the manifest says {entry.bytes}"
                elif digest(name, file) != entry.sha256:
                    yield name, "changed: its SHA-256 is not the manifest's"
        except OSError as error:
            yield name, "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"


def parse(path: Path, content: bytes) -> Manifest:
    """Return the manifest in ``content``, which was read from ``path``, with the checks and errors of :func:`read`."""
    try:
        values = from_json(content)  # refuses nesting deeper than 200 levels
        json.loads(content, object_pairs_hook=no_key_twice)
    except ValueError as error:
        raise BundleError(f"{path}: not valid JSON ({error})") from None
    version = values.get("format_version") if isinstance(values, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise BundleError(
            f"{path}: format_version {repr(version)[:80]}, expected {FORMAT_VERSION}: made by another version of edgefl"
        )
    try:
        manifest = Manifest.model_validate_json(content, strict=True)
    except ValidationError as error:
        raise BundleError(_explain(path, error)) from None
    # Zeros stand in the place of the hash while it is computed: every changed byte shows, and no canonical form of JSON is needed.
    if sha256(content.replace(manifest.manifest_sha256.encode(), UNSEALED.encode(), 1)) != manifest.manifest_sha256:
        raise BundleError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    return manifest


def _explain(path: Path, error: ValidationError) -> str:
    errors = error.errors()
    # A list with a wrong entry may also be called too short: that is the same problem.
    lists = {other["loc"][:depth] for other in errors for depth in range(len(other["loc"]))}
    problems = [problem for problem in errors if problem["type"] != "too_short" or problem["loc"] not in lists]
    lines = [f"{path}: {explain(problem)}" for problem in problems[:_MAX_LINES]]
    if len(problems) > _MAX_LINES:
        lines.append(f"{path}: and {len(problems) - _MAX_LINES} more")
    return "\n".join(lines)
