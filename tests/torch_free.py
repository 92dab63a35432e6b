"""A virtual environment as a device has it: the client's packages, neither torch nor edgefl. Made once a session."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from requirements import unavailable

from edgefl.util.files import shared

CLIENT = shared("export") / "python" / "edgefl_client.py"
_PACKAGES = ("onnxruntime", "numpy", "safetensors", "pillow", "cryptography")


def torch_free_python(factory: pytest.TempPathFactory) -> Path:
    """Return the environment's Python, the same for all workers of a session; skip where its packages cannot be had."""
    base = factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "torch-free"
    python, done, failed = folder / "bin" / "python", folder / "done", folder / "failed"
    try:
        folder.mkdir()
    except FileExistsError:  # another test or worker makes it, or has made it
        end = time.monotonic() + 300
        while not done.exists() and not failed.exists() and time.monotonic() < end:
            time.sleep(0.1)
    else:
        problem = _make(folder, python)
        (failed if problem else done).write_text(problem)
    if not done.exists():
        unavailable("an environment without torch", failed.read_text() if failed.exists() else "making it took longer than 300 s")
    return python


def _make(folder: Path, python: Path) -> str:
    """Make the environment and return what went wrong, if anything did."""
    limits = Path(__file__).parent.parent / "constraints.txt"
    pinned = [line for line in limits.read_text().splitlines() if line.split("==")[0].lower() in _PACKAGES]
    wanted = pinned + [name for name in _PACKAGES if not any(line.lower().startswith(f"{name}==") for line in pinned)]
    # pip of this environment installs into the other one: bringing pip itself in would take longer than all the rest.
    commands = (
        [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check", *wanted],
    )
    for command in commands:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            return f"{' '.join(command[1:4])} failed: {(ran.stderr.strip().splitlines() or ['no message'])[-1]}"
    return ""


def client(python: Path, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the client's command line in that environment."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [str(python), str(CLIENT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)
