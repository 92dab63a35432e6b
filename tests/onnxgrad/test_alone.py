"""onnxgrad does without the rest of edgefl."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgefl import errors, onnxgrad

FOLDER = Path(onnxgrad.__file__).parent
README = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_a_copy_of_the_folder_runs_the_example_of_its_readme(tmp_path):
    (tmp_path / "edgefl").mkdir()
    (tmp_path / "edgefl" / "__init__.py").touch()
    shutil.copytree(FOLDER, tmp_path / "edgefl" / "onnxgrad", ignore=shutil.ignore_patterns("__pycache__"))
    example = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert example is not None
    check = (
        "import sys\nassert losses[-1] < losses[0] and macs == 16 * 5\n"
        "assert not [name for name in sys.modules if name.startswith('edgefl.') and not name.startswith('edgefl.onnxgrad')]\n"
        "onnxgrad.export(network.eval(), {'x': 'no tensor'})"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", f"{example[1]}\n{check}"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith("edgefl.onnxgrad.errors.InputError: "), ran.stderr


@pytest.mark.parametrize("name", ["EdgeflError", "InputError", "StorageError"])
def test_its_errors_are_the_roots_of_edgefl_s(name):
    from edgefl.onnxgrad import errors as own

    assert getattr(own, name) is getattr(errors, name)
    assert getattr(errors, name).__module__ == "edgefl.errors"
