"""The client in TypeScript as a device has it: its compiled files and npm's packages. npm fetches these once, into the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from requirements import require, unavailable

from edgefl.util.files import shared

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import compile_client

SOURCE = shared("export") / "ts"
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
    require("node", "npm")
    try:
        compile_client.copied(folder)
    except compile_client.PackagesError as error:
        unavailable("npm's packages of the TypeScript client", error)
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
