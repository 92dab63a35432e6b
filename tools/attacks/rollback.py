"""Old bundles of a publisher: the client of devices accepts no earlier round of a run, and nothing that has expired."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from attacks.bundles import rehashed
from attacks.damage import odd
from attacks.harness import Bench, Case, Finding, Rng
from attacks.made import data, simulated
from edgefl.bundle.manifest import MANIFEST
from edgefl.bundle.signature import signature_files
from edgefl.util.keys import SigningKey

OVER, STILL = "2020-01-31T00:00:00Z", "2999-01-31T00:00:00Z"


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    client = bench.client

    def case(rng: Rng, folder: Path) -> str:
        here = folder / "here"
        here.mkdir(parents=True)
        key, config = SigningKey.new(here / "publisher.pem"), {"XDG_CONFIG_HOME": str(here / "config")}

        def met(round_: int, changes: dict[str, Any]) -> int | None:
            bundle = _of_round(simulated(bench) / "bundle", here / f"bundle-{len(list(here.iterdir()))}", key, round_, changes)
            ended = client.run("infer", bundle, "0.5", data(bench), cwd=here, **config).check((0, 2))
            return ended.status

        if rng.random() < 0.3:
            wrong = odd(rng)
            changes = {str(rng.choice(["line", "expires"])): wrong if not callable(wrong) else str(wrong)}
            return f"an odd age: {'refused' if met(1, changes) else 'accepted'}"
        highest = 0
        for _ in range(4):
            round_, ends = int(rng.integers(1, 9)), [None, STILL, OVER][int(rng.integers(3))]
            status = met(round_, {} if ends is None else {"expires": ends})
            if (status == 0) != (round_ >= highest and ends != OVER):
                raise Finding(f"round {round_}, which ends {ends}, after round {highest}: exit status {status}")
            highest = round_ if status == 0 else highest
        return "rounds in any order: only newer ones"

    return case


def _of_round(sound: Path, bundle: Path, key: SigningKey, round_: int, changes: dict[str, Any]) -> Path:
    """Return a signed copy of a bundle, of another round and age."""
    shutil.copytree(sound, bundle)
    path = bundle / "freshness.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **changes}, default=str), encoding="utf-8")

    def of_round(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "round": round_}

    rehashed(bundle, of_round)
    for name, content in signature_files((bundle / MANIFEST).read_bytes(), key).items():
        (bundle / name).write_bytes(content)
    return bundle
