"""Nodes of a Flower federation that mean harm: the server says why it leaves one out, and its model stays finite."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attacks.damage import TEXTS, damaged, mutated, odd
from attacks.harness import CLIENT, TESTS, TOP, Bench, Case, Finding, Rng, Unavailable
from edgefl.errors import EdgeflError

sys.path[:0] = [str(TESTS), str(CLIENT), str(TOP / "export" / "flower")]

VALUES = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 0.0)
ROUNDS = 2


def attack(bench: Bench) -> Case:
    """Return what plays a case."""
    if find_spec("flwr") is None:
        raise Unavailable("needs Flower: pip install '.[flower]'")
    import rehearsal

    run = _run(bench)
    trainers = ("onnx", "torch")

    def case(rng: Rng, folder: Path) -> str:
        trainer, said, hows = str(rng.choice(trainers)), list[str](), list[str]()
        link = rehearsal.federation(run, folder / "data", trainer=trainer)
        for node in rng.permutation(sorted(link.devices))[: int(rng.integers(1, 4))]:
            link.devices[int(node)].changed = _hostile(rng, hows)
        fleet = rehearsal.joined(run, folder / "run", link, said, join_s=5.0)
        try:
            state, records = rehearsal.played(run, fleet, ROUNDS, folder)
        except EdgeflError as error:
            if "no device" not in str(error):
                raise Finding(f"{', '.join(hows)}: an answer ends the run: {error}") from None
            return f"{hows[0] if hows else 'nothing'}: the run ends: {str(error).split(';')[0].split(' for ')[0][:40]}"
        except Exception as error:
            raise Finding(f"{', '.join(hows)}: the server threw {type(error).__name__}: {error}") from error
        if wild := [name for name, tensor in state.model.tensors.items() if not torch.isfinite(tensor).all()]:
            raise Finding(f"{', '.join(hows)}: {wild[0]} has values that are not finite")
        if odd_lines := [line for line in said if not line.isprintable()]:
            raise Finding(f"{', '.join(hows)}: prints {odd_lines[0]!r}")
        ended = {of.status for record in records for of in record.clients}
        return f"{hows[0] if hows else 'nothing'}: {'all trained' if ended == {'trained'} else 'left out'}"

    return case


def _hostile(rng: Rng, hows: list[str]) -> Any:
    """Return what becomes of a node's answers on their way; its name is added to ``hows``."""

    def changed(asked: dict[str, Any], reply: Any) -> Any:
        if rng.random() < 0.3 and "round" not in asked:
            return reply  # it joins first
        how = str(
            rng.choice(["fields", "a text", "other blobs", "damaged payload", "odd values", "an error", "another's answer"])
        )
        hows.append(how)
        if how == "fields":
            found = mutated(dict(reply.fields), rng)[1]
            return replace(reply, fields=found if isinstance(found, dict) else {})
        if how == "a text":
            name = str(rng.choice(sorted(reply.fields)))
            text = str(rng.choice(np.array(TEXTS, object))) if rng.random() < 0.5 else odd(rng)
            return replace(reply, fields={**reply.fields, name: text if not callable(text) else str(text)})
        if how == "an error":
            return type(reply)(error=str(rng.choice(np.array(TEXTS, object))), gone=bool(rng.random() < 0.5))
        if how == "another's answer":
            return replace(reply, fields={**reply.fields, "client": 0, "key": "A" * 44, "status": "trained"})
        return replace(
            reply, blobs={name: _blob(how, blob, rng) for name, blob in reply.blobs.items()} or {"payload": rng.bytes(99)}
        )

    return changed


def _blob(how: str, blob: bytes, rng: Rng) -> bytes:
    if how == "damaged payload" and blob:
        return damaged(blob, rng)[1]
    if how == "odd values" and len(blob) > 400:
        values = np.frombuffer(blob[len(blob) % 4 :], np.float32).copy()
        values[-int(rng.choice([1, 50])) :] = VALUES[int(rng.integers(len(VALUES)))]
        return blob[: len(blob) % 4] + values.tobytes()
    return rng.bytes(int(rng.choice([0, 1, 5000])))


def _run(bench: Bench) -> Any:
    """Return a run of three devices, ready to start."""
    import small_fleet

    home = bench.once("fleet", Path.mkdir)
    names = ("board", "phone", "laptop")
    for name, gmacs in zip(names, (0.01, 0.5, 5), strict=True):
        small_fleet.write_device(home, name, training=gmacs)
    profile = small_fleet.write_fleet(home, dict(zip(names, (0.34, 0.33, 0.33), strict=True)))
    return small_fleet.small(
        profile, method="fedhm", tiers=(1.0, 0.5), tier_assignment="uniform", clients=3, per_round=3, data_share=0.1, deadline_s=60.0,
        conditions="ideal", defence="norm-filter",
    )  # fmt: skip
