"""The client in TypeScript as a device has it: its compiled files and npm's packages. npm fetches these once, into the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgefl.util.files import shared, user_cache

SOURCE = shared("export") / "ts"
_NPM = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")  # a script of onnxruntime-node would fetch CUDA
_BATCH = """
import { failed } from "./lib/core/problems.js";
import { parsed } from "./lib/node/arguments.js";
import { run } from "./lib/node/commands.js";
import { readFileSync } from "node:fs";
const found = [];
for (const args of JSON.parse(readFileSync(0, "utf8"))) {
  let [out, err, status] = ["", "", 0];
  const say = { out: (text) => void (out += text), error: (text) => void (err += text), watch: () => {} };
  try { await run(parsed(args), say); } catch (error) { status = failed(error, say.error); }
  found.push([status, out, err]);
}
process.stdout.write(JSON.stringify(found));
"""


def installed(folder: Path) -> Path:
    """Copy the client to ``folder`` with npm's packages beside it, and return it; skip where they cannot be had."""
    packages = _packages()
    for name in ("lib", "src", "example-react-native"):
        shutil.copytree(SOURCE / name, folder / name)
    for path in SOURCE.glob("*.json"):
        shutil.copy(path, folder)
    (folder / "node_modules").symlink_to(packages)
    (folder / "batch.mjs").write_text(_BATCH)
    return folder


def batch(folder: Path, commands: Sequence[Sequence[object]]) -> list[tuple[int, str, str]]:
    """Run commands of the client one after another in one process; return exit status, output and errors of each."""
    given = json.dumps([list(map(str, command)) for command in commands])
    done = subprocess.run(["node", "batch.mjs"], cwd=folder, input=given, capture_output=True, text=True, check=True, timeout=120)
    return [(status, out, err) for status, out, err in json.loads(done.stdout)]


def alone(folder: Path, *arguments: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one command as a user does."""
    command = ["node", str(folder / "lib" / "cli.js"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **(env or {})})


def node(folder: Path, code: str) -> Any:
    """Run a module in the client's folder, and return the JSON that it prints."""
    done = subprocess.run(["node", "--input-type=module", "-e", code], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _packages() -> Path:
    beside = SOURCE / "node_modules"
    if (beside / "onnxruntime-node").is_dir():
        return beside
    folder = user_cache() / "ts" / hashlib.sha256((SOURCE / "package-lock.json").read_bytes()).hexdigest()[:16]
    if not folder.is_dir():
        _fetch(folder)
    return folder / "node_modules"


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, so the packages of the TypeScript client cannot be had")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".npm.") as temporary:
        whole = Path(temporary) / "whole"
        whole.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SOURCE / name, whole)
        done = subprocess.run([npm, *_NPM], cwd=whole, capture_output=True, text=True, check=False, timeout=600)
        if done.returncode:
            pytest.skip(f"npm does not fetch the packages of the TypeScript client: {done.stderr.strip()[:300]}")
        if not folder.exists():
            whole.rename(folder)
