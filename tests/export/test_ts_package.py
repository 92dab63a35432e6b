"""The TypeScript client as a package: compiled from its source, with locked versions, and without telemetry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from handmade import Regression
from requirements import needs
from ts_client import SOURCE, node
from users_home import left_in_home


def test_onnxruntime_sends_nothing(ts, data, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    command = ["node", ts / "lib" / "cli.js", "infer", bundle, "0.5", data, "--allow-unsigned"]
    assert left_in_home(command, tmp_path) == []


def test_the_program_of_the_page_runs(ts, data):
    page = (Path(__file__).parents[2] / "docs" / "typescript.md").read_text()
    code = page.split("```ts\n")[1].split("```")[0]
    Regression().write(ts / "bundle")
    shutil.copy(data, ts / "mine.npz")
    assert node(ts, code + "console.log(JSON.stringify([state.losses.length, content.length > 400]));") == [6, True]


def test_the_compiled_files_are_those_of_the_source(ts, tmp_path):
    """The core compiles without the types of a page or Node, and React Native's example with those of the client."""
    tsc = [ts / "node_modules" / ".bin" / "tsc", "--project"]
    for project, arguments in (
        ("tsconfig.json", ("--outDir", tmp_path / "lib")),
        ("tsconfig.core.json", ()),
        ("tsconfig.native.json", ()),
    ):
        done = subprocess.run([*tsc, project, *arguments], cwd=ts, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    made = {path.relative_to(tmp_path): path.read_text() for path in (tmp_path / "lib").rglob("*.ts")}
    made |= {path.relative_to(tmp_path): path.read_text() for path in (tmp_path / "lib").rglob("*.js")}
    kept = {path.relative_to(SOURCE): path.read_text() for path in (SOURCE / "lib").rglob("*.?s")}
    assert made == kept, "run tools/compile_client.py"


@needs("node")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device /dev/full is of Linux")
def test_an_output_that_cannot_be_written_is_an_error_in_a_line_and_a_reader_that_has_gone_is_none():
    command = ["node", SOURCE / "lib" / "cli.js", "--help"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "Error: standard output: ENOSPC: no space left on device, write\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_version_of_onnxruntime_and_a_lock_without_addresses():
    lock = json.loads((SOURCE / "package-lock.json").read_text())["packages"]
    assert all(entry["integrity"].startswith("sha512-") and "resolved" not in entry for path, entry in lock.items() if path)
    page = json.loads((SOURCE.parent / "web" / "package.json").read_text())["dependencies"]["onnxruntime-web"]
    assert {lock[f"node_modules/onnxruntime-{part}"]["version"] for part in ("node", "common")} == {page}


def test_files_can_be_read_in_one_go():
    for path in (SOURCE / "src").rglob("*.ts"):
        assert len(path.read_text().splitlines()) <= 270, path.name
