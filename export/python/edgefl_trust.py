"""Which bundles this device runs: those that a publisher signed whom it trusts.

A bundle is code: its training graph decides what an update tells. Its publisher signs the manifest, which has the hash of every other file.
The publisher's key is given, or it is the one that this device pinned when it met its first signed bundle. A bundle by anybody else is
refused until its key is trusted too, whatever name or place it comes with.
"""

from __future__ import annotations

import base64
import functools
import json
import sys
from pathlib import Path

from edgefl_bundle import Bundle, InputError, read_bundle, read_regular, write
from edgefl_keys import MOST_KEY_BYTES, config_folder, is_signed, public_key, require_cryptography
from edgefl_rounds import check_fresh

SIGNATURE, SIGNER = "manifest.sig", "manifest.pub"
_MOST_PINS_BYTES = 1 << 20
_OWN_RISK = "--allow-unsigned runs the bundle whoever made it"


def read_trusted(folder: Path, key: Path | None = None, allow_unsigned: bool = False, allow_older: bool = False) -> Bundle:
    """Return the bundle in ``folder`` once its publisher is known to be trusted.

    Args:
        folder: the bundle.
        key: file with the publisher's public key; None: it must be one that this device has pinned. The first one is pinned here.
        allow_unsigned: do not check who signed the bundle, nor its age.
        allow_older: accept a bundle that has expired, or is of an earlier round than one that this device has met.

    Raises:
        InputError: the bundle is not signed, or not by a publisher whom this device trusts; it is too old; or its files are wrong.
    """
    if allow_unsigned:
        return read_bundle(folder)
    require_cryptography("checking who signed the bundle", _OWN_RISK)
    check = functools.partial(_check_pinned, folder) if key is None else functools.partial(_check_owner, folder, key)
    signers: list[str] = []
    bundle = read_bundle(folder, lambda manifest: signers.append(check(manifest)))
    if not allow_older:
        check_fresh(bundle, signers[0])
    return bundle


def trust(folder: Path) -> str:
    """Pin the key of the publisher who signed the bundle in ``folder``, and return it."""
    require_cryptography("checking who signed the bundle", "then it can be trusted")
    found: list[str] = []
    read_bundle(folder, lambda manifest: found.append(_claimed(folder, manifest)))
    _pin([*pinned(), *found])
    return found[0]


def pins() -> Path:
    """Return the path of the file with the pinned keys."""
    return config_folder() / "trusted.json"


def pinned() -> list[str]:
    """Return the public keys that this device trusts; InputError if their file is damaged."""
    path = pins()
    if not path.exists():
        return []
    try:
        keys = json.loads(read_regular(path, _MOST_PINS_BYTES, "public keys"))["keys"]
        if not keys or any(len(base64.b64decode(key, validate=True)) != 32 for key in keys):
            raise ValueError("not a list of public keys")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: expected the public keys that this device trusts ({error}); repair it, or remove it") from None
    return list(keys)


def _pin(keys: list[str]) -> None:
    path = pins()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, (json.dumps({"keys": list(dict.fromkeys(keys))}, indent=2) + "\n").encode())
    except (OSError, InputError):
        raise InputError(f"{path}: cannot be written, to pin the publisher's key; give it as --key") from None


def _check_owner(folder: Path, key: Path, manifest: bytes) -> str:
    """Return the text of the key in a file; InputError unless its owner signed the manifest."""
    public = public_key(key)
    if not is_signed(manifest, _signature(folder), public):
        raise InputError(f"{folder / SIGNATURE}: not a signature of this manifest by {key}: do not use the bundle")
    return base64.b64encode(public).decode()


def _check_pinned(folder: Path, manifest: bytes) -> str:
    """Return the text of the key that signed the manifest; InputError unless this device trusts it."""
    claimed, known = _claimed(folder, manifest), pinned()
    if not known:
        _pin([claimed])
        remark = "the first publisher that this device meets; 'trust' adds others"
        sys.stderr.write(f"{folder}: signed by {claimed}; pinned in {pins()}: {remark}\n")
    elif claimed not in known:
        raise InputError(
            f"{folder}: signed by {claimed}, this device trusts {', '.join(known)} ({pins()}). If its publisher is to be trusted, ask them "
            f"for their key, compare, then: edgefl_client.py trust {folder}"
        )
    return claimed


def _claimed(folder: Path, manifest: bytes) -> str:
    """Return the text of the key that the bundle says it was signed with; InputError unless it was."""
    signature, path = _signature(folder), folder / SIGNER
    if not path.is_file():
        raise InputError(f"{path}: missing: the bundle does not say whose signature it has; give the publisher's key as --key")
    key = public_key(path)
    if not is_signed(manifest, signature, key):
        raise InputError(f"{folder / SIGNATURE}: not a signature of this manifest by {path}: do not use the bundle")
    return base64.b64encode(key).decode()


def _signature(folder: Path) -> bytes:
    path = folder / SIGNATURE
    if not path.is_file():
        raise InputError(f"{folder}: not signed, and a bundle is code: get a signed one (edgefl export signs); {_OWN_RISK}")
    return read_regular(path, MOST_KEY_BYTES, "a signature")
