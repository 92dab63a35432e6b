"""What clients keep between rounds: versions, damage, and what is cleared away."""

from __future__ import annotations

import pytest

from edgefl.errors import CheckpointError
from edgefl.server.clients import ClientStore


@pytest.fixture
def store(tmp_path):
    store = ClientStore(tmp_path / "clients")
    store.put(3, b"three")
    store.put(41, b"forty-one")
    return store


def test_a_client_finds_what_it_kept_last(store):
    store.put(3, b"three again")
    assert store.get(3) == b"three again"
    assert store.get(41) == b"forty-one"
    assert store.get(5) is None


def test_an_older_index_finds_the_older_version(store):
    before = dict(store.index)
    store.put(3, b"three again")
    assert ClientStore(store.folder, before).get(3) == b"three"


def test_pruning_keeps_what_an_index_names(store):
    before = dict(store.index)
    store.put(3, b"two")
    store.put(3, b"one")
    store.prune([before])
    assert len(list(store.folder.iterdir())) == 3
    store.prune([])
    assert sorted(path.name.split("-")[1] for path in store.folder.iterdir()) == ["3", "41"]
    assert store.get(3) == b"one"


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damage_names_the_client(store, damage):
    (path,) = store.folder.glob("client-41-*")
    if damage == "gone":
        path.unlink()
        assert store.missing() == [41]
    else:
        path.write_bytes(b"forty" if damage == "cut" else b"forty-two")
    with pytest.raises(CheckpointError, match="client 41 kept (is damaged or cut|cannot be read)"):
        store.get(41)
    assert store.get(3) == b"three"
