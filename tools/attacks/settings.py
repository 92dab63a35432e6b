"""Odd values and damaged text in configurations, devices, fleets and traces: one message that names the file, or a run."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomlkit

from attacks.damage import damaged, mutated, odd, spelled
from attacks.harness import TOP, Bench, Case, Rng
from attacks.made import SMALL
from edgefl import RunConfig

KINDS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "a configuration": lambda path: ("--config", path),
    "a device": lambda path: ("--profile", path),
    "a fleet": lambda path: ("--profile", path),
    "a trace": lambda path: ("--availability", path),
}
"""Kind of file → the flags that let a run read it."""
BOUNDED = ("--rounds", 2, "--clients", 6, "--per-round", 3)
"""A run with 10⁹ rounds is right, and takes long."""
_TRACE = "client,from,to,state\n0,0,9000,eligible\n1,100,9000,eligible\n2,0,50,eligible\n3,0,9000,eligible\n4,0,9000,eligible\n"
_RUN = {"model": "mlp", "data_share": 0.1, "local_epochs": 1, "tiers": (1.0, 0.5), "method": "heterofl"}


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    profiles = TOP / "profiles"
    sound = {
        "a configuration": [RunConfig.of(_RUN).to_toml()],
        "a device": [path.read_text(encoding="utf-8") for path in sorted((profiles / "devices").glob("*.toml"))],
        "a fleet": [path.read_text(encoding="utf-8") for path in sorted((profiles / "fleets").glob("*.toml"))],
        "a trace": [_TRACE],
    }

    def case(rng: Rng, folder: Path) -> str:
        kind, here = str(rng.choice(list(KINDS))), folder / "here"
        here.mkdir(parents=True)
        text = sound[kind][int(rng.integers(len(sound[kind])))]
        name = "given.csv" if kind == "a trace" else "given.toml"
        how, content = _changed(text, rng, tables=kind != "a trace")
        (here / name).write_bytes(content)
        profile = () if kind != "a configuration" else ("--profile", "lab")
        flags = SMALL if kind != "a configuration" else ()
        read = KINDS[kind](here / name)
        command = "simulate" if rng.random() < 0.7 else "whatif"
        dry = ("--dry-run",) if command == "simulate" else ()
        ended = bench.edgefl.run(command, *dry, *flags, *profile, *read, *BOUNDED, "--out", "out", cwd=here)
        # What one file says may only be wrong together with the data or the fleet.
        ended.check((0, 1, 2, 3))
        return f"{kind}, {how}: {'refused' if ended.status else 'accepted'}"

    return case


def _changed(text: str, rng: Rng, tables: bool) -> tuple[str, bytes]:
    """Return how a text was changed, and the text as bytes."""
    if not tables or rng.random() < 0.2:
        if rng.random() < 0.5:
            return damaged(text.encode(), rng)
        rows = text.splitlines()
        row = int(rng.integers(len(rows)))
        parts = rows[row].split("=" if tables else ",")
        parts[int(rng.integers(len(parts)))] = str(odd(rng))
        rows[row] = ("=" if tables else ",").join(parts)
        return "an odd line", spelled("\n".join(rows), rng)
    values: dict[str, Any] = tomllib.loads(text)
    how, values = mutated(values, rng)
    try:
        return how, spelled(tomlkit.dumps(values), rng)
    except (ValueError, TypeError, RecursionError):  # what TOML cannot express
        return "an odd line", spelled(f"{text}\nodd = {odd(rng)}", rng)
