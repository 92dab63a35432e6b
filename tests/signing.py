"""Devices and publishers that sign: keys from fixed bytes, updates and requests as the client makes them, signed bundles."""

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from handmade import Regression, changed_file

from edgefl.bundle.signature import signature_files
from edgefl.util.files import shared
from edgefl.util.keys import SigningKey

sys.path.insert(0, str(shared("export") / "python"))

from edgefl_keys import DeviceKey, enrolment, signed  # type: ignore[import-not-found]

LINE = "a" * 64
# Derived by signed_update_by_hand.py with openssl.
KEY = "ebVWLo/mVPlAeLES6KmLp5AfhTrmlb7X4OORC60ElmQ="
CONTENT = "ee31fb52e2f5bc757847b68a6501841a38f728300bd1d21cc25f800a667e6d70"
SIGNATURE = "rxxIfSQBe8Yl55Fj0zq48qMx2FymE4U0g4hTEylj3uN6uearejQMO04hclzoopjpBZ4dUCIfIoPQaqeitjtLBw=="
ENROLMENT = "TxnoJ7Gu+u2rZQh/2+hu4KNdgNCENcdkQa14NF6/nYbQDodf60Lwn/FavZRjjYGPqHWKloru8n8jBQ5vHy8pAQ=="


def device_key(folder: Path, number: int) -> DeviceKey:
    """Return the key whose secret is ``number``, from a file of its own."""
    path = folder / f"device-{number}.pem"
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "big")).private_bytes(*form))
    path.chmod(0o600)
    return DeviceKey.of_file(path)


def signed_update(about: Mapping[str, str], tensors: Mapping[str, np.ndarray], key: DeviceKey) -> bytes:
    """Return an update file that the owner of ``key`` signed."""
    return safetensors.numpy.save(dict(tensors), metadata=signed(about, dict(tensors), key))


def sign_bundle(folder: Path, key: SigningKey) -> Path:
    """Sign the manifest of a bundle as its publisher does; return the folder."""
    for name, content in signature_files((folder / "manifest.json").read_bytes(), key).items():
        (folder / name).write_bytes(content)
    return folder


def of_round(folder: Path, key: SigningKey, round_: int, **fresh: Any) -> Path:
    """Write a signed bundle of a round, which says something of its age."""
    shutil.rmtree(folder, ignore_errors=True)
    Regression().write(folder)
    changed_file(folder, "freshness.json", json.dumps({"line": LINE, **fresh}).encode(), round=round_)
    return sign_bundle(folder, key)


def request(folder: Path, name: str, key: DeviceKey) -> Path:
    """Write a request to be enrolled."""
    path = folder / f"{name}.json"
    path.write_bytes(enrolment(name, key))
    return path
