"""A folder that is moved, deleted or replaced while it is written. All of this file takes less than a second."""

import shutil

import pytest

from edgefl.errors import CheckpointError, MovedError
from edgefl.util import claims
from edgefl.util.files import whole_folder, write_bytes
from edgefl.util.lock import only_writer

MESSAGE = r"the run's folder was moved or deleted: .*run; move it back and add --resume"


def moved(folder, way):
    """Do to ``folder`` what a user may do; return where its files are now."""
    away = folder.with_name("away")
    folder.rename(away)
    if way == "replaced":
        folder.mkdir()
    elif way == "replaced by a file":
        folder.write_text("mine")
    elif way == "deleted":
        shutil.rmtree(away)
    return away


def written(folder, kind):
    if kind == "a file":
        write_bytes(folder / "model", b"1")
    elif kind == "a file below":
        write_bytes(folder / "checkpoints" / "1", b"1")
    elif kind == "a folder":
        with whole_folder(folder / "bundle"):
            pass
    else:
        raise FileNotFoundError(folder / "rounds.jsonl")


def interrupted(folder, way, kind):
    """Write to a folder that is ``moved`` meanwhile."""
    with only_writer(folder):
        moved(folder, way)
        written(folder, kind)


@pytest.mark.parametrize("way", ["moved", "deleted", "replaced", "replaced by a file"])
@pytest.mark.parametrize("kind", ["a file", "a file below", "a folder", "nothing, but fails"])
def test_what_is_written_next_says_so_and_nothing_is_made_anew(way, kind, tmp_path):
    folder, away = tmp_path / "run", tmp_path / "away"
    with pytest.raises(MovedError, match=MESSAGE) as caught:
        interrupted(folder, way, kind)
    assert caught.value.exit_code == 1
    assert not folder.is_dir() or not list(folder.iterdir())
    assert not away.exists() or not list(away.iterdir())  # the lock is gone too


def damaged(folder):
    with only_writer(folder):
        write_bytes(folder / "model", b"1")
        write_bytes(folder.with_name("elsewhere") / "model", b"1")
        raise CheckpointError("damaged")


def test_other_errors_and_other_folders_stay_as_they_are(tmp_path):
    with pytest.raises(CheckpointError, match="damaged"):
        damaged(tmp_path / "run")
    write_bytes(tmp_path / "run" / "model", b"2")


def moved_at_the_last_moment(folder, monkeypatch):
    with only_writer(folder):
        monkeypatch.setattr(claims, "check_claims", lambda path: folder.exists() and folder.rename(folder.with_name("away")))
        write_bytes(folder / "checkpoints" / "1", b"1")


def test_a_folder_moved_between_the_check_and_the_write_is_not_made_anew(tmp_path, monkeypatch):
    with pytest.raises(MovedError, match=MESSAGE):
        moved_at_the_last_moment(tmp_path / "run", monkeypatch)
    assert [path.name for path in tmp_path.iterdir()] == ["away"]
