"""What a run wrote cannot be edited, damaged or written by two processes without a message that names the file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from runs import lines_of, stopped_after

from edgefl import RunConfig, load_run, simulate
from edgefl.errors import CheckpointError, ConfigError, MovedError
from edgefl.run import folder as run_folder
from edgefl.run.export import export
from edgefl.run.folder import resumed_config
from edgefl.run.verify import verify_run
from edgefl.util.files import module_command, shared
from edgefl.util.lock import only_writer

CONFIG = RunConfig(rounds=2, clients=3, per_round=2, local_epochs=1, batch_size=32, tiers=(0.5,), seed=3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return simulate(CONFIG, tmp_path_factory.mktemp("run") / "run").folder


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    return stopped_after(CONFIG, tmp_path_factory.mktemp("stopped") / "run", 1)


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def edited(path, before: bytes, after: bytes) -> None:
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))


def test_a_run_that_nobody_touched_passes(finished):
    assert verify_run(finished).files == 4


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("config.toml", b"seed = 3", b"seed = 4"),
        ("summary.json", b'"rounds": 2', b'"rounds": 3'),
        ("rounds.jsonl", b'"round": 2', b'"round": 3'),
    ],
)
def test_an_edited_file_is_named(copied, name, before, after):
    edited(copied / name, before, after)
    with pytest.raises(CheckpointError, match=f"{name}.*edited or damaged"):
        verify_run(copied)


def test_a_checkpoint_that_is_gone_is_missed_unless_all_are(copied):
    oldest, *_ = sorted((copied / "checkpoints").iterdir())
    oldest.unlink()
    with pytest.raises(CheckpointError, match=r"checkpoints: the checkpoint of round 1 is missing; restore it, or delete all"):
        verify_run(copied)
    shutil.rmtree(copied / "checkpoints")
    assert verify_run(copied).checkpoints == 0


def test_zeros_in_the_model_are_neither_exported_nor_verified(copied, tmp_path):
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-4096:] = bytes(4096)
    (copied / "model.safetensors").write_bytes(content)
    for reader in (verify_run, lambda run: export(run, tmp_path / "out")):
        with pytest.raises(CheckpointError, match=r"model.safetensors.*edited or damaged"):
            reader(copied)
    assert not (tmp_path / "out").exists()


def test_an_edited_configuration_or_record_does_not_go_on(tmp_path):
    stopped = stopped_after(CONFIG, tmp_path / "run", 1)
    shutil.copytree(stopped, tmp_path / "other")
    edited(stopped / "config.toml", b"lr = ", b"lr = 1")
    with pytest.raises(CheckpointError, match=r"config.toml.*edited or damaged"):
        resumed_config(stopped, {})
    edited(tmp_path / "other" / "rounds.jsonl", b'"round": 1', b'"round":  1')
    with pytest.raises(CheckpointError, match=r"rounds.jsonl.*up to 1.*edited or damaged"):
        simulate(CONFIG, tmp_path / "other", resume=True)


def test_a_run_without_hashes_is_not_continued(interrupted, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    (folder / "hashes.json").unlink()
    edited(folder / "rounds.jsonl", b'"round": 1', b'"round":  1')
    with pytest.raises(CheckpointError, match=r"run: holds no hashes.json, which shows that its files are of one run"):
        simulate(CONFIG, folder, resume=True)


def test_checkpoints_of_another_run_are_not_continued(interrupted, copied, tmp_path):
    folder = shutil.copytree(interrupted, tmp_path / "stopped")
    other = stopped_after(CONFIG.model_copy(update={"seed": 4}), tmp_path / "other", 1)
    for path in (folder / "checkpoints", copied / "checkpoints"):
        shutil.rmtree(path)
        shutil.copytree(other / "checkpoints", path)
    with pytest.raises(
        CheckpointError, match=r"checkpoints: no checkpoint is whole: round-000001-\w+.safetensors: it is of another run"
    ):
        simulate(CONFIG, folder, resume=True)
    second, *_ = sorted((other / "checkpoints").iterdir())
    shutil.copy(second, copied / "checkpoints" / second.name.replace("000001", "000002"))
    with pytest.raises(CheckpointError, match=r"round-000002-\w+.safetensors: it is of another run; delete it"):
        verify_run(copied)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: bytes(len(content)),
        lambda content: b"\xff\xfe" + content,
        lambda content: b"[" * 100_000 + content,
        lambda content: b"[]\n" + content,
        lambda content: b'{"round": 1}\n',
        lambda content: content.replace(b'"clients"', b'"clientt"', 1),
        lambda content: content.replace(b"\n", b"\n\n", 1),
        lambda content: content + content,
    ],
    ids=["empty", "zeros", "no text", "deep", "a list", "bare", "a key", "an empty line", "twice"],
)
def test_damaged_records_are_one_message_or_come_to_the_same_run(damage, finished, interrupted, tmp_path, called):
    folder = shutil.copytree(interrupted, tmp_path / "run")
    path = folder / "rounds.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    status, _, errors = called("simulate", "--resume", "--out", str(folder))
    if status:
        assert status in (1, 2)
        assert "rounds.jsonl" in errors
        assert errors.count("Error: ") == 1
        assert "Traceback" not in errors
    else:
        assert lines_of(folder) == lines_of(finished)


def test_results_of_a_changed_record_are_not_shown(copied):
    edited(copied / "rounds.jsonl", b'"round": 2', b'"round": 1')
    with pytest.raises(CheckpointError, match=r"rounds.jsonl"):
        load_run(copied).rounds  # noqa: B018 - reads the file


def test_a_run_killed_between_a_hash_and_its_file_goes_on(tmp_path, monkeypatch):
    """Hashes are written first, so each kill leaves a folder that passes: of the configuration, of a round, of the summary."""
    folder = tmp_path / "run"
    real = run_folder.write_bytes

    def killed_at(name):
        def write(path, content):
            if path.name == name:
                raise KeyboardInterrupt
            real(path, content)

        return write

    for name in ("config.toml", "model.safetensors", "summary.json"):
        monkeypatch.setattr(run_folder, "write_bytes", killed_at(name))
        with pytest.raises(KeyboardInterrupt):
            simulate(CONFIG, folder, resume=True)
    monkeypatch.undo()
    simulate(CONFIG, folder, resume=True)
    assert verify_run(folder).files == 4


def test_a_second_writer_is_told_who_holds_the_folder(tmp_path):
    stopped = stopped_after(CONFIG, tmp_path / "run", 1)
    command, environment = module_command("edgefl.cli.main", "simulate", "--resume", "--out", str(stopped))
    before = sorted(path.name for path in stopped.iterdir())
    with only_writer(stopped):
        second = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 2
    assert "is writing to it" in second.stderr
    assert "process " in second.stderr
    assert sorted(path.name for path in stopped.iterdir()) == before


@pytest.mark.parametrize(
    ("key", "before", "after"), [("profile", b"ratio = 30", b"ratio = 31"), ("availability", b"0,0,90", b"0,0,80")]
)
def test_a_fleet_or_a_trace_that_changed_is_named(tmp_path, key, before, after):
    fleet, trace = tmp_path / "fleet.toml", tmp_path / "trace.csv"
    fleet.write_bytes((shared("profiles") / "fleets" / "home.toml").read_bytes())
    trace.write_bytes(b"client,from,to,state\n0,0,90,eligible\n1,0,90,eligible\n")
    config = CONFIG.model_copy(update={"profile": str(fleet), "availability": str(trace), "per_round": 1})
    stopped = stopped_after(config, tmp_path / "run", 1)
    edited(Path(getattr(config, key)), before, after)
    with pytest.raises(CheckpointError, match=f"{Path(getattr(config, key)).name} has changed since this run began"):
        simulate(config, stopped, resume=True)


def test_a_file_nested_too_deep_is_one_message(tmp_path):
    (tmp_path / "deep.toml").write_text(f"lr = {'[' * 3000}{']' * 3000}")
    with pytest.raises(ConfigError, match=r"deep.toml: .* nested too deeply"):
        RunConfig.load(tmp_path / "deep.toml", {})


def test_a_folder_moved_in_mid_run_ends_it_and_continues_where_it_was(finished, tmp_path):
    """In the checkpoint's thread, in the client store and in the record of the next round: wherever it is noticed first."""
    folder, away = tmp_path / "run", tmp_path / "away"
    with pytest.raises(MovedError, match=r"the run's folder was moved or deleted: .*run; move it back and add --resume"):
        simulate(CONFIG, folder, on_round=lambda record: folder.rename(away) if record.round == 1 else None)
    assert not folder.exists()
    away.rename(folder)
    simulate(CONFIG, folder, resume=True)
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()
