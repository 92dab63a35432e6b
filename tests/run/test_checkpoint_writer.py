"""Checkpoints written in the background: their order, their failures, and that nothing they hold changes meanwhile."""

from __future__ import annotations

import threading

import pytest
import torch
from server_states import server_state

from edgefl.config import RunConfig
from edgefl.engine.inline import InlineEngine
from edgefl.errors import StorageError
from edgefl.registry import methods
from edgefl.run.checkpoint_writer import CheckpointWriter
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare
from edgefl.run.trained import Trained, accuracies
from edgefl.server import checkpoint
from edgefl.server.client_store import ClientStore
from edgefl.server.state import ServerState
from edgefl.util.compute import one_thread


def state(round_: int) -> ServerState:
    return server_state(round_, {"w": torch.full((4,), float(round_))}, clock_s=float(round_))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rounds.jsonl").write_bytes(b"")
    return RunFolder(tmp_path)


def rounds_on_disk(folder: RunFolder) -> list[int]:
    return sorted(int(path.name[6:12]) for path in (folder.path / "checkpoints").glob("round-*"))


def test_checkpoints_are_those_of_writing_each_at_once(folder, tmp_path):
    with ClientStore(tmp_path / "clients.sqlite") as store, CheckpointWriter(folder, store) as writer:
        for n in range(1, 6):
            writer.start(state(n))
    assert rounds_on_disk(folder) == [3, 4, 5]
    assert store.keep_from == 3
    restored = folder.restore()
    assert restored is not None
    assert restored.state.round == 5
    assert not restored.warnings


def test_one_is_in_flight_and_the_run_goes_on_meanwhile(folder, tmp_path, monkeypatch):
    may_write, active, most = threading.Event(), [0], [0]
    real = checkpoint.save

    def slow(at, *what):
        active[0] += 1
        most[0] = max(most[0], active[0])
        may_write.wait(60)
        found = real(at, *what)
        active[0] -= 1
        return found

    monkeypatch.setattr(checkpoint, "save", slow)
    store = ClientStore(tmp_path / "clients.sqlite")
    with CheckpointWriter(folder, store) as writer:
        writer.start(state(1))  # returns although nothing is written yet
        assert not (folder.path / "checkpoints").exists()
        assert store.keep_from is None  # nothing may be removed by what is not on the disk
        may_write.set()
        for n in (2, 3):
            writer.start(state(n))
    assert most == [1]
    assert rounds_on_disk(folder) == [1, 2, 3]


def test_what_clients_kept_is_only_removed_for_checkpoints_that_are_on_the_disk(folder, tmp_path):
    with ClientStore(tmp_path / "clients.sqlite") as store, CheckpointWriter(folder, store) as writer:
        store.keep_from = 0
        for n in range(1, 7):
            store.put(0, f"round {n}".encode())
            writer.wait()
            # Every checkpoint that is on the disk now, before the commit and after it, can be gone back to.
            chains = {n: store.commit(n)}
            writer.start(server_state(n, clients=chains[n]))
            for path in (folder.path / "checkpoints").glob("round-*"):
                try:
                    found = checkpoint.of_file(path)
                except FileNotFoundError:
                    continue  # the background thread has just removed it
                with ClientStore(tmp_path / "clients.sqlite") as reader:
                    reader.go_to(found.round, found.clients)
                    assert reader.get(0) == f"round {found.round}".encode()


def test_a_failure_is_told_once_at_the_next_round_or_at_the_end(folder, tmp_path, monkeypatch):
    def full(at, what, announce):
        raise StorageError(f"{at}: no space left on the device")

    monkeypatch.setattr(checkpoint, "save", full)
    store = ClientStore(tmp_path / "clients.sqlite")
    with pytest.raises(StorageError, match="no space left"), CheckpointWriter(folder, store) as writer:
        writer.start(state(1))
    with CheckpointWriter(folder, store) as writer:
        writer.start(state(1))
        with pytest.raises(StorageError, match="no space left"):
            writer.wait()
        writer.wait()


def interrupted(folder: RunFolder, store: ClientStore) -> None:
    with CheckpointWriter(folder, store) as writer:
        writer.start(state(1))
        raise KeyboardInterrupt


def test_what_ended_the_run_is_what_is_told(folder, tmp_path, monkeypatch):
    def full(at, what, announce):
        raise StorageError("full")

    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(KeyboardInterrupt):
        interrupted(folder, ClientStore(tmp_path / "clients.sqlite"))


def test_an_interruption_waits_for_the_checkpoint_in_flight(folder, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        interrupted(folder, ClientStore(tmp_path / "clients.sqlite"))
    assert rounds_on_disk(folder) == [1]


@pytest.mark.parametrize("method", sorted(methods.names()))
def test_no_method_changes_a_state_that_a_checkpoint_may_be_made_of(method, tmp_path):
    keys = {
        "method": method,
        "model": "cnn-tiny" if method in ("depthfl", "last-blocks") else "mlp",  # a perceptron has one block only
        "clients": 4,
        "per_round": 2,
        "rounds": 3,
        "data_share": 0.1,
        "local_epochs": 1,
        "conditions": "ideal",
    }
    with one_thread():
        run = prepare(RunConfig.of({**keys, "profile": "lab", "server_optimizer": "avg", "eval_samples": 20}))
        standing = run.start()
        with ClientStore(tmp_path / "clients.sqlite") as store:
            for number in (1, 2, 3):
                before = {**standing.model.tensors, **standing.memory, **{f"warm {n}": t for n, t in standing.model.warm.items()}}
                copies = {name: tensor.clone() for name, tensor in before.items()}
                run, earlier = run.advanced(standing)
                standing, _ = run.round(earlier, InlineEngine(run.clients), store)
                accuracies(Trained(run, standing, store))
                store.commit(number)
                assert all(torch.equal(before[name], copies[name]) for name in before)
                own = {tensor.data_ptr() for tensor in standing.model.tensors.values() if tensor.numel()}
                assert len(own) == sum(tensor.numel() > 0 for tensor in standing.model.tensors.values())
