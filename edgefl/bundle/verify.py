"""Verification of a bundle: its files are those of the manifest, its signature is valid, its graphs compute their stored references."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgefl.bundle.manifest import MANIFEST, SIGNATURE, Manifest
from edgefl.bundle.manifest_file import content_of, differences, parse
from edgefl.bundle.sandbox import Limits, check_tiers
from edgefl.errors import BundleError, InputError, first_line
from edgefl.util.files import read_at_most

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNATURE_BYTES = 64
_MAX_KEY_BYTES = 1 << 16


def signer(path: Path) -> Callable[[bytes], bytes]:
    """Return the function content → 64 bytes that signs with the private key in a PEM file.

    InputError if the package ``cryptography`` is missing, or the file has no Ed25519 private key without a passphrase.
    """
    sign: Callable[[bytes], bytes] = _key(path, "Private").sign
    return sign


def public_key(path: Path) -> Ed25519PublicKey:
    """Return the Ed25519 public key in a PEM file; InputError if there is none, or the package ``cryptography`` is missing."""
    key: Ed25519PublicKey = _key(path, "Public")
    return key


def _key(path: Path, half: Literal["Private", "Public"]) -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise InputError("signatures need the package cryptography: pip install 'edgefl-sim[sign]'") from None
    name, content = half.lower(), read_at_most(path, _MAX_KEY_BYTES, InputError)
    if half == "Public" and b"PRIVATE KEY" in content:
        raise InputError(f"{path}: a private key, expected the public one that belongs to it; keep the private one to yourself")
    try:
        key: object = (
            serialization.load_pem_public_key(content)
            if half == "Public"
            else serialization.load_pem_private_key(content, password=None)
        )
    except TypeError:
        raise InputError(f"{path}: has a passphrase, expected an Ed25519 private key without one") from None
    except Exception as error:  # noqa: BLE001 - text that is not PEM, and keys that the library does not support, raise several types
        raise InputError(f"{path}: no {name} key in PEM form, expected one of Ed25519: {first_line(error)}") from None
    if not isinstance(key, getattr(ed25519, f"Ed25519{half}Key")):
        kind = type(key).__name__.strip("_").removesuffix(f"{half}Key")
        raise InputError(f"{path}: a key of another kind ({kind}), expected an Ed25519 {name} key")
    return key


def signed_by(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` (64 bytes) is one of ``content`` by the owner of ``key``."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


MAX_BUNDLE_BYTES = 1 << 36
_MAX_PROBLEMS = 50


@dataclass(frozen=True)
class VerifyReport:
    """The report of a bundle that passed.

    Attributes:
        files: how many files were checked, the manifest and the signature included.
        max_abs_errors, max_loss_errors: label of a tier → largest difference of its outputs, and relative one of its losses.
        signed: True: by the owner of the given key; False: there is a signature, but no key was given; None: there is no signature.
    """

    files: int
    max_abs_errors: Mapping[str, float]
    max_loss_errors: Mapping[str, float]
    signed: bool | None = None


Problem = tuple[str, str]
"""(file or tier, its problem)"""


def verify(bundle: Path | str, key: Path | str | None = None, limits: Limits | None = None) -> VerifyReport:
    """Check every file in the folder ``bundle``, and run every graph on its stored reference, in a process with limited memory and time.

    ``key`` is a PEM file with an Ed25519 public key. With it, the bundle must be signed by its owner, which is checked first.

    Raises:
        BundleError: a file is missing, extra, changed or wrong. The message has a line for each problem, 50 at most.
        InputError: ``key`` cannot be used, or the process for the graphs does not start.
    """
    folder = Path(bundle)
    content = content_of(folder)
    signed = _signed(folder, content, key)
    manifest = parse(folder / MANIFEST, content)
    total_bytes = sum(entry.bytes for entry in manifest.files.values())
    if total_bytes > MAX_BUNDLE_BYTES:
        raise BundleError(f"{folder}: {total_bytes:,} bytes by its manifest, expected at most {MAX_BUNDLE_BYTES:,}")
    problems = [*_extra(folder, manifest), *_missing_or_changed(folder, manifest)]
    if not problems:  # a changed graph must not run
        checks = check_tiers(folder, [tier.label for tier in manifest.tiers], limits or Limits(), total_bytes)
        problems = checks.problems
    if problems:
        raise BundleError(_listed(folder, problems))
    outputs = {label: output for label, (output, _) in checks.errors.items()}
    losses = {label: loss for label, (_, loss) in checks.errors.items() if loss is not None}
    return VerifyReport(len(manifest.files) + 1 + (signed is not None), outputs, losses, signed)


def _signed(folder: Path, content: bytes, key: Path | str | None) -> bool | None:
    """Return :attr:`VerifyReport.signed` for a manifest with this ``content``; BundleError if its signature is missing or wrong."""
    owner = None if key is None else public_key(Path(key))
    path = folder / SIGNATURE
    if not path.exists() and not path.is_symlink():
        if owner is not None:
            raise BundleError(f"{folder}: not signed: has no {SIGNATURE}, expected one by the owner of {key}")
        return None
    if path.is_symlink() or not path.is_file() or path.stat().st_size != SIGNATURE_BYTES:
        raise BundleError(f"{path}: expected a plain file of {SIGNATURE_BYTES} bytes")
    if owner is None:
        return False
    if not signed_by(owner, content, path.read_bytes()):
        raise BundleError(
            f"{path}: not the signature of this {MANIFEST} by the owner of {key}; get the bundle again, or the right key"
        )
    return True


def _listed(folder: Path, problems: Sequence[Problem]) -> str:
    lines = [f"{folder}: {_plain(name)}: {_plain(what)}" for name, what in problems[:_MAX_PROBLEMS]]
    return "\n".join([*lines, f"{folder}: and more"] if len(problems) > _MAX_PROBLEMS else lines)


def _plain(text: str) -> str:
    """Return ``text`` with line breaks and terminal codes escaped: names of files and operators may contain them."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _extra(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    """Yield links, and files and folders that the manifest does not list."""
    known = {*manifest.files, MANIFEST, SIGNATURE}
    folders = {parent.as_posix() for path in manifest.files for parent in Path(path).parents}
    found = 0
    for name in _walk(folder):
        path = folder / name
        if path.is_symlink():
            yield name, "a symbolic link; a bundle holds plain files only"
        elif path.is_dir() and name not in folders:
            yield f"{name}/", "not in the manifest"
        elif not path.is_dir() and name not in known:
            yield name, "not in the manifest"
        else:
            continue
        found += 1
        if found > _MAX_PROBLEMS:
            return


def _walk(top: Path) -> Iterator[str]:
    """Yield the path of every file and folder below ``top``, hidden ones too; BundleError if a folder cannot be listed."""

    def fail(error: OSError) -> None:
        raise BundleError(f"{_plain(str(error.filename))}: cannot be listed ({error.strerror})") from None

    for folder, folders, files in os.walk(top, onerror=fail):
        folders.sort(reverse=True)
        for name in sorted([*folders, *files]):
            yield (Path(folder) / name).relative_to(top).as_posix()


def _missing_or_changed(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    def opened(name: str) -> BufferedReader:
        path = folder / name
        if path.is_symlink():
            raise OSError(None, "a symbolic link")
        if not path.is_file():
            raise FileNotFoundError
        return path.open("rb")

    return (problem for problem in differences(manifest, opened) if not (folder / problem[0]).is_symlink())
