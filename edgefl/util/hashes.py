"""The hashes of what a run wrote, in ``hashes.json`` beside its files: a file that was changed or damaged since is refused by name.

They guard against accidents, such as an edit between a stop and ``--resume``, not against somebody who changes the hashes too.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import TypeAdapter, ValidationError

from edgefl.errors import CheckpointError
from edgefl.util.files import read_at_most, sha256, write_json

HASHES, ROUNDS = "hashes.json", "rounds.jsonl"
_MOST_BYTES = 1 << 26


def is_new(folder: Path) -> bool:
    """Whether a run may begin in ``folder``: it is missing or empty, except for what a start that was interrupted left.

    >>> is_new(Path("nowhere")), is_new(Path(__file__))
    (True, False)
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name.startswith(".") or path.name == HASHES for path in folder.iterdir())


@dataclass(frozen=True)
class Hashes:
    """The content of ``hashes.json``.

    It is written before the files themselves, so that a kill in between leaves a folder that passes.

    Attributes:
        files: name of a file → SHA-256 of its content, before and after its last replacement.
        rounds: number of rounds → SHA-256 of so many first lines of ``rounds.jsonl``.
        checkpoints: number of rounds → SHA-256 of the checkpoint after them. Empty in a folder of edgefl 0.2.
        format: 1.

    Example:
        >>> Hashes().with_file("model.safetensors", b"weights").check(Path("model.safetensors"), b"w3ights")
        Traceback (most recent call last):
            ...
        edgefl.errors.CheckpointError: model.safetensors: edited or damaged after the run wrote it (hashes.json); restore the file
    """

    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: Mapping[int, str] = field(default_factory=dict)
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    format: Literal[1] = 1

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Return the hashes in ``folder``; None where there are none: another version of edgefl wrote the folder.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = folder / HASHES
        try:
            path.stat()
            return TypeAdapter(cls).validate_json(read_at_most(path, _MOST_BYTES, CheckpointError))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError):
            raise CheckpointError(f"{path}: damaged; restore the file, or start a new run") from None

    def write(self, folder: Path) -> None:
        """Write the hashes into ``folder``, atomically."""
        write_json(folder / HASHES, asdict(self))

    def with_file(self, name: str, content: bytes) -> Self:
        """Return these hashes for a run that is about to write ``content`` to the file ``name``."""
        before = [digest for digest in self.files.get(name, ()) if digest != sha256(content)]
        return replace(self, files={**self.files, name: (*before[-1:], sha256(content))})

    def with_rounds(self, last: int, digest: str, checkpoint: str, oldest: int) -> Self:
        """Return these hashes for a run that has written ``last`` lines of rounds and may resume from round ``oldest``.

        ``digest`` and ``checkpoint`` are the hashes of these lines and of the checkpoint after them.
        """
        hashes = self.between(oldest, last - 1)
        return replace(hashes, rounds={**hashes.rounds, last: digest}, checkpoints={**hashes.checkpoints, last: checkpoint})

    def between(self, first: int, last: int) -> Self:
        """Return these hashes without those of rounds before ``first`` and after ``last``."""
        rounds, checkpoints = (
            {r: digest for r, digest in hashes.items() if first <= r <= last} for hashes in (self.rounds, self.checkpoints)
        )
        return replace(self, rounds=rounds, checkpoints=checkpoints)

    def check(self, path: Path, content: bytes) -> None:
        """Raise :class:`CheckpointError` if ``content`` is not what the run wrote to ``path``; files without a hash pass."""
        if path.name == ROUNDS:
            self._check_rounds(path, content)
        elif path.name in self.files and sha256(content) not in self.files[path.name]:
            raise CheckpointError(f"{path}: {_CHANGED}")

    def _check_rounds(self, path: Path, content: bytes) -> None:
        lines, digest, done = content.splitlines(keepends=True), hashlib.sha256(), 0
        for last, expected in sorted(self.rounds.items()):
            digest.update(b"".join(lines[done:last]))
            done = last
            if digest.hexdigest() != expected:
                raise CheckpointError(f"{path}: a line up to {last} was {_CHANGED}")


_CHANGED = f"edited or damaged after the run wrote it ({HASHES}); restore the file"


def checked(path: Path, content: bytes) -> bytes:
    """Return ``content``, read from a run's file at ``path``; CheckpointError if it is not what the run wrote."""
    if (hashes := Hashes.of(path.parent)) is not None:
        hashes.check(path, content)
    return content
