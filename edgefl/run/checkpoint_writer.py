"""The checkpoints of a run, written in the background."""

import hashlib
import threading
from concurrent import futures
from types import TracebackType
from typing import Self

from edgefl.errors import StorageError
from edgefl.run.folder import RunFolder
from edgefl.server import checkpoint
from edgefl.server.client_store import ClientStore
from edgefl.server.state import ServerState
from edgefl.util.hashes import ROUNDS


class CheckpointWriter:
    """Writes the checkpoints of a run in a thread, one at a time, while the next round trains.

    A checkpoint's tensors must not change afterwards: every round makes a new state. After a kill, the newest checkpoint may be missing,
    and the run resumes from the one before. The client store stays consistent with the checkpoints on the disk, because the caller's
    thread commits and prunes it between two of them::

        writer.wait()                the checkpoint of round r − 1 is on the disk, older ones are deleted
        store.commit(r)              the store commits round r; it deletes nothing that a checkpoint on the disk needs
        writer.start(state)          the record of round r is synced, then its checkpoint is written

    As a context manager it waits for the last checkpoint, also after an interruption.
    """

    def __init__(self, folder: RunFolder, store: ClientStore) -> None:
        self._folder, self._store = folder, store
        self._rounds, self._hashed_bytes = hashlib.sha256(), 0
        self._thread = futures.ThreadPoolExecutor(1)
        self._saved: futures.Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.wait()
        except StorageError:
            if error is None:  # otherwise the user needs to see the error that ended the run
                raise
        finally:
            self._thread.shutdown()

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on the disk; then the store may delete what only older ones needed.

        Raises:
            StorageError: the checkpoint could not be written.
        """
        if self._saved is not None:
            futures.wait([self._saved])
            saved, self._saved = self._saved, None
            saved.result()
            self._store.keep_from = checkpoint.oldest_round(self._folder.path / "checkpoints")

    def start(self, state: ServerState) -> None:
        """Begin to write a checkpoint, after the one before."""
        self.wait()
        self._saved = self._thread.submit(self._save, state)

    def _save(self, state: ServerState) -> None:
        threading.current_thread().name = "checkpoints"  # in traces
        path = self._folder.path / ROUNDS
        with path.open("rb") as file:  # nobody appends: the next record waits for this checkpoint
            file.seek(self._hashed_bytes)
            self._rounds.update(added := file.read())
        self._hashed_bytes += len(added)
        self._folder.save(state, self._rounds.hexdigest())
