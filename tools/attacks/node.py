"""Bundles that mean harm, in the client in TypeScript: it refuses or survives them, and shows no file outside of the bundle.

One process of Node plays most cases. Every eighth, and one that ends that process, is played by the command itself, which limits memory
and time.
"""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attacks.bundles import KINDS, STATUSES, check_secret, hostile
from attacks.harness import TOP, Bench, Case, Ended, Finding, Rng, Unavailable, program

sys.path.append(str(TOP / "tools"))

import compile_client

LATE_S = 60.0
"""After so long without an answer, the command itself must judge the case."""


class Cases:
    """A process of Node that plays cases; the next case starts another if one has ended it."""

    def __init__(self, *command: str | Path) -> None:
        self._command = list(map(str, command))
        self._process: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def play(self, args: Sequence[str], config: Path) -> dict[str, Any] | None:
        """Return what the client says to the arguments of its command line; None if the process ends or takes too long."""
        if self._process is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(self._command, text=True, encoding="utf-8", **pipes)
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        print(json.dumps({"args": args, "config": str(config)}), file=asked, flush=True)
        line = answers.readline() if select.select([answers], [], [], LATE_S)[0] else ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self.close()
        return None


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    if (node := shutil.which("node")) is None:
        raise Unavailable("needs node")
    try:
        client = bench.once("client", compile_client.copied)
    except compile_client.PackagesError as error:
        raise Unavailable(str(error)) from None
    cases = Cases(node, Path(__file__).with_name("node_cases.mjs"), client)
    bench.opened.callback(cases.close)

    def case(rng: Rng, folder: Path) -> str:
        here, kind = folder / "here", str(rng.choice(list(KINDS)))
        how, state = hostile(bench, here, kind, rng), here / "new.state"
        reader = str(rng.choice(["infer", "train"]))
        more = ("--out", state, "--max-seconds", 10) if reader == "train" else ()
        given = (reader, here / "bundle", "0.5", here / "data.npz", "--allow-unsigned", "--timeout", 20, *more)
        said = None if rng.random() < 1 / 8 else cases.play(list(map(str, given)), here / "config")
        if said is None:
            ended = program((node, client / "lib" / "cli.js"), *given, cwd=here)
        else:
            ended = Ended(("cli.js", *map(str, given)), said["status"], said["output"], said["errors"])
        ended.check(STATUSES)
        if said is not None and said["fault"]:
            raise Finding(f"{reader}: {how}: a mistake of the client's: {said['fault'][:1000]}")
        if ended.status and state.exists():
            raise Finding(f"{reader}: {how}: failed, and wrote {state.name}")
        check_secret(state, f"{reader}: {how}")
        return f"{reader}, {how}: {'refused' if ended.status else 'accepted'}"

    return case
