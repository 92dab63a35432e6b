"""Ed25519 keys: those of publishers, which sign bundles, and this device's own, which signs its updates.

Nothing else of the client needs the package ``cryptography``. A public key is shown as the 44 characters of its base64.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from edgefl_bundle import InputError, Tensors, read_regular

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    MISSING = False
except ImportError:
    MISSING = True


MOST_KEY_BYTES = 1 << 16
"""More than the PEM file of any key, or a signature."""


def config_folder() -> Path:
    """Return the folder of this user for keys: ``edgefl`` in ``$XDG_CONFIG_HOME`` or ``~/.config``."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "edgefl"


def require_cryptography(for_what: str, otherwise: str) -> None:
    """Raise an InputError that says how to get the package ``cryptography`` unless it is there."""
    if MISSING:
        raise InputError(f"{for_what} needs the package cryptography: pip install cryptography; {otherwise}")


def public_key(path: Path) -> bytes:
    """Return the 32 bytes of the Ed25519 public key in a file, PEM or raw; InputError if there is none."""
    content = read_regular(path, MOST_KEY_BYTES, "a public key")
    try:
        loaded = Ed25519PublicKey.from_public_bytes(content) if len(content) == 32 else serialization.load_pem_public_key(content)
        if not isinstance(loaded, Ed25519PublicKey):
            raise ValueError("another kind of key")
    except Exception as error:  # noqa: BLE001 - the library raises several types
        raise InputError(f"{path}: not an Ed25519 public key, PEM or 32 raw bytes ({error})") from None
    return bytes(loaded.public_bytes_raw())


def is_signed(content: bytes, signature: bytes, key: bytes) -> bool:
    """Return whether ``signature`` is one of ``content`` by the owner of the public key with these 32 bytes."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class DeviceKey:
    """This device's key: the text of its public half; the private half is in a file of its own and leaves it never."""

    public: str
    _private: Any = field(repr=False, compare=False)

    @classmethod
    def of_file(cls, path: Path) -> DeviceKey:
        """Return the key in a PEM file; InputError if there is none, or others may read it."""
        content = read_regular(path, MOST_KEY_BYTES, "this device's key, which enroll makes")
        try:
            loaded = serialization.load_pem_private_key(content, None)
            if not isinstance(loaded, Ed25519PrivateKey):
                raise ValueError("another kind of key")
        except Exception as error:  # noqa: BLE001 - the library raises several types
            raise InputError(f"{path}: not an Ed25519 private key without a passphrase, PEM ({error})") from None
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise InputError(f"{path}: others may read or change this private key: chmod 600 {path}")
        return cls(_text(loaded.public_key().public_bytes_raw()), loaded)

    @classmethod
    def made(cls, path: Path) -> DeviceKey:
        """Return the key in a PEM file, which is made if there is none; only its owner may read it."""
        if not path.exists():
            form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            _write_new(path, Ed25519PrivateKey.generate().private_bytes(*form))
        return cls.of_file(path)

    def signature(self, content: bytes) -> str:
        """Return the base64 of this key's signature of ``content``."""
        return _text(self._private.sign(content))


def signed(about: Mapping[str, str], tensors: Tensors, key: DeviceKey) -> dict[str, str]:
    """Return the metadata ``about`` of an update with the device's key and its signature of all metadata and tensors."""
    found = {**about, "key": key.public}
    lines = [
        "edgefl update signature 1",
        *(f"{name}={found[name]}" for name in sorted(found)),
        f"content={content_sha256(tensors)}",
    ]
    return {**found, "signature": key.signature("".join(f"{line}\n" for line in lines).encode())}


def content_sha256(tensors: Tensors) -> str:
    """Return the hexadecimal SHA-256 of tensors: of each its name, a zero byte, its shape as ``2,3``, a zero byte, its values."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        shape = ",".join(map(str, tensors[name].shape))
        digest.update(f"{name}\0{shape}\0".encode())
        digest.update(np.ascontiguousarray(tensors[name], tensors[name].dtype.newbyteorder("<")).data)
    return digest.hexdigest()


def enrolment(name: str, key: DeviceKey) -> bytes:
    """Return the content of a request to enrol this device under ``name``: JSON, signed with its key."""
    signature = key.signature(f"edgefl enrolment 1\nname={name}\nkey={key.public}\n".encode())
    request = {"format": "edgefl-enrolment", "version": "1", "name": name, "key": key.public, "signature": signature}
    return (json.dumps(request, indent=2) + "\n").encode()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _write_new(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read, whole or not at all; leave one that another process has made meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)  # unlike a rename, it never replaces a file
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None
