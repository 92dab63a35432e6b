"""Update files, which devices send back: each is checked against its bundle. This module needs no torch and no pickle.

A file is read only if it is no larger than a header of 1 MiB and the tensors of the largest tier. Its length must be exact. Messages show a
file's values as Python writes them, shortened.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError

from edgefl.errors import WireError
from edgefl.util.files import no_key_twice
from edgefl.util.keys import PublicKey
from edgefl.util.validation import short
from edgefl.wire.device_keys import NAME, DeviceKeys
from edgefl.wire.update_content import KEY, SIGNATURE, content_sha256, holds, signer, too_large

FORMAT, VERSION = "edgefl-update", "1"
MAX_HEADER_BYTES = 1 << 20
KEYS = ("format", "version", "bundle", "round", "tier", "samples", "steps", "client")
MAX_COUNT = 10**9
"""Most samples or steps that a device may state."""
_COUNT = re.compile(r"[1-9][0-9]{0,8}|10{9}")
_LABELS = re.compile(r"(0|[1-9][0-9]{0,8})(,[1-9][0-9]{0,8})*")
_MAX_SIGNATURE = 100

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class ExpectedUpdate:
    """The server's expectations of updates.

    Attributes:
        bundle, round, classes: ``manifest_sha256``, round and number of labels of the bundle.
        tiers: per tier name → shape of float32 tensors.
        keys: the devices whose updates count; None: every sender's.
    """

    bundle: str
    round: int
    tiers: Mapping[str, Shapes]
    classes: int
    keys: DeviceKeys | None = None

    def data_bytes(self, tier: str) -> int:
        """Return the bytes of the tensors of an update of ``tier``."""
        return 4 * sum(math.prod(shape) for shape in self.tiers[tier].values())


@dataclass(frozen=True)
class DeviceUpdate:
    """An update file that passed every check, with its float32 tensors; ``labels`` are those in its client's data, None: not stated.

    ``content`` is the hash of the tensors. ``key`` is that of the device that signed the file, None: not signed. ``device`` is the name
    under which the key is enrolled, None: the sender was not checked.
    """

    path: Path
    client: str
    tier: str
    samples: int
    steps: int
    tensors: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    labels: tuple[int, ...] | None = None
    content: str = ""
    key: PublicKey | None = None
    device: str | None = None


@dataclass(frozen=True)
class Received:
    """A folder of updates: the valid ones, without their tensors, and a message about each invalid one."""

    updates: tuple[DeviceUpdate, ...]
    problems: tuple[str, ...]


def receive(folder: Path, expected: ExpectedUpdate) -> Received:
    """Check every visible file in ``folder`` by name; a sender's second update is invalid. Raise WireError if there is no such folder.

    With keys, a sender is its key, because anyone can choose any name. Without keys, it is the name, and the key of a signed update.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise WireError(f"{folder}: {error.strerror}; expected a folder of update files") from None
    updates: list[DeviceUpdate] = []
    senders: dict[PublicKey | str, Path] = {}
    problems = []
    for path in paths:
        try:
            if not path.name.isprintable():
                raise WireError(f"{path.parent}: {path.name!a}: expected a name of printable characters")
            update = replace(read_update(path, expected), tensors={})
            who: dict[PublicKey | str, str] = {} if update.key is None else {update.key: f"key: {update.device or update.key}"}
            if expected.keys is None:
                who[update.client] = f"client: {update.client!r}"
            for sender, name in who.items():
                if sender in senders:
                    raise WireError(f"{path}: {name} sent {senders[sender].name} already, expected one update of each")
            senders |= dict.fromkeys(who, path)
            updates.append(update)
        except WireError as error:
            problems.append(str(error))
    return Received(tuple(updates), tuple(problems))


def read_update(path: Path, expected: ExpectedUpdate) -> DeviceUpdate:
    """Return the update at ``path``; a :class:`WireError` names file, key, value and expectation."""
    content = _content(path, expected)
    header = _header(path, content)
    about = _about(path, header, expected)
    tier, shapes = about["tier"], expected.tiers[about["tier"]]
    _check_names(path, header, shapes, f"expected {len(shapes)} tensors, got {len(header)}")
    for name, shape in shapes.items():
        dtype, sizes = header[name].get("dtype"), header[name].get("shape")
        if (dtype, sizes) != ("F32", list(shape)):
            raise WireError(f"{path}: {name}: got {short(dtype)} of shape {short(sizes)}, expected 'F32' of shape {list(shape)}")
    length = 8 + int.from_bytes(content[:8], "little") + expected.data_bytes(tier)
    if len(content) != length:
        raise WireError(f"{path}: {len(content):,} bytes, expected {length:,} for the tensors of tier {tier}")
    try:
        tensors = safetensors.numpy.load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise WireError(f"{path}: not a valid safetensors file ({short(str(error))})") from None
    for name, tensor in tensors.items():
        if (odd := too_large(tensor)) is not None:
            raise WireError(f"{path}: {name}: {holds(odd)}")
    content_hash, key, device = _sender(path, about, tensors, expected.keys)
    ordered = {name: tensors[name] for name in shapes}
    counts, labels = (int(about["samples"]), int(about["steps"])), _labels(about.get("labels", ""), expected.classes)
    return DeviceUpdate(path, about["client"], tier, *counts, ordered, labels, content_hash, key, device)


def _sender(
    path: Path, about: Mapping[str, str], tensors: Mapping[str, np.ndarray], keys: DeviceKeys | None
) -> tuple[str, PublicKey | None, str | None]:
    """Return the hash of the tensors, the key that signed them, and its device; with ``keys``, WireError unless one of them signed."""
    content = content_sha256(tensors)
    try:
        key = signer(about, content)
        if keys is None:
            return content, key, None
        if key is None:
            raise WireError(f"not signed, expected an update of a device in {keys.path}; 'edgefl enroll' adds devices")
        return content, key, keys.name_of(key)
    except WireError as error:
        raise WireError(f"{path}: {error}") from None


def _content(path: Path, expected: ExpectedUpdate) -> bytes:
    """Return the content of a file, unless it is too large for any tier."""
    if path.is_symlink() or not path.is_file():
        raise WireError(f"{path}: a folder, a link or no plain file; expected an update file")
    most = 8 + MAX_HEADER_BYTES + max(map(expected.data_bytes, expected.tiers))
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise WireError(f"{path}: {path.stat().st_size:,} bytes, expected at most {most:,} for any tier")
    if content[:4] == b"PK\x03\x04":
        raise WireError(f"{path}: a zip archive, expected an update file (safetensors)")
    return content


def _header(path: Path, content: bytes) -> dict[str, dict[str, Any]]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > MAX_HEADER_BYTES:
        raise WireError(f"{path}: a header of {length:,} bytes, expected at most {MAX_HEADER_BYTES:,}: no safetensors file")
    try:
        header = json.loads(content[8 : 8 + length], object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{path}: its header is not valid JSON ({short(str(error))})") from None
    if not isinstance(header, dict) or not all(isinstance(entry, dict) for entry in header.values()):
        raise WireError(f"{path}: its header is no table of tensors: no safetensors file")
    return header


def _about(path: Path, header: dict[str, dict[str, Any]], expected: ExpectedUpdate) -> dict[str, str]:
    """Return the file's metadata, every key checked."""
    about = header.pop("__metadata__", {})
    known = *KEYS, *({"labels", "deadline", KEY, SIGNATURE} & about.keys())
    _check_names(path, about, known, f"an update says {', '.join(KEYS)}")
    count = f"a whole number from 1 to {MAX_COUNT:,}"
    rules: dict[str, tuple[Callable[[str], object], str]] = {
        "format": (FORMAT.__eq__, repr(FORMAT)),
        "version": (VERSION.__eq__, f"{VERSION!r}: made by another version of edgefl"),
        "round": (str(expected.round).__eq__, f"'{expected.round}', the bundle's round"),
        "bundle": (expected.bundle.__eq__, f"{expected.bundle!r}: it was trained from another bundle"),
        "tier": (expected.tiers.__contains__, f"one of {', '.join(expected.tiers)}"),
        "samples": (_COUNT.fullmatch, count),
        "steps": (_COUNT.fullmatch, count),
        "client": (NAME.fullmatch, "1 to 64 of 0-9 A-Z a-z . _ -"),
        "deadline": (_in_time, "a time in UTC that is still to come: the bundle expired, and a late update does not count"),
        KEY: (lambda text: len(text) <= _MAX_SIGNATURE, "a public key in base64"),
        SIGNATURE: (lambda text: len(text) <= _MAX_SIGNATURE, "a signature in base64"),
        "labels": (
            lambda text: _labels(text, expected.classes),
            f"labels from 0 to {expected.classes - 1}, separated by commas, each once, ascending",
        ),
    }
    for key, (right, expectation) in rules.items():
        if key in about and (not isinstance(value := about[key], str) or not right(value)):
            raise WireError(f"{path}: {key}: got {short(value)}, expected {expectation}")
    return dict(about)


def _in_time(deadline: str) -> bool:
    """Whether a deadline such as 2027-01-31T12:00:00Z is one, and is still to come."""
    try:
        return datetime.strptime(deadline, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC) >= datetime.now(UTC)
    except ValueError:
        return False


def _labels(text: str, classes: int) -> tuple[int, ...] | None:
    """Return the labels in ``text``, such as 0,3,7; None unless they are labels of ``classes`` classes, each once and ascending."""
    labels = tuple(map(int, text.split(","))) if _LABELS.fullmatch(text) else ()
    return labels if are_labels(labels, classes) else None


def are_labels(labels: tuple[int, ...], classes: int) -> bool:
    """Whether ``labels``, none of them negative, are one or more of so many classes, each once and ascending.

    >>> are_labels((0, 3), 4), are_labels((3, 0), 4), are_labels((4,), 4), are_labels((), 4)
    (True, False, False, False)
    """
    return bool(labels) and labels[-1] < classes and labels == tuple(sorted({*labels}))


def _check_names(path: Path, names: Collection[str], expected: Collection[str], rule: str) -> None:
    if different := sorted({*names} ^ {*expected}):
        state = "missing" if different[0] in expected else "not expected"
        raise WireError(f"{path}: {short(different[0])}: {state}; {rule}")
