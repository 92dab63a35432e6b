"""The content of an update that the server relies on: the range of its values, and the signature of its device.

Values beyond the range are refused, because what a method multiplies them with would leave the range of float32. A device's key signs
all that the server relies on, so that nothing in the file can change unnoticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from edgefl.errors import WireError
from edgefl.util.keys import SIGNATURE_BYTES, PublicKey, decoded

if TYPE_CHECKING:  # update files are read without torch
    from torch import Tensor

KEY, SIGNATURE = "key", "signature"
"""Keys of the metadata: the device's public key, and its signature, both in base64."""
_FIRST_LINE = "edgefl update signature 1"
LARGEST = 1e15
"""Largest magnitude of a value in an update. The product of two such factors, of any rank, is finite in float32."""


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


def check_values(tensors: Mapping[str, Tensor], who: str) -> None:
    """Raise :class:`WireError` if a tensor that ``who`` sent has a value that does not count."""
    for name, tensor in tensors.items():
        if (odd := too_large(tensor.numpy())) is not None:
            raise WireError(f"{who}: {name}: {holds(odd)}")


def holds(odd: float) -> str:
    """Return the message about a value that does not count.

    >>> holds(3e38)
    'holds 3e+38, expected finite values from -1e+15 to 1e+15'
    """
    return f"holds {odd:g}, expected finite values from {-LARGEST:g} to {LARGEST:g}"


def too_large(values: np.ndarray) -> float | None:
    """Return a value that is NaN, infinite or beyond ±:data:`LARGEST`; None if all values count.

    >>> too_large(np.array([1.0, -1e15])), too_large(np.array([1.0, 3e38])), too_large(np.zeros(0))
    (None, 3e+38, None)
    """
    if not values.size or bool(-LARGEST <= values.min() <= values.max() <= LARGEST):  # False for NaN
        return None
    return float(values[~(np.abs(values) <= LARGEST)].flat[0])
