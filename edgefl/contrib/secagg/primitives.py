"""The cryptographic primitives, all from the library ``cryptography``: X25519, HKDF-SHA256, AES-256-GCM and AES-256 in counter mode."""

import struct

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from edgefl.contrib.secagg import ProtocolError
from edgefl.contrib.secagg.messages import KEY_BYTES
from edgefl.contrib.secagg.vector import Values

_NO_NONCE = bytes(12)


def public_key(private: bytes) -> bytes:
    """Return the public key, 32 bytes, of an X25519 private key of 32 random bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """Return the 32 bytes that two clients derive for a ``purpose``, each from its own private and the other's public key.

    Raises:
        ProtocolError: the public key is a point of small order, which would make the result known to anyone.
    """
    try:
        exchanged = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError("a public key that no honest client has") from None
    return HKDF(SHA256(), KEY_BYTES, None, purpose).derive(exchanged)


def sealed(key: bytes, plain: bytes) -> bytes:
    """Return ``plain`` encrypted and authenticated, 16 bytes longer. A key must seal one text only: there is no nonce."""
    return AESGCM(key).encrypt(_NO_NONCE, plain, None)


def opened(key: bytes, cipher: bytes) -> bytes:
    """Return the text that was :func:`sealed`; ProtocolError if it was changed or is for another client."""
    try:
        return AESGCM(key).decrypt(_NO_NONCE, cipher, None)
    except InvalidTag:
        raise ProtocolError("an encrypted share that was changed or is not for this client") from None


def expanded(seed: bytes, count: int) -> Values:
    """Return ``count`` values, uniform in 0 … 2³² − 1, that a seed of 32 bytes stands for: the stream of AES-256 in counter mode."""
    stream = Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * count)), dtype="<u4")


def purpose_of(context: bytes, what: str, *numbers: int) -> bytes:
    """Return the HKDF label of a key: no two purposes, groups or rounds share one."""
    return b"edgefl secagg 1 " + what.encode() + struct.pack(f"<{len(numbers)}I", *numbers) + context
