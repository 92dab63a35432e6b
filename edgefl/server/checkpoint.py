"""The state after every round, on disk: whole or absent, checked when read, the last few kept.

A file's name carries the beginning of its content's SHA-256, so a checkpoint is one file that proves itself: it is renamed into place
when complete, and a damaged one is passed over for the one before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgefl.errors import CheckpointError
from edgefl.files import sha256, write_bytes

KEPT = 3
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``round`` rounds, and the simulated clock at that moment."""

    round: int
    clock_s: float
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Restored:
    """The newest checkpoint that is whole, and messages about newer ones that were not."""

    checkpoint: Checkpoint
    warnings: tuple[str, ...]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write ``checkpoint`` atomically, then remove all but the newest three.

    Raises:
        StorageError: the disk is full; the checkpoints before are untouched.
    """
    about = {"round": str(checkpoint.round), "clock_s": repr(checkpoint.clock_s)}
    content = safetensors.torch.save({k: v.contiguous() for k, v in checkpoint.tensors.items()}, metadata=about)
    path = folder / f"round-{checkpoint.round:06d}-{sha256(content)[:16]}.safetensors"
    write_bytes(path, content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def restore(folder: Path, shapes: Mapping[str, tuple[int, ...]]) -> Restored | None:
    """Return the newest whole checkpoint in ``folder``, or None where none was written yet.

    Raises:
        CheckpointError: there are checkpoints but none is whole.
    """
    warnings: list[str] = []
    for path in _newest_first(folder):
        problem, checkpoint = _read(path, shapes)
        if checkpoint is not None:
            return Restored(checkpoint, tuple(warnings))
        warnings.append(f"{path.name}: {problem}; falling back to the checkpoint before it")
    if warnings:
        raise CheckpointError(f"{folder}: no checkpoint is whole: {'; '.join(warnings)}")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.safetensors") if _NAME.fullmatch(p.name)), reverse=True)


def _read(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, Checkpoint | None]:
    match = _NAME.fullmatch(path.name)
    content = path.read_bytes()
    if match is None or sha256(content)[:16] != match[2]:
        return "its content is not what its name says (damaged or cut)", None
    try:
        tensors = safetensors.torch.load(content)
        with safe_open(path, framework="pt") as file:
            about = json.loads(json.dumps(file.metadata()))
        round_, clock_s = int(about["round"]), float(about["clock_s"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        return f"not a checkpoint ({error})", None
    if {name: tuple(t.shape) for name, t in tensors.items()} != dict(shapes):
        return "its tensors are of another model", None
    return "", Checkpoint(round_, clock_s, tensors)
