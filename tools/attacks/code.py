"""Code that files name: no configuration, comparison or run folder of a stranger runs a line of it, whatever it is called."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tomlkit

from attacks.harness import Bench, Case, Finding, Rng
from attacks.made import simulated, updates
from edgefl.util.files import sha256

KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("model", "loss", "metric", "lr_schedule", "method", "dataset", "codec", "defence"), "{}:x"),
    **dict.fromkeys(("objective", "server_optimizer", "engine"), "{}:x"),
    "adversary": "{}:x:0.1", "log": ["{}:x"], "stages": ["{}:x"], "sampler": "{}:x", "plugins": ["{}"], "plugins by hash": {"{}": ""},
    "tier": {"1": "mlp", "0.5": "{}:x"},
}  # fmt: skip
FILES = (
    "evil.py",
    "got/evil.py",
    "pack/__init__.py",
    "pack/evil.py",
    "wandb.py",
    "sitecustomize.py",
    "click.py",
    "ev il.py",
    "é.py",
)
SOURCES = (
    *("evil.py", "./evil.py", "got/../evil.py", "{here}/evil.py", "link.py", "ev il.py", "é.py", "got/evil.py", "{run}/evil.py"),
    *("evil", "got.evil", "pack", "pack.evil", "run.evil", ".evil", "evil.", "sys", "os.path", "subprocess", "got/evil"),
    *(" evil.py", "EVIL.PY", "wandb"),
)
"""How code is named; some of it is Python's own."""
READERS: Mapping[str, tuple[Any, ...]] = {
    "simulate": ("simulate", "--config", "run.toml", "--dry-run", "--out", "out"),
    "whatif": ("whatif", "--config", "run.toml", "--deadlines", 1),
    "compare": ("compare", "--config", "run.toml", "--methods", "fedavg,fedhm", "--out", "out"),
    "flower": ("flower", "new", "out", "--config", "run.toml"),
    "resume": ("simulate", "--out", "run", "--resume", "--rounds", 4),
    "export": ("export", "run", "--out", "out"),
    "weights": ("export", "run", "--format", "weights", "--out", "out"),
    "fed-round": ("fed-round", "run/bundle", "--updates", "updates", "--out", "out"),
    "whatif of a run": ("whatif", "--run", "run", "--deadlines", 1, "--clients", 6, "--model", "mlp"),
    "comparison": ("compare", "--out", "cmp", "--resume"),
    "verify": ("verify", "run"),
    "report": ("report", "run"),
    "tables": ("export", "run", "--format", "csv", "--out", "out"),
}
HARMLESS = ("verify", "report", "tables")


def attack(bench: Bench) -> Case:
    """Return what plays a case."""

    def case(rng: Rng, folder: Path) -> str:
        here, reader = folder / "here", str(rng.choice(list(READERS)))
        here.mkdir(parents=True)
        shutil.copytree(simulated(bench), here / "run")
        if reader == "fed-round":
            shutil.copytree(updates(bench), here / "updates")
        ran = folder / "ran"
        _plant(here, ran)
        key, source = str(rng.choice(list(KEYS))), str(rng.choice(np.array(SOURCES, object)))
        source = source.format(here=here, run=here / "run")
        value = _filled(KEYS[key], source)
        changes = {key.partition(" ")[0]: value, **({"sources": {"root": str(here / "run")}} if rng.random() < 0.3 else {})}
        _configure(here, changes, comparison=reader == "comparison")
        ended = bench.edgefl.run(*READERS[reader], cwd=here)
        if ran.exists():
            raise Finding(f"{reader}: {key} = {value!r} ran a stranger's code")
        if reader in HARMLESS:
            ended.check((0,))
            return f"{reader}: nothing ran"
        ended.check((2,))
        if (here / "out").exists():
            raise Finding(f"{reader}: {key} = {value!r}: refused, and wrote out")
        return f"{reader}: {'asked' if '--trust-code' in ended.errors else 'refused'}"

    return case


def _plant(here: Path, ran: Path) -> None:
    """Write a stranger's files into the working directory and into the folder of a run."""
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\n"
    for place in (here, here / "run"):
        for name in FILES:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(code, encoding="utf-8")
    (here / "link.py").symlink_to(here / "evil.py")


def _configure(here: Path, changes: Mapping[str, Any], comparison: bool) -> None:
    (here / "run.toml").write_text(tomlkit.dumps(changes), encoding="utf-8")
    path, hashes = here / "run" / "config.toml", here / "run" / "hashes.json"
    content = tomlkit.dumps({**tomlkit.parse(path.read_text(encoding="utf-8")), **changes}).encode()
    path.write_bytes(content)
    values = json.loads(hashes.read_text(encoding="utf-8"))
    values["files"]["config.toml"] = [sha256(content)]
    hashes.write_text(json.dumps(values), encoding="utf-8")
    if comparison:
        (here / "cmp").mkdir()
        asked = {"methods": ["fedavg"], "seeds": [0], "config": dict(changes), "options": {}}
        (here / "cmp" / "comparison.toml").write_text(tomlkit.dumps(asked), encoding="utf-8")


def _filled(value: Any, source: str) -> Any:
    if isinstance(value, dict):
        return {name.replace("{}", source): _filled(of, source) for name, of in value.items()}
    return [_filled(of, source) for of in value] if isinstance(value, list) else value.replace("{}", source)
