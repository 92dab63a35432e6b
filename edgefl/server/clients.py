"""What clients keep between rounds, on disk: one file per client and version, which proves itself by its name.

The simulator plays the clients, so it also keeps what would lie in their storage. Nothing of it is ever part of a payload.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from edgefl.errors import CheckpointError
from edgefl.files import sha256, write_bytes

_NAME = re.compile(r"client-(\d+)-([0-9a-f]{16})\.safetensors")
Index = Mapping[int, str]


class ClientStore:
    """Client → what it kept last. Only the index is in memory.

    Files of older versions stay until :meth:`prune`, so that a checkpoint from before finds the ones that belong to it.
    """

    def __init__(self, folder: Path, index: Index | None = None) -> None:
        self.folder = folder
        self.index: dict[int, str] = dict(index or {})

    def get(self, client: int) -> bytes | None:
        """Return what ``client`` kept, or None before its first round.

        Raises:
            CheckpointError: its file is missing or damaged.
        """
        if (digest := self.index.get(client)) is None:
            return None
        path = self._path(client, digest)
        try:
            content = path.read_bytes()
        except OSError as error:
            reason = error.strerror or str(error)
            raise CheckpointError(
                f"{path}: what client {client} kept cannot be read ({reason}); restore it or start anew"
            ) from None
        if sha256(content)[:16] != digest:
            raise CheckpointError(f"{path}: what client {client} kept is damaged or cut; restore it or start a new run")
        return content

    def put(self, client: int, content: bytes) -> None:
        """Store what ``client`` keeps from now on.

        Raises:
            StorageError: the disk is full; what it kept before is untouched.
        """
        digest = sha256(content)[:16]
        if self.index.get(client) != digest:
            write_bytes(self._path(client, digest), content)
            self.index[client] = digest

    def missing(self) -> list[int]:
        """Return the clients whose files are not there."""
        return [client for client, digest in self.index.items() if not self._path(client, digest).is_file()]

    def prune(self, indices: Iterable[Index]) -> None:
        """Remove every file that none of ``indices`` names."""
        used = {self._path(client, digest).name for index in (*indices, self.index) for client, digest in index.items()}
        for path in self.folder.glob("client-*.safetensors"):
            if _NAME.fullmatch(path.name) and path.name not in used:
                path.unlink(missing_ok=True)

    def _path(self, client: int, digest: str) -> Path:
        return self.folder / f"client-{client}-{digest}.safetensors"
