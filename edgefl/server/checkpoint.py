"""The state after every round, on disk: whole or absent, checked when read, the last few kept.

A file's name carries the beginning of its content's SHA-256, so a checkpoint is one file that proves itself: it is renamed into place
when complete, and a damaged one is passed over for the one before.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from edgefl.errors import CheckpointError
from edgefl.util.files import sha256, write_bytes

KEPT = 3
_NAME = re.compile(r"round-(\d{6})-([0-9a-f]{16})\.safetensors")
_SERVER, _WARM = "server/", "warm/"
_REMEMBERED = re.compile(r"((?:client|cluster) \d+)/(.+)")
_ABOUT = "edgefl"


@dataclass(frozen=True)
class Checkpoint:
    """The state after ``round`` rounds, and the simulated clock at that moment.

    Attributes:
        tensors: the method's state.
        server: what the server's optimizer and objective keep.
        options: the method's options at that moment, which a method in phases changes as it goes.
        clients: the chain of :class:`edgefl.server.client_store.ClientStore` at that moment, which proves that its file belongs to this
            checkpoint; empty where clients have kept nothing.
        fleet: who was still at work and what batteries had given, as :class:`edgefl.server.state.FleetMemory` writes it.
        warm: that of the method's state; empty in the checkpoints of older versions.
        remembered: the other parts of the method's state (:meth:`edgefl.methods.state.GlobalState.parts`).
    """

    round: int
    clock_s: float
    tensors: Mapping[str, Tensor]
    server: Mapping[str, Tensor] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: str = ""
    fleet: Mapping[str, Any] = field(default_factory=dict)
    warm: Mapping[str, Tensor] = field(default_factory=dict)
    remembered: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        about = {
            "round": self.round,
            "clock_s": self.clock_s,
            "options": self.options,
            "clients": self.clients,
            "fleet": self.fleet,
        }
        besides = {_SERVER: self.server, _WARM: self.warm, **{f"{part}/": of for part, of in self.remembered.items()}}
        tensors = {**self.tensors, **{prefix + name: tensor for prefix, of in besides.items() for name, tensor in of.items()}}
        # One entry: safetensors writes several in another order each time, and equal states would have unequal files.
        metadata = {_ABOUT: json.dumps(about, sort_keys=True)}
        return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata=metadata)

    @classmethod
    def of_file(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in the file at ``path``.

        Raises:
            CheckpointError: it is not one, or is cut.
        """
        try:
            tensors = safetensors.torch.load(path.read_bytes())
            about = _about(path)
            clients, fleet = about["clients"], dict(about.get("fleet", {}))
            options = dict(about["options"])
            round_, clock_s = int(about["round"]), float(about["clock_s"])
        except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path}: not a checkpoint ({error})") from None
        server, warm = (
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
            for prefix in (_SERVER, _WARM)
        )
        state, remembered = {}, defaultdict[str, dict[str, Tensor]](dict)
        for name, tensor in tensors.items():
            if match := _REMEMBERED.fullmatch(name):
                remembered[match[1]][match[2]] = tensor
            elif not name.startswith((_SERVER, _WARM)):
                state[name] = tensor
        return cls(round_, clock_s, state, server, options, _chain(path, clients), fleet, warm, remembered)


class OlderVersionError(CheckpointError):
    """The folder was written by a version of edgefl that kept what clients keep in another way."""


def _chain(path: Path, clients: object) -> str:
    if isinstance(clients, str):
        return clients
    if clients == {}:  # what versions before wrote where clients kept nothing
        return ""
    raise OlderVersionError(
        f"{path}: an older version of edgefl wrote it, with a file for every client, which this version does not read; "
        "finish the run with that version, or start a new one"
    )


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
    content = checkpoint.to_bytes()
    path = folder / f"round-{checkpoint.round:06d}-{sha256(content)[:16]}.safetensors"
    write_bytes(path, content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink(missing_ok=True)
    return path


def restore(folder: Path) -> Restored | None:
    """Return the newest whole checkpoint in ``folder``, or None where none was written yet.

    Raises:
        CheckpointError: there are checkpoints but none is whole, or an older version of edgefl wrote them.
    """
    warnings: list[str] = []
    for path in _newest_first(folder):
        match = _NAME.fullmatch(path.name)
        if match is None or sha256(path.read_bytes())[:16] != match[2]:
            problem = "its content is not what its name says (damaged or cut)"
        else:
            try:
                return Restored(Checkpoint.of_file(path), tuple(warnings))
            except OlderVersionError:
                raise
            except CheckpointError as error:
                problem = str(error)
        warnings.append(f"{path.name}: {problem}; falling back to the checkpoint before it")
    if warnings:
        raise CheckpointError(f"{folder}: no checkpoint is whole: {'; '.join(warnings)}")
    return None


def oldest_round(folder: Path) -> int:
    """Return the round of the oldest checkpoint in ``folder``, 0 where there is none."""
    return min((int(match[1]) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))), default=0)


def _about(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return dict(json.loads(file.metadata()[_ABOUT]))


def _newest_first(folder: Path) -> list[Path]:
    return sorted((p for p in folder.glob("*.safetensors") if _NAME.fullmatch(p.name)), reverse=True)
