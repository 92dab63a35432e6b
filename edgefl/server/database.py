"""SQLite files of edgefl: how they are opened and recognised, and what their errors mean to a user.

The journal is a rollback journal. Unlike a write-ahead log it needs no further files, so a finished run can be copied as it is and read
from a read-only folder. There are few large transactions, all of one process. With ``synchronous = EXTRA`` a commit that has returned
survives a power cut, including the removal of the journal from its folder.
"""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from edgefl.errors import CheckpointError, StorageError
from edgefl.util.claims import make_folder
from edgefl.util.files import storage_errors

REMEDY = "restore the file or start a new run"
_APPLICATION = 0x4544_4746
"""In the file's header: "EDGF"."""
_SETTINGS = {
    "page_size": 16384,  # rows are tens of kilobytes
    "cache_size": -65536,  # KiB: of a larger transaction, the rest goes to disk before the commit, after a wait for the journal each time
    "journal_mode": "DELETE",
    "synchronous": "EXTRA",
    "secure_delete": "OFF",
    "temp_store": "MEMORY",
}
_STORAGE = {
    sqlite3.SQLITE_FULL: "no space left on the device; free some, or give another folder",
    sqlite3.SQLITE_IOERR: "cannot be read or written (disk I/O error); free some space, or give another folder",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened or written; give another folder",
    sqlite3.SQLITE_READONLY: "cannot be written (read-only); give another folder",
    sqlite3.SQLITE_PERM: "cannot be written (not permitted); give another folder",
    sqlite3.SQLITE_BUSY: "another process is writing to it; wait for its end, or give another folder",
    sqlite3.SQLITE_TOOBIG: "a row is larger than SQLite allows (about 1 GB)",
}


def connect(path: Path) -> sqlite3.Connection:
    """Open the file at ``path``, empty where there is none, without Python's own transactions.

    Raises:
        sqlite3.Error: SQLite cannot open the file; call this within :func:`errors`.
        StorageError: its folder cannot be made.
    """
    with storage_errors(path):
        make_folder(path.parent)
    # SQLite takes turns by itself where several threads call it.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        for name, value in _SETTINGS.items():
            connection.execute(f"PRAGMA {name} = {value}")
    except BaseException:
        connection.close()
        raise
    return connection


def has_tables(connection: sqlite3.Connection, path: Path, version: int) -> bool:
    """Return whether :func:`create` was committed. In an empty file, the first commit never happened.

    Raises:
        CheckpointError: the file is not edgefl's, or of another version of its tables.
    """
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (stored,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables and not application:
        return False
    if application != _APPLICATION:
        raise CheckpointError(f"{path}: is an SQLite file of another program; {REMEDY}")
    if stored != version:
        raise CheckpointError(f"{path}: its format is {stored}, expected {version}: another version of edgefl wrote it; {REMEDY}")
    return True


def create(connection: sqlite3.Connection, tables: tuple[str, ...], version: int) -> None:
    """Make the tables and sign the file, as part of the transaction that is open."""
    for statement in (*tables, f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {version}"):
        connection.execute(statement)


def problem(connection: sqlite3.Connection, path: Path) -> str:
    """Return what is wrong with the file, or nothing. The whole file is read, but the content of rows is not verified."""
    (report,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if report != "ok":
        return " ".join(report.split())
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_bytes,) = connection.execute("PRAGMA page_size").fetchone()
    size_bytes = path.stat().st_size
    # What is cut from the last page is zeros to SQLite.
    return f"cut: {size_bytes} of {pages * page_bytes} bytes" if size_bytes < pages * page_bytes else ""


@contextlib.contextmanager
def errors(path: Path, what: str) -> Iterator[None]:
    """Turn SQLite's errors into errors that name ``path`` and ``what`` was read.

    Raises:
        StorageError: the disk is full or fails; another process writes.
        CheckpointError: the file is damaged or not an SQLite file.
    """
    try:
        yield
    except sqlite3.ProgrammingError:
        raise
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of a message that quotes damaged names
        # Extended codes say more in their upper bits. Python's own errors, such as of text that is not UTF-8, have none.
        if reason := _STORAGE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF):
            raise StorageError(f"{path}: {reason}") from error
        problem = f"cannot be read ({error}): the file is damaged, cut or not SQLite's"
        raise CheckpointError(f"{path}: {what} {problem}; {REMEDY}") from None
