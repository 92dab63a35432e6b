"""The home of a user, to see what a program leaves there: telemetry of onnxruntime, an identifier of the device and a queue of events."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

SUPPRESSES = (
    "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "APPVEYOR", "BUILDKITE", "CIRCLECI", "GITHUB_ACTIONS", "GITLAB_CI",
    "JENKINS_URL", "SYSTEM_TEAMFOUNDATIONCOLLECTIONURI", "TEAMCITY_VERSION", "TF_BUILD", "TRAVIS",
)  # fmt: skip
"""Variables that switch onnxruntime's telemetry off, which a test must not inherit."""


def left_in_home(command: Sequence[object], folder: Path, env: Mapping[str, str] | None = None) -> list[str]:
    """Return the files that ``command`` leaves in the home of a user, which is new and lies in ``folder``."""
    home = folder / "home"
    home.mkdir()
    own = {name: value for name, value in os.environ.items() if name not in (*SUPPRESSES, "XDG_CACHE_HOME")}
    given = {**own, **(env or {}), "HOME": str(home)}
    done = subprocess.run(list(map(str, command)), env=given, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
