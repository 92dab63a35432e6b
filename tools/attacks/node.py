"""Bundles that mean harm, in the client in TypeScript: it refuses or survives them, and shows no file outside of the bundle."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from attacks.bundles import KINDS, STATUSES, check_secret, hostile
from attacks.harness import TOP, Bench, Case, Finding, Rng, Unavailable, program

sys.path.append(str(TOP / "tools"))

import compile_client


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    if (node := shutil.which("node")) is None:
        raise Unavailable("needs node")
    try:
        client = bench.once("client", compile_client.copied)
    except compile_client.PackagesError as error:
        raise Unavailable(str(error)) from None

    def case(rng: Rng, folder: Path) -> str:
        here, kind = folder / "here", str(rng.choice(list(KINDS)))
        how, state = hostile(bench, here, kind, rng), here / "new.state"
        reader = str(rng.choice(["infer", "train"]))
        more = ("--out", state, "--max-seconds", 10) if reader == "train" else ()
        given = (reader, here / "bundle", "0.5", here / "data.npz", "--allow-unsigned", "--timeout", 20)
        ended = program((node, client / "lib" / "cli.js"), *given, *more, cwd=here).check(STATUSES)
        if ended.status and state.exists():
            raise Finding(f"{reader}: {how}: failed, and wrote {state.name}")
        check_secret(state, f"{reader}: {how}")
        return f"{reader}, {how}: {'refused' if ended.status else 'accepted'}"

    return case
