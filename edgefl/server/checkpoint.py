"""Checkpoints: the server's state after every round as one file each. The newest three stay on the disk.

A file's name contains the first 16 hex digits of the SHA-256 of its content, which is verified when the file is read. The run lists the
hashes of its checkpoints, so that those of another run are not taken. A file is renamed into place when it is complete. A checkpoint that
is damaged or of another run is skipped, and the one before it is used.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgefl.errors import CheckpointError, ConfigError, UnknownNameError
from edgefl.methods.state import GlobalState
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.server.state import FleetMemory, ServerState
from edgefl.util.files import require_plain, sha256, write_bytes

FORMAT = 2
KEPT = 3
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")
_ABOUT, _MEMORY = "edgefl", "memory"
_FLEET = TypeAdapter(FleetMemory)
_FIELDS = ("round", "clock_s", "options", "clients")


def to_bytes(state: ServerState) -> bytes:
    """Return the content of the file of ``state``: equal states have equal files."""
    model = state.model
    about = {
        "format": FORMAT,
        **{key: getattr(state, key) for key in _FIELDS},
        "fleet": asdict(state.fleet),
        "architecture": model.architecture.described(),
        "tiers": [tier.ratio for tier in model.tiers],
    }
    parts = {**model.parts(), _MEMORY: state.memory}
    tensors = {f"{part}/{name}": tensor.contiguous() for part, named in parts.items() for name, tensor in named.items()}
    # One entry: safetensors writes several in another order each time, and equal states would have unequal files.
    return safetensors.torch.save(tensors, metadata={_ABOUT: json.dumps(about, sort_keys=True)})


def of_file(path: Path, architecture: Architecture | None = None) -> ServerState:
    """Return the state in the file at ``path``, of the network ``architecture`` if the file describes it; None: a reference network.

    Raises:
        CheckpointError: the file is no checkpoint, of another format version, or cut.
        OSError: it cannot be read.
    """
    try:
        require_plain(path, CheckpointError)
        tensors = safetensors.torch.load(path.read_bytes())
        with safe_open(path, framework="pt") as file:
            about = dict(json.loads(file.metadata()[_ABOUT]))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']}, expected {FORMAT}")
        parts: dict[str, dict[str, Tensor]] = {_MEMORY: {}}
        for path_of, tensor in tensors.items():
            part, _, name = path_of.partition("/")
            parts.setdefault(part, {})[name] = tensor
        memory, shape = parts.pop(_MEMORY), about["architecture"]
        if architecture is None or shape != architecture.described():
            architecture = Architecture(**{**shape, "input_shape": tuple(shape["input_shape"])})
        model = GlobalState(architecture, tuple(map(Tier, about["tiers"])), {}).of_parts(parts)
        fleet = _FLEET.validate_python(about["fleet"])
        return ServerState(model, memory, fleet=fleet, **{key: about[key] for key in _FIELDS})
    except (SafetensorError, ConfigError, UnknownNameError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path}: not a checkpoint ({error})") from None


@dataclass(frozen=True)
class Restored:
    """The state in the newest whole checkpoint, and warnings about newer ones that are damaged."""

    state: ServerState
    warnings: tuple[str, ...]


def save(folder: Path, state: ServerState, announce: Callable[[str], None] = lambda digest: None) -> Path:
    """Write the checkpoint of ``state`` atomically, delete all except the newest three, and return its path.

    ``announce`` is called with the SHA-256 of its content before it is written.

    Raises:
        StorageError: the disk is full; earlier checkpoints are untouched.
    """
    content = to_bytes(state)
    digest = sha256(content)
    announce(digest)
    path = folder / f"round-{state.round:06d}-{digest[:16]}.safetensors"
    write_bytes(path, content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def newest_before(folder: Path, round_: int, hashes: Mapping[int, str]) -> Path | None:
    """Return the newest whole checkpoint of a round before ``round_``; None: there is none. For ``hashes`` see :func:`restore`."""
    return next((path for path in _newest_first(folder) if _round_of(path) < round_ and not _damage(path, hashes)), None)


def forget(folder: Path, first: int) -> None:
    """Delete the checkpoints of the rounds from ``first`` on."""
    for path in _newest_first(folder):
        if _round_of(path) >= first:
            path.unlink(missing_ok=True)


def restore(folder: Path, architecture: Architecture | None = None, hashes: Mapping[int, str] = {}) -> Restored | None:
    """Return the newest whole checkpoint in ``folder``; None if there is none yet. For ``architecture`` see :func:`of_file`.

    ``hashes`` are those of the run's checkpoints by round; without any, all in the folder are taken for the run's.

    Raises:
        CheckpointError: there are checkpoints, but none is whole.
    """
    warnings: list[str] = []
    for path in _newest_first(folder):
        if not (problem := _damage(path, hashes)):
            try:
                return Restored(of_file(path, architecture), tuple(warnings))
            except CheckpointError as error:
                problem = str(error)
        warnings.append(f"{path.name}: {problem}; falling back to the checkpoint before it")
    if warnings:
        raise CheckpointError(f"{folder}: no checkpoint is whole: {'; '.join(warnings)}")
    return None


def verified(folder: Path, rounds: Iterable[int] = (), hashes: Mapping[int, str] = {}) -> list[Path]:
    """Return the checkpoints in ``folder``, the newest first; CheckpointError if one is damaged, or not among the ``hashes``.

    ``rounds`` are those that had a checkpoint: unless all checkpoints were deleted, those of the newest must be there.
    """
    checkpoints = _newest_first(folder)
    if checkpoints and (gone := {*sorted(rounds)[-KEPT:]} - {*map(_round_of, checkpoints)}):
        raise CheckpointError(f"{folder}: the checkpoint of round {min(gone)} is missing; restore it, or delete all checkpoints")
    for path in checkpoints:
        if problem := _damage(path, hashes):
            raise CheckpointError(f"{path}: {problem}; delete it to continue from the one before")
    return checkpoints


def chain_of(path: Path) -> tuple[int, str]:
    """Return the round of the state in a file, and the hash of what clients had stored by then."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()[_ABOUT])
    return int(about["round"]), str(about["clients"])


def _round_of(path: Path) -> int:
    return int(path.name.split("-")[1])


def oldest_round(folder: Path) -> int:
    """Return the round of the oldest checkpoint in ``folder``, 0 if there is none."""
    return min(map(_round_of, _newest_first(folder)), default=0)


def _damage(path: Path, hashes: Mapping[int, str]) -> str:
    """Return what is wrong with the checkpoint at ``path``, or nothing."""
    if not path.is_file():
        return "it is no regular file"
    match, digest = _NAME.fullmatch(path.name), sha256(path.read_bytes())
    if match is None or digest[:16] != match[2]:
        return "its SHA-256 differs from the one in its name (damaged or incomplete)"
    if hashes and hashes.get(int(match[1])) != digest:
        return "it is of another run"
    return ""


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.safetensors") if _NAME.fullmatch(p.name)), reverse=True)
