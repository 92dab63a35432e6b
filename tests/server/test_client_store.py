"""What clients keep between rounds: versions, the chain, damage of every kind, kills, full disks, and what is cleared away."""

from __future__ import annotations

import hashlib
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl.errors import CheckpointError, InputError, StorageError
from edgefl.server.client_store import ClientStore

KEPT = {1: {3: b"three", 41: b"forty-one"}, 2: {3: b"three again"}, 3: {}, 4: {7: b"seven", 41: b"forty-one again"}}


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "clients.sqlite"


@pytest.fixture
def store(path):
    with ClientStore(path) as store:
        yield store


def played(path: Path, rounds=KEPT) -> list[str]:
    """Return the chain after every round, the one before the first included."""
    with ClientStore(path) as store:
        store.keep_from = 0
        chains = [""]
        for round_, kept in rounds.items():
            for client, content in kept.items():
                store.put(client, content)
            chains.append(store.commit(round_))
    return chains


def rows(path: Path, what="key, round") -> list[tuple]:
    connection = sqlite3.connect(path)
    found = connection.execute(f"SELECT {what} FROM kept ORDER BY key, round").fetchall()
    connection.close()
    return found


def python(code: str, path: Path) -> int:
    """Return how a process ends that runs ``code``, which finds ``path`` and a ``store`` at it."""
    start = "import os, resource, signal, sys; from pathlib import Path; from edgefl.server.client_store import ClientStore\n"
    start += "path = Path(sys.argv[1]); store = ClientStore(path)\n"
    return subprocess.run([sys.executable, "-c", start + code, str(path)], check=False).returncode


def test_a_client_finds_what_it_kept_last(store):
    store.put(3, b"three")
    store.put(41, b"forty-one")
    store.commit(1)
    store.put(3, b"three again")
    assert (store.get(3), store.get(41), store.get(5)) == (b"three again", b"forty-one", None)
    store.put(3, b"once more")
    store.commit(2)
    assert store.get(3) == b"once more"
    assert [client in store for client in (3, 41, 5, 4)] == [True, True, False, False]


def test_methods_that_keep_nothing_leave_no_file(store, path):
    assert store.get(0) is None
    assert store.blobs() == []
    assert store.commit(1) == ""
    store.go_to(1, "")
    store.drop_blobs([])
    assert not path.parent.joinpath(path.name).exists()
    assert list(path.parent.iterdir()) == []


def test_the_chain_is_what_its_definition_says(path):
    def link(before: str, round_: int, **pairs: bytes) -> str:
        lines = [f"{key.replace('_', '/')} {hashlib.sha256(content).hexdigest()}\n" for key, content in sorted(pairs.items())]
        return hashlib.sha256(f"{before}\n{round_}\n{''.join(lines)}".encode()).hexdigest()

    one = link("", 1, client_3=b"three", client_41=b"forty-one")
    two = link(one, 2, client_3=b"three again")
    four = link(two, 4, client_7=b"seven", client_41=b"forty-one again")
    assert played(path) == ["", one, two, two, four]


def test_the_order_within_a_round_and_what_is_written_over_do_not_matter(tmp_path):
    rounds = {1: {41: b"forty-one", 3: b"three"}}
    with ClientStore(tmp_path / "a.sqlite") as store:
        for client, content in ((3, b"first"), (41, b"forty-one"), (3, b"three")):
            store.put(client, content)
        assert store.commit(1) == played(tmp_path / "b.sqlite", rounds)[1]


@pytest.mark.parametrize("round_", [0, 1, 2, 3, 4])
def test_going_back_finds_the_versions_of_that_round(store, path, round_):
    expected: dict[int, bytes] = {}
    chains = played(path)
    for number in range(1, round_ + 1):
        expected |= KEPT[number]
    store.go_to(round_, chains[round_])
    assert {client: store.get(client) for client in (3, 7, 41)} == {client: expected.get(client) for client in (3, 7, 41)}
    assert [client in store for client in (3, 7, 41)] == [client in expected for client in (3, 7, 41)]


def test_rounds_played_again_leave_the_same_file_as_if_never_stopped(store, path):
    chains = played(path)
    before = rows(path, "*")
    store.keep_from = 0
    store.go_to(2, chains[2])
    assert store.commit(3) == chains[3]  # nothing was kept in it, and still what came later is gone now
    assert [row for row in rows(path) if row[1] > 3] == []
    for client, content in KEPT[4].items():
        store.put(client, content)
    assert store.commit(4) == chains[4]
    assert rows(path, "*") == before
    store.put(1, b"late")
    with pytest.raises(ValueError, match="round 4 is committed; what was put since belongs to a later one"):
        store.commit(4)


def test_only_versions_that_a_checkpoint_needs_stay(store, path):
    store.keep_from = 0
    for round_ in range(1, 7):
        store.put(1, b"%d" % round_)
        if round_ in (2, 3):
            store.put(2, b"%d" % round_)
        store.commit(round_)
        store.keep_from = max(round_ - 2, 1)
    # The commit of round 6 came when the oldest checkpoint was that of round 3.
    assert rows(path) == [("client/1", 3), ("client/1", 4), ("client/1", 5), ("client/1", 6), ("client/2", 3)]
    store.keep_from = None
    store.put(9, b"nine")
    store.commit(7)
    assert rows(path) == [("client/1", 6), ("client/2", 3), ("client/9", 7)]


def test_the_file_does_not_grow_with_the_rounds(store, path):
    sizes = []
    for round_ in range(1, 41):
        for client in range(20):
            store.put(client, bytes([round_]) * 20_000)
        store.commit(round_)
        store.keep_from = max(round_ - 2, 0)
        sizes.append(path.stat().st_size)
    assert sizes[-1] == sizes[9] < 6 * 20 * 32_768


def test_blobs_have_versions_like_clients(store, path):
    store.keep_from = 0
    for round_, names in enumerate(("ab", "bc", "c", ""), 1):
        for name in names:
            if name not in store.blobs():
                store.keep_blob(name, name.encode() * round_)
        store.drop_blobs(names)
        assert store.blobs() == list(names)
        chain = store.commit(round_)
        if round_ == 2:
            after_two = chain
    store.go_to(2, after_two)
    assert (store.blobs(), store.blob("b"), store.blob("c")) == (["b", "c"], b"b", b"cc")
    with pytest.raises(CheckpointError, match=r"clients\.sqlite: there is no blob a; restore the file or start a new run"):
        store.blob("a")
    store.keep_from = 3
    store.drop_blobs(["c"])
    store.commit(3)
    store.drop_blobs([])
    assert store.commit(4) == chain
    assert rows(path) == [("blob/c", 2), ("blob/c", 4)]
    store.keep_from = 4
    store.put(1, b"one")
    store.commit(5)
    assert rows(path) == [("client/1", 5)]


def test_what_was_not_committed_is_gone_and_no_second_file_is_left(store, path):
    chains = played(path)
    store.go_to(4, chains[4])
    store.put(3, b"lost")
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}-journal"}
    store.close()
    assert store.get(3) == b"three again"
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_store_that_is_forgotten_closes_its_file(path):
    store = ClientStore(path)
    store.put(3, b"three")
    connection = store._connection
    del store
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda path: path.unlink(),
            "the store of clients' tensors up to round 4 is missing; restore the file or start a new run",
        ),
        (lambda path: path.write_bytes(b""), "the store of clients' tensors up to round 4 is missing"),
        (lambda path: path.write_bytes(b"not a database, but long enough to be read " * 99), "file is not a database"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "cut: 81919 of 81920 bytes"),
        (lambda path: path.write_bytes(path.read_bytes()[:40_000]), "malformed"),
        (lambda path: path.write_bytes(path.read_bytes()[:10]), "not SQLite's"),
        (lambda path: changed(path, b"client/41", b"client/42"), "the store of clients' tensors is damaged"),
        (lambda path: other(path, "CREATE TABLE a (b)"), "is an SQLite file of another program"),
        (lambda path: signed(path, "user_version = 9"), "its format is 9, expected 1: another version of edgefl wrote it"),
        (
            lambda path: (path.unlink(), played(path, {**KEPT, 1: {3: b"tree"}})),
            "does not belong to the checkpoint after round 4",
        ),
        (lambda path: (path.unlink(), played(path, {1: KEPT[1]})), "does not belong to the checkpoint after round 4"),
    ],
)
def test_a_file_that_is_not_the_checkpoints_is_refused(store, path, damage, message):
    chains = played(path)
    damage(path)
    with pytest.raises(CheckpointError, match=f"clients.sqlite: .*{message}"):
        store.go_to(4, chains[4])


def changed(path: Path, before: bytes, after: bytes, which: int = 0) -> None:
    parts = path.read_bytes().split(before)
    path.write_bytes(before.join(parts[: which + 1]) + after + before.join(parts[which + 1 :]))


def other(path: Path, statement: str) -> None:
    path.unlink()
    signed(path, statement)


def signed(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement if " TABLE " in statement else f"PRAGMA {statement}")
    connection.commit()
    connection.close()


def test_a_changed_byte_of_what_is_kept_names_the_client(store, path):
    chains = played(path)
    changed(path, b"three again", b"tree, again")
    store.go_to(4, chains[4])
    assert store.get(41) == b"forty-one again"
    with pytest.raises(
        CheckpointError, match=r"clients\.sqlite: what client 3 kept is damaged; restore the file or start a new run"
    ):
        store.get(3)


def test_a_foreign_file_names_the_client_too(store, path):
    path.write_text("long enough to be read as the header of a database " * 9)
    for _ in range(2):
        with pytest.raises(
            CheckpointError, match=r"clients\.sqlite: what client 3 kept cannot be read \(file is not a database\)"
        ):
            store.get(3)
    with pytest.raises(CheckpointError, match="file is not a database"):
        store.put(3, b"three")


def test_no_changed_byte_anywhere_is_taken_for_something_else(path, tmp_path):
    chains = played(path)
    whole = path.read_bytes()
    used = [place for place, byte in enumerate(whole) if byte]
    refused = held = 0
    for place in used[::7]:
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        try:
            with ClientStore(copy) as store:
                store.go_to(4, chains[4])
                found = {client: store.get(client) for client in (3, 7, 41)}
        except InputError as error:
            refused += str(error).startswith(f"{copy}: ")
        else:
            held += found == KEPT[1] | KEPT[2] | KEPT[4]
    assert refused + held == len(used[::7])
    assert refused > held > 0


def test_a_kill_in_the_middle_of_a_round_loses_that_round_only(store, path):
    # More than the cache holds, so that a part is in the file already; the journal takes it back.
    code = """
store.put(3, b"three")
store.commit(1)
for client in range(2_400):
    store.put(client, bytes([client % 256]) * 40_000)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert python(code, path) == -signal.SIGKILL
    assert path.stat().st_size > 10_000_000
    assert path.with_name(f"{path.name}-journal").exists()
    store.go_to(1, played(path.with_name("same.sqlite"), {1: {3: b"three"}})[1])
    assert [store.get(client) for client in (0, 3, 599)] == [None, b"three", None]
    store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, "same.sqlite"]


@pytest.mark.parametrize("puts", [1, 2_400])
def test_a_kill_in_the_very_first_round_leaves_an_empty_store(store, path, puts):
    code = f"for c in range({puts}):\n store.put(c, bytes(40_000))\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert python(code, path) == -signal.SIGKILL
    store.go_to(0, "")
    assert store.get(0) is None
    store.put(0, b"zero")
    assert store.commit(1) == played(path.with_name("same.sqlite"), {1: {0: b"zero"}})[1]


FULL = {
    "in the middle": "for client in range(2_400):\n store.put(client, os.urandom(40_000))",
    "at the commit": "store.put(1, os.urandom(4_000_000))\nstore.commit(2)",
}


@pytest.mark.parametrize("moment", FULL)
def test_a_disk_without_room_is_a_storage_error_and_loses_that_round_only(store, path, moment):
    steps = FULL[moment].replace("\n", "\n    ")
    code = f"""
from edgefl.errors import StorageError
store.put(3, b"three")
store.commit(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    {steps}
except StorageError as error:
    assert str(error).startswith(f"{{path}}: cannot be read or written (disk I/O error); free some space"), error
    try:
        store.commit(2)
    except Exception as error:
        assert "closed" in str(error), error
        raise SystemExit(7)
"""
    assert python(code, path) == 7
    store.go_to(1, played(path.with_name("same.sqlite"), {1: {3: b"three"}})[1])
    assert store.get(3) == b"three"
    assert (store.get(0), store.get(1)) == (None, None)


def test_a_full_disk_says_what_to_do(store):
    store.put(3, b"three")
    store.commit(1)
    store._connection.execute("PRAGMA max_page_count = 8")
    with pytest.raises(StorageError, match=r"clients\.sqlite: no space left on the device; free some, or give another folder"):
        store.put(3, bytes(400_000))


def test_two_runs_cannot_write_to_one_file(store, path):
    played(path)
    store.put(1, b"one")
    second = ClientStore(path)
    second.get(1)
    second._connection.execute("PRAGMA busy_timeout = 1")
    with pytest.raises(StorageError, match="another process is writing to it; wait for its end, or give another folder"):
        second.put(1, b"one")


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="cannot be written"):
        ClientStore(tmp_path / "file" / "clients.sqlite").put(1, b"one")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be opened or written; give another folder"):
        ClientStore(tmp_path / "folder").put(1, b"one")


def test_the_settings_hold_that_a_commit_survives_a_power_cut(store, path):
    store.put(1, b"one")
    store.commit(1)
    values = [store._connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert values == ["delete", 3]


def test_the_copy_of_a_finished_file_is_read_as_it_is(path, tmp_path):
    chains = played(path)
    (tmp_path / "elsewhere").mkdir()
    copy = Path(shutil.copy(path, tmp_path / "elsewhere" / "clients.sqlite"))
    copy.chmod(0o444)
    content = copy.read_bytes()
    with ClientStore(copy) as store:
        store.go_to(4, chains[4])
        assert store.get(7) == b"seven"
    assert copy.read_bytes() == content
    assert [file.name for file in copy.parent.iterdir()] == [copy.name]
