"""Reads bundles and states of training on a device. Every file of a bundle is checked against its hash before it is used.

Nothing of a bundle is executed except its graphs, in onnxruntime.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import safetensors.numpy
from edgefl_checks import CheckError, Kinds, check_budget, check_manifest, check_training, require_keys
from edgefl_graph import GraphError, external_files
from edgefl_limits import watched
from edgefl_runtime import ort
from safetensors import SafetensorError

ort.set_default_logger_severity(4)  # what sessions do not log: errors become exceptions, and messages of this client
FORMAT_VERSION = 2
_MOST_MANIFEST_BYTES = 1 << 26
"""More than a manifest of any network has."""
_MOST_STATE_BYTES = 1 << 36
Tensors = dict[str, np.ndarray]
Table = dict[str, Any]


class ClientError(Exception):
    """Training diverged, or onnxruntime failed; no file was written."""

    exit_code = 1


class InputError(ClientError):
    """An input is wrong: a file, a bundle or an argument."""

    exit_code = 2


class BudgetError(ClientError):
    """A limit of memory or time is too small: ``need`` and ``have`` are bytes or seconds."""

    exit_code = 3

    def __init__(self, message: str, need: float, have: float) -> None:
        super().__init__(message)
        self.need = need
        self.have = have


@dataclass(frozen=True)
class Bundle:
    """A bundle: its folder, and its checked manifest. Other files are checked when they are read.

    With ``timeout_s``, the process ends if onnxruntime takes longer to load a graph or to run one batch. ``sent`` are tensors that a server
    has sent, name → value, instead of those in the bundle's files.
    """

    folder: Path
    manifest: Table
    timeout_s: float | None = None
    sent: Tensors = field(default_factory=dict)

    def at_round(self, round_: int, sent: Tensors) -> Bundle:
        """Return the bundle that the server would export for training in ``round_``: the same graphs, with the tensors ``sent``."""
        own = f"{self.manifest['manifest_sha256']}/{round_}"
        return replace(self, manifest={**self.manifest, "round": round_, "manifest_sha256": own}, sent=sent)

    def tier(self, label: str) -> Table:
        """Return the manifest's entry of the tier ``label``; InputError if there is none."""
        entries = {}
        for entry in self.manifest["tiers"]:
            entries[entry["label"]] = entry
        if label not in entries:
            raise InputError(f"tier: got {label!r}, the bundle has {', '.join(entries) or 'none'}")
        return dict(entries[label])

    def training(self, label: str) -> Table:
        """Return the entry ``train`` of a tier; InputError if the bundle is for inference only."""
        table = self.tier(label).get("train")
        where = f"{self.folder / 'manifest.json'}: tier {label}: train"
        if table is None:
            raise InputError(f"{where}: there is none: this bundle was exported for inference only")
        with refused(where):
            table = check_training(table)
            budget = self.tier(label).get("budget")
            check_budget({} if budget is None else budget)
        return table

    def content(self, path: str) -> bytes:
        """Return the content of a file of the bundle; InputError if it is not listed, missing, a link or changed."""
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
        """Return a session for the graph at ``path``; InputError if a file was changed, or onnxruntime does not accept the graph."""
        content = self.content(path)
        try:
            outside = external_files(content)
        except GraphError as error:
            raise InputError(f"{self.folder / path}: not an ONNX model ({error})") from None
        for name in outside:
            self.content(str(PurePosixPath(path).parent / name))
        file = self.folder / path
        # Should onnxruntime find a file that was not found above, it looks for it beside the graph, not in the working directory.
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(file.parent.resolve()))
        try:
            source = str(file) if outside else content
            with watched(self.timeout_s, f"{path}: loading it"):
                return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime's exception types live in its C extension
            raise InputError(
                f"{self.folder / path}: onnxruntime {ort.__version__} does not take it: {first_line(error)}"
            ) from None

    def tensors(self, path: str) -> Tensors:
        """Return the tensors in a safetensors file of the bundle; InputError if it is none."""
        try:
            return dict(safetensors.numpy.load(self.content(path)))
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{self.folder / path}: not a safetensors file ({error})") from None

    def parameters(self, label: str) -> Tensors:
        """Return the first values of a tier's tensors: name → value, with the server's control variates under ``control:NAME``."""
        table = self.training(label)
        path = table["parameters"]
        found = {**self.tensors(path), **self.sent}
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
    """The result of training, which stays on the device: tensors by name, metadata, the loss of every step, and the seconds of all.

    An objective adds ``memory:NAME`` and ``before:NAME``, its tensors after and before the round, and ``control:NAME``, which it sends.
    ``now:INPUT`` is what the optimizer and dropout continue with. ``note`` says why a training shuffled the samples anew, else nothing.
    """

    tensors: Tensors
    about: dict[str, str]
    losses: tuple[float, ...] = ()
    seconds: float = 0.0
    note: str = ""

    def to_bytes(self) -> bytes:
        """Return the content of the state's file (safetensors)."""
        return safetensors.numpy.save(self.tensors, metadata=self.about)

    @classmethod
    def of_file(cls, path: Path) -> State:
        """Return the state that ``train`` wrote to ``path``; InputError if the file holds none."""
        content = read_regular(path, _MOST_STATE_BYTES, "a state that train wrote")
        try:
            tensors = safetensors.numpy.load(content)
            header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"{path}: not a state that train wrote ({error})") from None
        about = header.get("__metadata__") or {}
        if (about.get("format"), about.get("version")) != ("edgefl-state", "1"):
            raise InputError(f"{path}: format: got {about.get('format')!r}, expected 'edgefl-state' of version '1'")
        check_keys(
            about, dict.fromkeys(("bundle", "round", "tier", "samples", "steps", "client", "upload", "no_update"), str), str(path)
        )
        state = cls(tensors, about)
        try:
            numbers = [*(about[key] for key in ("round", "samples", "steps")), *filter(None, about.get("labels", "").split(","))]
            right = all(len(text) < 19 and int(text) >= 0 for text in numbers) and set(state.upload) <= tensors.keys()
            right = right and math.isfinite(float(about.get("lr_sum", 0)))
        except (ValueError, TypeError, RecursionError):
            right = False
        if not right:
            raise InputError(f"{path}: not a state that train wrote (damaged metadata): train again")
        return state

    @property
    def upload(self) -> list[str]:
        """The names of the tensors that the server aggregates, without control variates."""
        return list(json.loads(self.about["upload"]))


def read_bundle(folder: Path, check: Callable[[bytes], None] | None = None) -> Bundle:
    """Return the bundle in ``folder`` after checking the manifest's own hash and values; InputError if they are wrong.

    ``check`` gets the bytes of the manifest before they are read, and raises if the publisher is not trusted
    (:func:`edgefl_trust.read_trusted`).
    """
    path = folder / "manifest.json"
    content = read_regular(path, _MOST_MANIFEST_BYTES, "a folder that edgefl export wrote")
    if check is not None:
        check(content)
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from None
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        raise InputError(f"{path}: format_version: got {version!r}, expected {FORMAT_VERSION}: made by another version of edgefl")
    with refused(str(path)):
        manifest = check_manifest(manifest)
    own = manifest["manifest_sha256"]
    if hashlib.sha256(content.replace(own.encode(), b"0" * 64, 1)).hexdigest() != own:
        raise InputError(f"{path}: changed: its SHA-256 is not its manifest_sha256; get the bundle again")
    return Bundle(folder, manifest)


def read_regular(path: Path, limit_bytes: int, expected: str) -> bytes:
    """Return the content of a file; InputError unless it is a regular file, no pipe or device, of at most ``limit_bytes``."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path}: not a regular file; expected {expected}")
        if found.st_size > limit_bytes:
            raise InputError(f"{path}: {found.st_size:,} bytes, expected at most {limit_bytes:,}: {expected}")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; expected {expected}") from None


def inputs_of(manifest: Table) -> dict[str, Table]:
    """Return input of the graphs → its ``shape``, ``dtype`` and ``preprocessing``: ``x``, or ``x.NAME`` for each of several."""
    if several := manifest.get("inputs"):
        return {f"x.{name}": entry for name, entry in several.items()}
    dtype = manifest.get("input_dtype", "float32")
    return {"x": {"shape": manifest["input_shape"], "dtype": dtype, "preprocessing": manifest["preprocessing"]}}


@contextlib.contextmanager
def refused(where: str) -> Iterator[None]:
    """Turn a failed check into an InputError that begins with ``where``."""
    try:
        yield
    except CheckError as error:
        raise InputError(f"{where}: {error}") from None


def check_keys(table: object, keys: Kinds, where: str) -> None:
    """Raise an InputError unless ``table`` has all ``keys``, with values of the given types."""
    with refused(where):
        require_keys(table, keys)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: is no file, but a folder or a device, which would be replaced; give another --out")
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
