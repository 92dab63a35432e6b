"""Temporary folders that a killed process left are removed; those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from edgefl.util.files import whole_folder
from edgefl.util.scratch import scratch_folder, sweep

KILLED = """
import os, signal
from edgefl.util.files import whole_folder
from edgefl.util.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "large").write_bytes(bytes(10))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    others = tmp_path / "edgefl-of-somebody-else"
    others.mkdir()
    with scratch_folder() as used:
        sweep()
        assert left.exists()  # just made: it may still be about to take its lock
        for folder in (left, others, used):
            os.utime(folder, (0, 0))
        sweep()
        assert sorted(tmp_path.iterdir()) == sorted([others, used])
    assert list(tmp_path.iterdir()) == [others]


def test_what_a_kill_left_beside_a_folder_is_swept_once_it_is_old(tmp_path):
    old, new, other = (tmp_path / name for name in (".out.a1", ".out.b2", ".other.c3"))
    for left in (old, new, other):
        left.mkdir()
    for left in (old, other):
        os.utime(left, (0, 0))
    with whole_folder(tmp_path / "out") as temporary:
        (temporary / "file").write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other.c3", ".out.b2", "out"]
