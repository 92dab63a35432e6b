"""The client store: one SQLite file per run with what clients store between rounds. A row is one version of one client's content.

The simulator replaces the clients, so it also needs their storage. Nothing in the store is part of a payload. Nothing stays in memory: a
row is read when its client takes part. A checkpoint contains one hash of the store, for any number of clients.
"""

import contextlib
import hashlib
import sqlite3
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from edgefl.errors import CheckpointError
from edgefl.server import database
from edgefl.server.database import REMEDY
from edgefl.util.claims import check_claims
from edgefl.util.files import sha256

_VERSION = 1
_TABLES = (
    "CREATE TABLE kept (key TEXT, round INTEGER, digest TEXT NOT NULL, content BLOB, PRIMARY KEY (key, round))",
    "CREATE INDEX kept_in_round ON kept (round, key)",
    "CREATE TABLE chain (round INTEGER PRIMARY KEY, value TEXT NOT NULL)",
)
# The order of the join is fixed: first the clients of the few rounds since the last time, then their earlier versions.
_SUPERSEDED = """DELETE FROM kept WHERE rowid IN (
    SELECT old.rowid FROM kept AS new CROSS JOIN kept AS old
    WHERE new.round > ? AND new.round <= ? AND old.key = new.key AND old.round < new.round)"""
_NEWEST_BLOBS = """SELECT key, digest, max(round) FROM kept
    WHERE key >= ? AND key < ? AND round <= ? GROUP BY key ORDER BY key"""
_BLOB, _AFTER_BLOBS = "blob/", "blob0"  # "0" is the character after "/"
_DROPPED = "dropped"
"""The digest of a row that marks a blob as dropped from this round on."""


class ClientStore:
    """Client → its newest content, and named blobs; both in versions by round.

    Everything put between two calls of :meth:`commit` is one transaction, and belongs to the round after the last commit. The version
    of the checkpoint after round r is the row of the largest round ≤ r. Every commit adds a link to a chain of hashes. The checkpoint
    contains the newest link, which proves that store and checkpoint belong together.

    Args:
        path: the file. The first :meth:`put` creates it. A run with clients that store nothing has none.

    Attributes:
        round: the last round that was committed.
        chain: SHA-256 over the link before, the round, and its sorted keys and digests; empty while the store is empty.
        keep_from: the oldest round that a run may resume from: a commit deletes versions that only earlier rounds need. None: there are
            no checkpoints, and only the newest versions stay.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, ClientStore(Path(folder) / "clients.sqlite") as store:
        ...     store.put(3, b"weights of its own")
        ...     store.get(3), store.get(4), 3 in store, 4 in store
        (b'weights of its own', None, True, False)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.round = 0
        self.chain = ""
        self.keep_from: int | None = None
        self._connection: sqlite3.Connection | None = None
        self._has_tables = self._has_later_rounds = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and discard what was put since the last commit. The next access opens it again."""
        if self._connection is not None:
            self._release()
            self._connection = None

    def go_to(self, round_: int, chain: str) -> None:
        """Go back to the moment after ``round_``. Rows of later rounds are hidden, and deleted with the next commit.

        The whole file is read and verified, about 2 GB in a second.

        Raises:
            CheckpointError: the file is missing, damaged or not the one that belongs to the checkpoint with this ``chain``.
        """
        self.close()
        self.round, self.chain, self._has_later_rounds = round_, chain, False
        connection = self._reader()
        if connection is None:
            if chain:
                raise CheckpointError(f"{self.path}: the store of clients' tensors up to round {round_} is missing; {REMEDY}")
            return
        with self._errors():
            problem = database.problem(connection, self.path)
            links = "SELECT value FROM chain WHERE round <= ? ORDER BY round DESC LIMIT 1"
            (link,) = connection.execute(links, (round_,)).fetchone() or ("",)
            (last,) = connection.execute("SELECT max(round) FROM chain").fetchone()
        if problem:
            raise CheckpointError(f"{self.path}: the store of clients' tensors is damaged ({problem}); {REMEDY}")
        if link != chain:
            message = f"the store of clients' tensors does not belong to the checkpoint after round {round_}, but to another run or moment"
            raise CheckpointError(f"{self.path}: {message}; {REMEDY}")
        self._has_later_rounds = last is not None and last > round_

    def get(self, client: int) -> bytes | None:
        """Return the newest content of ``client``, or None before its first round.

        Raises:
            CheckpointError: it is damaged; names file and client.
        """
        return self._content(_client(client), f"what client {client} kept")

    def put(self, client: int, content: bytes) -> None:
        """Store the new content of ``client``.

        Raises:
            StorageError: the disk is full; what was committed before is untouched.
        """
        self._put(_client(client), content)

    def __contains__(self, client: int) -> bool:
        """Return whether ``client`` has stored anything."""
        return self._row("round", _client(client), f"what client {client} kept") is not None

    def keep_blob(self, name: str, content: bytes) -> None:
        """Store the blob ``name``, in versions like the content of clients, with the errors of :meth:`put`."""
        self._put(_BLOB + name, content)

    def blob(self, name: str) -> bytes:
        """Return the blob ``name``.

        Raises:
            CheckpointError: it is damaged, was dropped or was never stored; names file and blob.
        """
        content = self._content(_BLOB + name, f"the blob {name}")
        if content is None:
            raise CheckpointError(f"{self.path}: there is no blob {name}; {REMEDY}")
        return content

    def blobs(self) -> list[str]:
        """Return the names of the blobs, sorted."""
        if (connection := self._reader()) is None:
            return []
        with self._errors():
            rows = connection.execute(_NEWEST_BLOBS, (_BLOB, _AFTER_BLOBS, self._visible)).fetchall()
        return [key.removeprefix(_BLOB) for key, digest, _ in rows if digest != _DROPPED]

    def drop_blobs(self, wanted: Iterable[str]) -> None:
        """Drop all blobs except ``wanted``; a run that goes back to an earlier round finds them again."""
        for name in sorted({*self.blobs()} - {*wanted}):
            self._put(_BLOB + name, None)

    def commit(self, round_: int) -> str:
        """End ``round_`` and return the chain. Everything put since the last commit is on the disk when this returns.

        Raises:
            StorageError: the disk is full; what was committed before is untouched.
            ValueError: something was put since ``round_`` was committed.
        """
        pending = self._connection is not None and self._connection.in_transaction
        if pending and round_ <= self.round:
            raise ValueError(f"round {round_} is committed; what was put since belongs to a later one than {self.round}")
        if pending or self._has_later_rounds:
            with self._writer() as connection:
                chain = self._link(connection)
                self._prune(connection, round_ if self.keep_from is None else self.keep_from)
                connection.execute("COMMIT")
            self.chain = chain
        self.round = max(self.round, round_)
        return self.chain

    def _link(self, connection: sqlite3.Connection) -> str:
        """Store and return the chain's next link; return the last one if the round stored nothing."""
        number = self.round + 1
        link = hashlib.sha256(f"{self.chain}\n{number}\n".encode())
        unchanged = link.digest()
        for row in connection.execute("SELECT key, digest FROM kept WHERE round = ? ORDER BY key", (number,)):
            link.update("{} {}\n".format(*row).encode())
        if link.digest() == unchanged:
            return self.chain
        connection.execute("INSERT INTO chain VALUES (?, ?)", (number, link.hexdigest()))
        return link.hexdigest()

    def _prune(self, connection: sqlite3.Connection, oldest: int) -> None:
        """Delete the versions before those of round ``oldest``. The work grows only with what was stored since the last time."""
        # Versions that rounds up to the chain's first link superseded were deleted with the links before it.
        (done,) = connection.execute("SELECT min(round) FROM chain").fetchone()
        connection.execute(_SUPERSEDED, (done, oldest))
        dropped = "DELETE FROM kept WHERE key >= ? AND key < ? AND round <= ? AND content IS NULL"
        connection.execute(dropped, (_BLOB, _AFTER_BLOBS, oldest))
        connection.execute("DELETE FROM chain WHERE round < (SELECT max(round) FROM chain WHERE round <= ?)", (oldest,))

    def _put(self, key: str, content: bytes | None) -> None:
        digest = _DROPPED if content is None else sha256(content)
        with self._writer() as connection:
            connection.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?)", (key, self.round + 1, digest, content))

    def _content(self, key: str, what: str) -> bytes | None:
        row = self._row("digest, content", key, what)
        if row is None or row[0] == _DROPPED:
            return None
        digest, content = row
        if not isinstance(content, bytes) or sha256(content) != digest:
            raise CheckpointError(f"{self.path}: {what} is damaged; {REMEDY}")
        return content

    def _row(self, columns: str, key: str, what: str) -> tuple[Any, ...] | None:
        if (connection := self._reader(what)) is None:
            return None
        query = f"SELECT {columns} FROM kept WHERE key = ? AND round <= ? ORDER BY round DESC LIMIT 1"  # noqa: S608 - columns of this file
        with self._errors(what):
            row: tuple[Any, ...] | None = connection.execute(query, (key, self._visible)).fetchone()
        return row

    @property
    def _visible(self) -> int:
        """The newest visible round: the present one, once it has put something."""
        return self.round + (self._connection is not None and self._connection.in_transaction)

    def _reader(self, what: str = "the store of clients' tensors") -> sqlite3.Connection | None:
        """Return the open file, or None if nothing was ever stored."""
        if self._connection is None and self.path.is_file():
            self._open(what)
        return self._connection if self._has_tables else None

    def _open(self, what: str) -> sqlite3.Connection:
        with self._errors(what), contextlib.ExitStack() as failed:
            connection = database.connect(self.path)
            failed.callback(connection.close)
            self._has_tables = database.has_tables(connection, self.path, _VERSION)
            failed.pop_all()
        self._connection = connection
        self._release = weakref.finalize(self, connection.close)  # also if the store is never closed
        return connection

    @contextlib.contextmanager
    def _writer(self) -> Iterator[sqlite3.Connection]:
        """Yield the file in a transaction. An error undoes the whole round and closes the file."""
        check_claims(self.path)
        connection = self._connection or self._open("the store of clients' tensors")
        try:
            with self._errors():
                if not connection.in_transaction:
                    connection.execute("BEGIN IMMEDIATE")
                    if not self._has_tables:
                        database.create(connection, _TABLES, _VERSION)
                        self._has_tables = True
                    for statement in ("DELETE FROM kept WHERE round > ?", "DELETE FROM chain WHERE round > ?"):
                        connection.execute(statement, (self.round,))
                    self._has_later_rounds = False
                yield connection
        except BaseException:
            self._release()
            raise

    def _errors(self, what: str = "the store of clients' tensors") -> contextlib.AbstractContextManager[None]:
        return database.errors(self.path, what)


def _client(client: int) -> str:
    return f"client/{client}"
