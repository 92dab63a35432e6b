"""What a device reads: bundles, whose every file is checked before it is used, and the state that training left.

No line here runs anything of a bundle but its graphs, in onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnxruntime as ort
import safetensors.numpy
from safetensors import SafetensorError

FORMAT_VERSION = 2
# A graph whose weights lie beside it names their file after the key "location", of at most 127 bytes (protobuf's own encoding).
_LOCATION = re.compile(rb"\n\x08location\x12([\x01-\x7f])", re.DOTALL)
_MANIFEST: dict[str, type | tuple[type, ...]] = {
    "manifest_sha256": str, "round": int, "input_shape": list, "input_dtype": str, "classes": int, "class_names": list,
    "preprocessing": dict, "tiers": list, "files": dict,
}  # fmt: skip
_TRAIN: dict[str, type | tuple[type, ...]] = {
    "graphs": list, "predict": str, "parameters": str, "optimizer": str, "lr": (int, float), "momentum": (int, float), "batch_size": int,
    "epochs": int, "trained": dict, "statistics": dict, "frozen": dict, "personal": list, "upload": dict, "objective": dict,
    "present": bool, "no_update": str,
}  # fmt: skip
Tensors = dict[str, np.ndarray]
Table = dict[str, Any]


class ClientError(Exception):
    """Training diverged, or onnxruntime failed; nothing was written."""

    exit_code = 1


class InputError(ClientError):
    """Something given is wrong."""

    exit_code = 2


class BudgetError(ClientError):
    """The device's memory or time is not enough: ``need`` and ``have``, in bytes or seconds."""

    exit_code = 3

    def __init__(self, message: str, need: float, have: float) -> None:
        super().__init__(message)
        self.need = need
        self.have = have


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest was checked; every file is checked against its hash when it is used."""

    folder: Path
    manifest: Table

    def tier(self, label: str) -> Table:
        """Return a tier's entry."""
        entries = {}
        for number, entry in enumerate(self.manifest["tiers"]):
            check_keys(entry, {"label": str, "forward": str}, f"{self.folder / 'manifest.json'}: tiers.{number}")
            entries[entry["label"]] = entry
        if label not in entries:
            raise InputError(f"tier: got {label!r}, the bundle has {', '.join(entries) or 'none'}")
        return dict(entries[label])

    def training(self, label: str) -> Table:
        """Return what the manifest says of training a tier."""
        table = self.tier(label).get("train")
        where = f"{self.folder / 'manifest.json'}: tier {label}: train"
        if table is None:
            raise InputError(f"{where}: there is none: this bundle was exported for inference only")
        check_keys(table, _TRAIN, where)
        return dict(table)

    def content(self, path: str) -> bytes:
        """Return the bytes of one file of the bundle, which are those that the manifest promises."""
        parts, entry = PurePosixPath(path).parts, self.manifest["files"].get(path)
        if entry is None or not parts or path.startswith("/") or ".." in parts or re.search(r"[\\:\0]", path):
            raise InputError(f"{self.folder}: {path!r} is no file of the bundle: expected a path inside that the manifest lists")
        file = self.folder.joinpath(*parts)
        if any(self.folder.joinpath(*parts[: n + 1]).is_symlink() for n in range(len(parts))) or not file.is_file():
            raise InputError(f"{file}: missing, or a link; get the bundle again")
        if file.stat().st_size != entry["bytes"]:
            raise InputError(f"{file}: changed: {file.stat().st_size} bytes, expected {entry['bytes']}; get the bundle again")
        content = file.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise InputError(f"{file}: changed: its SHA-256 is not the manifest's; get the bundle again")
        return content

    def session(self, path: str, options: ort.SessionOptions) -> ort.InferenceSession:
        """Return a graph, ready to run. Weights beside it, where it has some, are files of the bundle too."""
        content = self.content(path)
        outside = {content[m.end() : m.end() + m[1][0]].decode(errors="replace") for m in _LOCATION.finditer(content)}
        for name in outside:
            self.content(str(PurePosixPath(path).parent / name))
        try:
            source = str(self.folder / path) if outside else content
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime's exception types live in its C extension
            raise InputError(
                f"{self.folder / path}: onnxruntime {ort.__version__} does not take it: {first_line(error)}"
            ) from None

    def parameters(self, label: str) -> Tensors:
        """Return the first values of a tier's tensors by name, and the server's control variates under ``control:``."""
        table = self.training(label)
        path, found = table["parameters"], {}
        try:
            found = safetensors.numpy.load(self.content(path))
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{self.folder / path}: not a safetensors file ({error})") from None
        expected = {**table["trained"], **table["statistics"], **table["frozen"]}
        for name, shape in expected.items():
            if name not in found or list(found[name].shape) != list(shape):
                got = list(found[name].shape) if name in found else "nothing"
                raise InputError(f"{self.folder / path}: {name}: got {got}, expected shape {list(shape)}")
        if odd := [n for n, t in found.items() if t.dtype.kind == "f" and not np.isfinite(t).all()]:
            raise InputError(f"{self.folder / path}: {odd[0]} holds NaN or infinity")
        return found


@dataclass(frozen=True)
class State:
    """What training leaves on the device: tensors by name, what is said of them, the loss of every step and the seconds of all.

    Under ``memory:`` and ``before:`` is what an objective keeps after and before the round, under ``control:`` what it sends.
    """

    tensors: Tensors
    about: dict[str, str]
    losses: tuple[float, ...] = ()
    seconds: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        return safetensors.numpy.save(self.tensors, metadata=self.about)

    @classmethod
    def of_file(cls, path: Path) -> State:
        """Return the state that ``train`` wrote to ``path``."""
        try:
            content = path.read_bytes()
            tensors = safetensors.numpy.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; expected a state that train wrote") from None
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path}: not a state that train wrote ({error})") from None
        about = header.get("__metadata__") or {}
        if (about.get("format"), about.get("version")) != ("edgefl-state", "1"):
            raise InputError(f"{path}: format: got {about.get('format')!r}, expected 'edgefl-state' of version '1'")
        check_keys(
            about, dict.fromkeys(("bundle", "round", "tier", "samples", "steps", "client", "upload", "no_update"), str), str(path)
        )
        return cls(tensors, about)


def read_bundle(folder: Path, key: Path | None = None) -> Bundle:
    """Return the bundle in ``folder`` after checking its manifest's hash, and with ``key`` its Ed25519 signature."""
    path = folder / "manifest.json"
    try:
        content = path.read_bytes()
        manifest = json.loads(content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected a folder that edgefl export wrote") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise InputError(f"{path}: format_version: got {version!r}, expected {FORMAT_VERSION}: made by another version of edgefl")
    check_keys(manifest, _MANIFEST, str(path))
    own = manifest["manifest_sha256"]
    if hashlib.sha256(content.replace(own.encode(), b"0" * 64, 1)).hexdigest() != own:
        raise InputError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    if key is not None:
        _check_signature(folder / "manifest.sig", content, key)
    return Bundle(folder, manifest)


def _check_signature(path: Path, content: bytes, key: Path) -> None:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise InputError("--key: checking signatures needs the package cryptography: pip install cryptography") from None
    try:
        public, signature = key.read_bytes(), path.read_bytes()
        raw = len(public) == 32
        loaded = Ed25519PublicKey.from_public_bytes(public) if raw else serialization.load_pem_public_key(public)
        if not isinstance(loaded, Ed25519PublicKey):
            raise ValueError("another kind of key")
        loaded.verify(signature, content)
    except OSError as error:
        raise InputError(f"{error.filename}: {error.strerror}; expected a public key and a signed bundle") from None
    except ValueError as error:
        raise InputError(f"{key}: not an Ed25519 public key, PEM or 32 raw bytes ({error})") from None
    except InvalidSignature:
        raise InputError(f"{path}: not a signature of this manifest by {key}: do not use the bundle") from None


def check_keys(table: object, keys: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Raise unless ``table`` has all ``keys`` with values of their types; says which is wrong, and how."""
    if not isinstance(table, dict):
        raise InputError(f"{where}: got {type(table).__name__}, expected a table")
    for key, kind in keys.items():
        if not isinstance(table.get(key), kind) or (isinstance(table[key], bool) and kind is not bool):
            name = kind.__name__ if isinstance(kind, type) else "number"
            raise InputError(f"{where}: {key}: got {table.get(key)!r}, expected a value of type {name}")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); give another --out") from None
