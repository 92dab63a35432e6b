"""Temporary folders that a killed process left are removed; those in use are not."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from edgefl.util.scratch import scratch_folder, sweep

KILLED = """
import os, signal
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
