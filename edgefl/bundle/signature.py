"""Who made a bundle, and how long it is valid.

``manifest.sig`` signs the bytes of the manifest, and ``manifest.pub`` is the public key that belongs to it. By ``freshness.json``, with
the bundle's line of rounds and its end, devices refuse an older bundle.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from edgefl.bundle.manifest import MANIFEST, SIGNATURE, SIGNER
from edgefl.errors import BundleError
from edgefl.util.files import json_bytes, read_at_most, sha256
from edgefl.util.keys import SIGNATURE_BYTES, PublicKey, SigningKey

_MAX_PEM_BYTES = 1 << 12


@dataclass(frozen=True)
class Signature:
    """The signature of a bundle: how many ``files`` it consists of (0: not signed), and the key of its ``signer`` (None: not known)."""

    files: int
    signer: PublicKey | None


def signature_files(manifest: bytes, key: SigningKey | None) -> dict[str, bytes]:
    """Return the files beside a manifest with these bytes that say who signed it, by name; none without a key."""
    return {} if key is None else {SIGNATURE: key.sign(manifest), SIGNER: key.public.pem}


def check_signature(folder: Path, manifest: bytes, owner: Path | None) -> Signature:
    """Return the signature of the bundle in ``folder``; ``manifest`` are the bytes of its manifest.

    It is checked against the key in the PEM file ``owner``, and against the bundle's own ``manifest.pub``. Which of these keys to trust is
    up to the caller.

    Raises:
        BundleError: the signature is missing although there is an ``owner`` or a ``manifest.pub``, or it is wrong.
        InputError: ``owner`` holds no Ed25519 public key.
    """
    expected = None if owner is None else PublicKey.of_file(owner)
    path, claimed = folder / SIGNATURE, folder / SIGNER
    if not _there(path):
        if expected is not None:
            raise BundleError(f"{folder}: not signed: has no {SIGNATURE}, expected one by the owner of {owner}")
        if _there(claimed):
            raise BundleError(f"{folder}: has {SIGNER}, but no {SIGNATURE}; get the bundle again")
        return Signature(0, None)
    if path.is_symlink() or not path.is_file() or path.stat().st_size != SIGNATURE_BYTES:
        raise BundleError(f"{path}: expected a plain file of {SIGNATURE_BYTES} bytes")
    content = path.read_bytes()
    if expected is not None and not expected.verifies(manifest, content):
        raise BundleError(
            f"{path}: not the signature of this {MANIFEST} by the owner of {owner}; get the bundle again, or the right key"
        )
    if not _there(claimed):
        return Signature(1, expected)
    if claimed.is_symlink():
        raise BundleError(f"{claimed}: a link; expected a plain file with a public key")
    pem, signer = read_at_most(claimed, _MAX_PEM_BYTES, BundleError), PublicKey.of_file(claimed)
    if pem != signer.pem:
        raise BundleError(f"{claimed}: holds more than one Ed25519 public key in PEM form; get the bundle again")
    if not signer.verifies(manifest, content):
        raise BundleError(f"{path}: not the signature of this {MANIFEST} by the owner of {SIGNER}; get the bundle again")
    return Signature(2, signer)


def _there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


FRESHNESS = "freshness.json"
_CENTURY_S = 100 * 365 * 86_400.0
"""No bundle lasts longer: dates have an end."""


def freshness_file(line: object, lasts_s: float | None) -> dict[str, bytes]:
    """Return the file of a bundle of the rounds that ``line`` identifies, which expires ``lasts_s`` seconds from now; None: never.

    >>> file = json.loads(freshness_file({"seed": 1, "lr": float("inf")}, 60.0)["freshness.json"])
    >>> len(file["line"]), len(file["expires"])
    (64, 20)
    """
    values = {"line": sha256(json.dumps(line, sort_keys=True).encode())}
    if lasts_s is not None:
        end = datetime.now(UTC) + timedelta(seconds=min(lasts_s, _CENTURY_S))
        values["expires"] = end.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {FRESHNESS: json_bytes(values)}
