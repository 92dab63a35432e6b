"""Who made a bundle: an Ed25519 signature over the bytes of its manifest, which holds the hash of every other file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from edgefl.errors import InputError, first_line

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
