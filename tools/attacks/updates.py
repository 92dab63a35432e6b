"""Update files that mean harm: fed-round refuses them by name, or its model has finite weights and its folder can be read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy

from attacks.damage import TEXTS, damaged, mutated, odd, spelled
from attacks.harness import Bench, Case, Finding, Rng, same, tree
from attacks.made import simulated, updates

VALUES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 0.0)


def attack(bench: Bench) -> Case:
    """Return what plays a case."""

    def case(rng: Rng, folder: Path) -> str:
        bundle, here = simulated(bench) / "bundle", folder / "here"
        shutil.copytree(updates(bench), here / "updates")
        path = here / "updates" / str(rng.choice(["1.safetensors", "0.5.safetensors"]))
        how = _spoil(path, rng)
        before = tree(bundle.parent)
        more = ("--skip-bad",) if rng.random() < 0.3 else ()
        ended = bench.edgefl.run("fed-round", bundle, "--updates", "updates", *more, "--out", "out", cwd=here)
        ended.check((0, 1, 2), ["updates", *_names(bundle)])
        same(tree(bundle.parent), before, "fed-round changed the run that it read")
        if ended.status:
            if (here / "out").exists():
                raise Finding(f"{how}: refused, and wrote out")
            return f"{how}: refused"
        tensors = safetensors.numpy.load_file(here / "out" / "model.safetensors")
        if wild := sorted(name for name, tensor in tensors.items() if not np.isfinite(tensor).all()):
            raise Finding(f"{how}: accepted, and {wild[0]} has values that are not finite")
        return f"{how}: {'left out' if more and 'left out' in ended.errors else 'accepted'}"

    return case


def _names(bundle: Path) -> list[str]:
    """Return the names of tensors: a sum may be infinite where no single update is."""
    return sorted(safetensors.numpy.load_file(bundle.parent / "model.safetensors"))


def _spoil(path: Path, rng: Rng) -> str:
    """Change an update file, and return how."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    draw = rng.random()
    if draw < 0.25:
        how, content = damaged(content, rng)
        path.write_bytes(content)
        return how
    if draw < 0.6:
        how, header = mutated(header, rng)
        path.write_bytes(_file(spelled(json.dumps(header), rng), body))
        return f"header: {how}"
    if draw < 0.75:
        about = header["__metadata__"]
        about[str(rng.choice(sorted(about)))] = str(rng.choice(np.array(TEXTS, object)) if rng.random() < 0.5 else odd(rng))
        path.write_bytes(_file(spelled(json.dumps(header), rng), body))
        return "metadata: an odd text"
    if draw < 0.95:
        values = np.frombuffer(body, np.float32).copy()
        chosen = rng.integers(len(values), size=int(rng.choice([1, len(values)])))
        values[chosen] = VALUES[int(rng.integers(len(VALUES)))]
        path.write_bytes(_file(content[8 : 8 + size], values.tobytes()))
        return "odd values"
    shutil.copyfile(path, path.with_name("again.safetensors"))
    return "sent twice"


def _file(header: bytes, body: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + body
