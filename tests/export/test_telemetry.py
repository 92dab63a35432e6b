"""onnxruntime's packages send figures of models and devices to their maker, unless a variable is set before. Ours set it.

What telemetry leaves on the disk shows that it began. The tests of the other clients look for it too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from users_home import left_in_home

from edgefl.util.files import shared

CLIENTS = shared("export") / "python"
PATHS = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.mark.parametrize("code", ["import edgefl, onnxruntime", "import edgefl.onnxgrad.session"])
def test_the_package_sends_nothing(code: str, tmp_path: Path) -> None:
    assert left_in_home([sys.executable, "-c", code], tmp_path, PATHS) == []


@pytest.mark.parametrize("module", ["edgefl_client", "calibrate"])
def test_the_clients_in_python_send_nothing(module: str, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(CLIENTS)!r}); import {module}"
    assert left_in_home([sys.executable, "-c", code], tmp_path, PATHS) == []


def test_a_user_may_allow_it() -> None:
    code = "import os, edgefl; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    env = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout == "0\n"
