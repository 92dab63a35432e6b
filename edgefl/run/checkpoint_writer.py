"""Checkpoints that are written in the background."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from edgefl.errors import StorageError
from edgefl.run.folder import RunFolder
from edgefl.server.checkpoint import oldest_round
from edgefl.server.client_store import ClientStore
from edgefl.server.state import ServerState


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
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.wait()
        except StorageError:
            if error is None:  # otherwise the user needs to see the error that ended the run
                raise

    def wait(self) -> None:
        """Wait until the checkpoint in progress is on the disk; then the store may delete what only older ones needed.

        Raises:
            StorageError: the checkpoint could not be written.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed
        self._store.keep_from = oldest_round(self._folder.path / "checkpoints")

    def start(self, state: ServerState) -> None:
        """Begin to write a checkpoint, after the one before."""
        self.wait()
        self._thread = threading.Thread(target=self._save, args=(state,), name="checkpoints")
        self._thread.start()

    def _save(self, state: ServerState) -> None:
        try:
            self._folder.save(state)
        except BaseException as error:  # noqa: BLE001 - wait() raises it in the thread of the run
            self._failed = error
