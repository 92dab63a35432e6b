"""Verification: files as the manifest lists them, the signature, and graphs that compute the same as when they were exported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from edgefl.bundle.manifest import MANIFEST, SIGNATURE, Manifest, content_of, differences, parse
from edgefl.bundle.sandbox import Limits, try_tiers
from edgefl.errors import BundleError, InputError, first_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

SIGNATURE_BYTES = 64
_MAX_KEY_BYTES = 1 << 16


def signer(path: Path) -> Callable[[bytes], bytes]:
    """Return what signs with the private key in the PEM file ``path``: bytes → 64 bytes.

    Raises:
        InputError: the package ``cryptography`` is missing, or the file holds no Ed25519 private key without a passphrase.
    """
    ed25519, serialization = _library()
    content = _read(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except TypeError:
        raise InputError(f"{path}: has a passphrase, expected an Ed25519 private key without one") from None
    except Exception as error:  # noqa: BLE001 - text that is not PEM, and keys that the library does not support, raise several types
        raise InputError(f"{path}: no private key in PEM form, expected one of Ed25519: {first_line(error)}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise InputError(f"{path}: a key of another kind ({_kind(key)}), expected an Ed25519 private key")
    return key.sign


def public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in the PEM file ``path``.

    Raises:
        InputError: the package ``cryptography`` is missing, or the file holds no Ed25519 public key.
    """
    ed25519, serialization = _library()
    content = _read(path)
    if b"PRIVATE KEY" in content:
        raise InputError(f"{path}: a private key, expected the public one that belongs to it; keep the private one to yourself")
    try:
        key = serialization.load_pem_public_key(content)
    except Exception as error:  # noqa: BLE001 - as above
        raise InputError(f"{path}: no public key in PEM form, expected one of Ed25519: {first_line(error)}") from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise InputError(f"{path}: a key of another kind ({_kind(key)}), expected an Ed25519 public key")
    return key


def signed_by(key: Ed25519PublicKey, content: bytes, signature: bytes) -> bool:
    """Return whether the owner of ``key`` signed ``content``."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, content)
    except InvalidSignature:
        return False
    return True


def _library() -> tuple[ModuleType, ModuleType]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise InputError("signatures need the package cryptography: pip install 'edgefl-sim[sign]'") from None
    return ed25519, serialization


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_KEY_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}), expected a key in PEM form") from None
    if len(content) > _MAX_KEY_BYTES:
        raise InputError(f"{path}: more than {_MAX_KEY_BYTES:,} bytes, expected a key in PEM form")
    return content


def _kind(key: object) -> str:
    return type(key).__name__.strip("_").removesuffix("PrivateKey").removesuffix("PublicKey")


MAX_BUNDLE_BYTES = 1 << 36
_MAX_PROBLEMS = 50


@dataclass(frozen=True)
class VerifyReport:
    """A bundle that passed: its files, and per tier how far its outputs (absolute) and losses (relative) are from the references.

    ``signed`` is None where there is no signature, False where there is one and no key was given to check it with.
    """

    files: int
    max_abs_errors: Mapping[str, float]
    max_loss_errors: Mapping[str, float]
    signed: bool | None = None


Problem = tuple[str, str]
"""A file or tier, and its problem."""


def verify(folder: Path, key: Path | None = None, limits: Limits | None = None) -> VerifyReport:
    """Check every file of a bundle, and run every graph against its stored reference, in a process of limited memory and time.

    With ``key``, a PEM file of an Ed25519 public key, the bundle must be signed by its owner; nothing else is looked at before.

    Raises:
        BundleError: anything is missing, extra, changed or wrong; the message lists it, a line each.
        InputError: there is no such key.
    """
    content = content_of(folder)
    signed = _signed(folder, content, key)
    manifest = parse(folder / MANIFEST, content)
    total_bytes = sum(entry.bytes for entry in manifest.files.values())
    if total_bytes > MAX_BUNDLE_BYTES:
        raise BundleError(f"{folder}: {total_bytes:,} bytes by its manifest, expected at most {MAX_BUNDLE_BYTES:,}")
    problems = [*_extra(folder, manifest), *_missing_or_changed(folder, manifest)]
    if not problems:  # a changed file is not run
        tried = try_tiers(folder, [tier.label for tier in manifest.tiers], limits or Limits(), total_bytes)
        problems = tried.problems
    if problems:
        raise BundleError(_listed(folder, problems))
    outputs = {label: output for label, (output, _) in tried.errors.items()}
    losses = {label: loss for label, (_, loss) in tried.errors.items() if loss is not None}
    return VerifyReport(len(manifest.files) + 1 + (signed is not None), outputs, losses, signed)


def _signed(folder: Path, content: bytes, key: Path | None) -> bool | None:
    """Return whether the owner of ``key`` signed the manifest; False: no key was given; None: there is no signature."""
    owner = None if key is None else public_key(key)
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
    """Return text without line breaks and terminal codes, which names of files and operators may hold."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _extra(folder: Path, manifest: Manifest) -> Iterator[Problem]:
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
    """Yield the path of everything in ``top``, hidden or not; a folder that cannot be listed is an error, not empty."""
    left = [top]
    while left:
        folder = left.pop()
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            raise BundleError(f"{_plain(str(folder))}: cannot be listed ({error.strerror})") from None
        for entry in entries:
            yield Path(entry.path).relative_to(top).as_posix()
            if entry.is_dir(follow_symlinks=False):
                left.append(Path(entry.path))


def _missing_or_changed(folder: Path, manifest: Manifest) -> Iterator[Problem]:
    def opened(name: str) -> BufferedReader:
        path = folder / name
        if path.is_symlink():
            raise OSError(None, "a symbolic link")
        if not path.is_file():
            raise FileNotFoundError
        return path.open("rb")

    return (problem for problem in differences(manifest, opened) if not (folder / problem[0]).is_symlink())
