"""Ed25519 keys in PEM files without a passphrase, and the signatures of their owners (RFC 8032, by the package ``cryptography``).

A public key is 32 bytes. It is shown as 44 characters of base64, short enough to be compared by eye: it is its own fingerprint.
"""

from __future__ import annotations

import base64
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from edgefl.errors import InputError, StorageError, first_line
from edgefl.util.files import exists, read_at_most, storage_errors, sync_folder, user_config

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNATURE_BYTES = 64
OWN_KEY = "signing.pem"
_MAX_KEY_BYTES = 1 << 16

Chosen = Path | str | None | Literal[False]
"""Which key signs: that of a file, None: the user's own, False: none."""


@dataclass(frozen=True)
class PublicKey:
    """A public key: ``raw`` are its 32 bytes, ``str()`` is its text.

    Example:
        >>> key = PublicKey.of_text("11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=")
        >>> key.verifies(b"other text", bytes(64))
        False
    """

    raw: bytes

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the key of a text; ValueError unless it is the base64 of 32 bytes."""
        if (raw := decoded(text, 32)) is None:
            raise ValueError("expected a public key: the base64 of 32 bytes, 44 characters")
        return cls(raw)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the key in a PEM file; InputError if there is no Ed25519 public key."""
        return cls(_loaded(path, read_at_most(path, _MAX_KEY_BYTES, InputError), "Public").public_bytes_raw())

    def __str__(self) -> str:
        return base64.b64encode(self.raw).decode()

    @property
    def pem(self) -> bytes:
        """The key as the content of a PEM file."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        return ed25519.Ed25519PublicKey.from_public_bytes(self.raw).public_bytes(*form)

    def verifies(self, content: bytes, signature: bytes) -> bool:
        """Return whether ``signature`` is one of ``content`` by the owner of this key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the public one that belongs to it."""

    public: PublicKey
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Return the key in a PEM file.

        Raises:
            InputError: the file has no Ed25519 private key without a passphrase, or others may read it.
        """
        private = _loaded(path, read_at_most(path, _MAX_KEY_BYTES, InputError), "Private")
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise InputError(f"{path}: others may read or change this private key: chmod 600 {path}")
        return cls(PublicKey(private.public_key().public_bytes_raw()), private)

    @classmethod
    def new(cls, path: Path) -> Self:
        """Draw a key and write it to a new PEM file that only its owner may read; InputError if the file exists."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        private = ed25519.Ed25519PrivateKey.generate()
        try:
            _write_new(path, private.private_bytes(*form))
        except FileExistsError:
            raise InputError(f"{path}: exists; expected a new file: a key that was replaced cannot be restored") from None
        return cls(PublicKey(private.public_key().public_bytes_raw()), private)

    @classmethod
    def own(cls) -> Self:
        """Return the user's own key for signing, which is made at its first use; StorageError if that is not possible."""
        path = own_key_file()
        if not exists(path):
            try:
                return cls.new(path)
            except StorageError as error:
                raise StorageError(
                    f"no key to sign with: {error}; give one with --sign KEY, or leave the signature out with --unsigned"
                ) from None
            except InputError:  # another process has made it meanwhile
                pass
        return cls.of_file(path)

    @classmethod
    def chosen(cls, key: Chosen) -> Self | None:
        """Return the key of a file, the user's own for None, or None for False."""
        return None if key is False else cls.own() if key is None else cls.of_file(Path(key))

    def sign(self, content: bytes) -> bytes:
        """Return the 64 bytes of this key's signature of ``content``."""
        return self._private.sign(content)


def decoded(text: str, size: int) -> bytes | None:
    """Return the bytes whose base64 is ``text``; None unless they are ``size`` bytes, and ``text`` is the only way to write them.

    >>> decoded("YWI=", 2), decoded("YWJ=", 2), decoded("é", 2)
    (b'ab', None, None)
    """
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return content if len(content) == size and base64.b64encode(content).decode() == text else None


def own_key_file() -> Path:
    """Return the path of the user's own key for signing."""
    return user_config() / OWN_KEY


def _loaded(path: Path, content: bytes, half: Literal["Private", "Public"]) -> Any:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    name = half.lower()
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


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all; FileExistsError if it exists."""
    with storage_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it never replaces a file
        sync_folder(path.parent)
    finally:
        Path(temporary).unlink(missing_ok=True)
