"""Commands that start with closed streams, without a package, or from files that editors on Windows have written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_free import CLIENT

from edgefl.errors import InputError
from edgefl.util.files import write_bytes

PYTHON = [sys.executable, "-m", "edgefl"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "status"), [("methods", 0), ("methods fedhn", 2)])
def test_closed_streams_are_no_error(closed, arguments, status):
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {arguments} {closed}', "sh", *PYTHON], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Traceback" in done.stdout + done.stderr) == (status, False)


def test_a_file_that_is_opened_does_not_get_the_output(tmp_path):
    code = f"import sys; from edgefl.cli.main import _open_streams; _open_streams(); open({str(tmp_path / 'own')!r}, 'w'); print('told')"
    subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", code], check=True)
    assert (tmp_path / "own").read_text() == ""


def test_a_mark_of_utf8_before_toml_is_no_key(tmp_path, called):
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfrounds = 1\nclients = 3\n")
    status, _, errors = called("simulate", "--config", str(tmp_path / "run.toml"), "--dry-run", "--out", str(tmp_path / "run"))
    assert (status, errors) == (0, "")


def test_the_client_names_the_package_that_it_lacks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, importlib.util as u\nfound = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'safetensors' else found(name, *rest)\n"
    )
    environment = {"PYTHONPATH": str(tmp_path), "PATH": str(Path(sys.executable).parent)}
    done = subprocess.run(
        [sys.executable, CLIENT, "infer", "b", "1", "x.npz"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, f"Error: {sys.executable} has no safetensors: pip install safetensors\n")


def test_only_files_are_replaced(tmp_path):
    sys.path.insert(0, str(CLIENT.parent))
    from edgefl_bundle import InputError as OfClient
    from edgefl_bundle import write

    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/full")):
        for error, act in ((InputError, write_bytes), (OfClient, write)):
            with pytest.raises(error, match="is no file, but a folder or a device, which would be replaced; give another"):
                act(place, b"content")
    assert (tmp_path / "pipe").is_fifo()
