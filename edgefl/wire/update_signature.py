"""The signature of an update: a device's key over all that the server relies on, so that nothing in the file can change unnoticed."""

import hashlib
from collections.abc import Mapping

import numpy as np

from edgefl.errors import WireError
from edgefl.util.keys import SIGNATURE_BYTES, PublicKey, decoded

KEY, SIGNATURE = "key", "signature"
"""Keys of the metadata: the device's public key, and its signature, both in base64."""
_FIRST_LINE = "edgefl update signature 1"


def content_sha256(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the hexadecimal SHA-256 of tensors, ordered by the UTF-8 bytes of their names.

    Each adds its name, a zero byte, its shape as ``2,3``, a zero byte, and its float32 values, little-endian.

    >>> content_sha256({"b": np.zeros(2, np.float32), "a": np.ones((1, 1), np.float32)})[:16]
    '1c43fd656d156cc3'
    """
    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        shape = ",".join(map(str, tensors[name].shape))
        digest.update(f"{name}\0{shape}\0".encode())
        digest.update(np.ascontiguousarray(tensors[name], "<f4").data)
    return digest.hexdigest()


def signed_content(about: Mapping[str, str], content: str) -> bytes:
    """Return the bytes that a device signs: a line for each of the metadata ``about``, by key, and one with the hash of the tensors.

    >>> print(signed_content({"samples": "5", "round": "3", "signature": "…"}, "b85a").decode(), end="")
    edgefl update signature 1
    round=3
    samples=5
    content=b85a
    """
    lines = (f"{key}={about[key]}" for key in sorted(about) if key != SIGNATURE)
    return "".join(f"{line}\n" for line in (_FIRST_LINE, *lines, f"content={content}")).encode()


def signer(about: Mapping[str, str], content: str) -> PublicKey | None:
    """Return the key that signed an update with the metadata ``about`` and the hash ``content``; None if it is not signed.

    Raises:
        WireError: key or signature is missing or malformed, or the signature is not one of this update.
    """
    signed = {name: about[name] for name in (KEY, SIGNATURE) if name in about}
    if not signed:
        return None
    if len(signed) == 1:
        (only,) = signed
        raise WireError(f"{only}: expected {KEY} and {SIGNATURE}, or neither")
    try:
        key = PublicKey.of_text(signed[KEY])
    except ValueError as error:
        raise WireError(f"{KEY}: {error}") from None
    if (signature := decoded(signed[SIGNATURE], SIGNATURE_BYTES)) is None:
        raise WireError(f"{SIGNATURE}: expected the base64 of {SIGNATURE_BYTES} bytes")
    if not key.verifies(signed_content(about, content), signature):
        raise WireError(f"{SIGNATURE}: not one of this update by {key}: the file was changed after it was signed")
    return key
