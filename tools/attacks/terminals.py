"""Terminal codes in texts of files: titles, sources, labels, names of classes and of files. No command prints them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np

from attacks.harness import TOP, Bench, Case, Finding, Rng
from attacks.made import SMALL, simulated

CODES = (
    "\x1b[2J",
    "\x1b]0;owned\x07",
    "\x9b1m",
    "\u202e",
    "\u2066",
    "\r",
    "\x08" * 3,
    "\x00",
    "\ufeff",
    "\u200b",
    "\x7f",
    "\u2028",
)
KEYS = ("title", "reference_hardware", "source", "note", "name")


def attack(bench: Bench) -> Case:
    """Return what plays a case."""

    def case(rng: Rng, folder: Path) -> str:
        here, code = folder / "here", str(rng.choice(np.array(CODES, object)))
        here.mkdir(parents=True)
        kind = str(rng.choice(["profile", "table", "run", "file name"]))
        ended = bench.edgefl.run(*_given(kind, code, here, bench, rng), cwd=here).check((0, 1, 2, 3))
        if shown := [one for one in ended.output + ended.errors if not one.isprintable() and one not in "\n\t"]:
            raise Finding(f"{kind}: prints {shown[0]!r} of {code!r}")
        return f"{kind}: {'refused' if ended.status else 'shown'}"

    return case


def _given(kind: str, code: str, here: Path, bench: Bench, rng: Rng) -> tuple[object, ...]:
    """Write a file with a terminal code, and return the command that shows it."""
    if kind == "profile":
        files = sorted((TOP / "profiles").glob("*/*.toml"))
        path = files[int(rng.integers(len(files)))]
        key, odd = str(rng.choice(KEYS)), json.dumps(f"a{code}b")
        lines = [
            f"{key} = {odd}" if line.startswith(f"{key} ") else line for line in path.read_text(encoding="utf-8").splitlines()
        ]
        (here / "odd.toml").write_text("\n".join(lines), encoding="utf-8")
        commands: tuple[tuple[object, ...], ...] = (
            ("devices", "odd.toml"), ("profile", "mlp", "--device", "odd.toml"), ("plan", "mlp", "--device", "odd.toml"),
            ("simulate", "--dry-run", *SMALL, "--profile", "odd.toml", "--out", "out"),
        )  # fmt: skip
        return commands[int(rng.integers(len(commands)))]
    if kind == "table":
        rows = [f'{number},{number % 3},"l{code}{number % 2}"' for number in range(30)]
        (here / "own.csv").write_text(
            "\n".join([f'a,b,"label{code if rng.random() < 0.5 else ""}"', *rows]), encoding="utf-8", newline=""
        )
        return "inspect", "--data", "own.csv", "--clients", 2
    if kind == "run":
        shutil.copytree(simulated(bench), here / "run")
        (here / "run" / "hashes.json").unlink()
        path = here / "run" / "summary.json"
        path.write_text(path.read_text(encoding="utf-8").replace("mlp", json.dumps(f"m{code}")[1:-1]), encoding="utf-8")
        return ("report", "run") if rng.random() < 0.5 else ("whatif", "--run", "run", "--deadlines", 1)
    return "report", f"no{code}run".replace("\x00", "")
