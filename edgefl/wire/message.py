"""Messages between processes: a JSON header, then blobs of bytes that are addressed by the SHA-256 of their content.

A message begins with four letters, its version and the length of its header. The header lists the blobs that follow, each once. Nothing is
pickled: data without a JSON form are blobs, such as payloads (safetensors) and graphs (ONNX).
"""

import hashlib
import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Self

import numpy as np
from pydantic_core import from_json, to_json

from edgefl.errors import WireError

VERSION = 1
MessageFields = Mapping[str, Any]
"""The fields of a header, not checked yet when they were read: JSON values."""
_LETTERS = b"EFED"
_START = struct.Struct("<4sHI")  # letters, version, bytes of the header


class Blob(bytes):
    """Bytes that several messages may refer to, and that are hashed once.

    >>> Blob(b"weights").digest[:8]
    '9a129038'
    """

    @classmethod
    def of(cls, content: bytes) -> Self:
        """Return ``content`` as a blob, copied unless it is one."""
        return content if isinstance(content, cls) else cls(content)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the content, in hexadecimal digits."""
        return hashlib.sha256(self).hexdigest()


def checked(content: bytes, digest: str) -> Blob:
    """Return ``content`` as a blob; raise :class:`WireError` if its hash is not ``digest``."""
    blob = Blob.of(content)
    if blob.digest != digest:
        raise WireError(f"a blob of {len(blob):,} bytes is damaged: its SHA-256 is {blob.digest[:16]}…, expected {digest[:16]}…")
    return blob


def write_header(kind: str, fields: MessageFields) -> bytes:
    """Return the header of a message of ``kind``; ``fields`` are JSON values, tuples, dataclasses, NumPy arrays or NaN."""
    header = to_json({"kind": kind, **fields}, inf_nan_mode="constants", fallback=_plain)
    return _START.pack(_LETTERS, VERSION, len(header)) + header


def _plain(value: object) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise WireError(f"a message holds JSON, got {type(value).__name__}: {value!r}")


def read_header(content: bytes, *kinds: str) -> tuple[MessageFields, int]:
    """Return the fields of a message and the offset of its blobs; raise :class:`WireError` unless it is an intact one of ``kinds``."""
    if len(content) < _START.size or content[:4] != _LETTERS:
        raise WireError(
            f"no message of edgefl: {len(content):,} bytes that begin with {bytes(content[:4])!r}, expected {_LETTERS!r}"
        )
    _, version, length = _START.unpack_from(content)
    if version != VERSION:
        raise WireError(f"a message of version {version}, expected {VERSION}: both ends must run the same release of edgefl")
    end = _START.size + length
    if len(content) < end:
        raise WireError(f"a message is cut short: {len(content):,} bytes, expected at least {end:,}")
    try:
        fields = from_json(content[_START.size : end])
    except ValueError as error:
        raise WireError(f"the header of a message is no JSON: {error}") from None
    if not isinstance(fields, dict) or fields.get("kind") not in kinds:
        kind = fields.get("kind") if isinstance(fields, dict) else fields
        raise WireError(f"a message of kind {kind!r}, expected {' or '.join(map(repr, kinds))}")
    return fields, end


def write_message(kind: str, fields: MessageFields, blobs: Iterable[Blob] = ()) -> bytes:
    """Return a message with ``fields`` and each of ``blobs`` once."""
    by_digest = {blob.digest: blob for blob in blobs}
    header = write_header(kind, {**fields, "blobs": [(digest, len(blob)) for digest, blob in by_digest.items()]})
    return b"".join((header, *by_digest.values()))


def read_message(content: bytes, *kinds: str) -> tuple[MessageFields, dict[str, Blob]]:
    """Return the fields of a message and its blobs by hash; raise :class:`WireError` as :func:`read_header` does, or for a damaged blob."""
    fields, start = read_header(content, *kinds)
    blobs = {}
    try:
        for digest, length in fields["blobs"]:
            if len(content) < start + length:
                raise WireError(f"a message is cut short: {len(content):,} bytes, expected at least {start + length:,}")
            blobs[digest] = checked(content[start : start + length], digest)
            start += length
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"the header of a message does not list its blobs: {error!r}") from None
    if len(content) != start:
        raise WireError(f"a message has {len(content):,} bytes, expected {start:,}")
    return fields, blobs
