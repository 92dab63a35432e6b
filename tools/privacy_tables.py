"""The tables of docs/privacy.md: the accountant against published values, accuracy at several ε, and what composition does to noise.

Every finished run is a line of tools/results/privacy.jsonl with its settings. A stopped command trains what is missing: nine processor
minutes for all.

Usage: python tools/privacy_tables.py [--write | --check] [--train]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

import dp_accounting
import torch
from counters.markdown import arguments, publish, table
from speed.process import commit

from edgefl import RunConfig, simulate
from edgefl.contrib.privacy.accountant import epsilon
from edgefl.contrib.privacy.central import Central, weighed
from edgefl.contrib.privacy.guarantee import Sampling
from edgefl.methods.create import create
from edgefl.methods.tier_sum import folds
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.server.exchange import combined
from edgefl.util.files import write_bytes

RESULTS = Path(__file__).parent / "results" / "privacy.jsonl"
METHODS = ("fedavg", "heterofl", "fedhm", "flanc")
TARGETS = (None, 8.0, 2.0)
SEEDS = (0, 1)
SETTINGS: dict[str, Any] = {
    "dataset": "digits", "clients": 20_000, "per_round": 300, "partition": "index:15", "rounds": 12, "local_epochs": 2,
    "conditions": "ideal", "clip_norm": 0.5, "eval_every": 12,
}  # fmt: skip


def config_of(method: str, target: float | None, seed: int) -> RunConfig:
    """Return a cell's run; ``target`` None: clipped, without noise."""
    noise = {} if target is None else {"privacy": "central", "target_epsilon": target}
    # Only HeteroFL would clip gradients too, and differ from the others in that.
    return RunConfig(**SETTINGS, method=method, seed=seed, clip_gradient="none", **noise)


def stored() -> list[dict[str, Any]]:
    """Return the finished runs of the present settings."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return [entry for entry in map(json.loads, lines) if entry["settings"] == SETTINGS]


def train() -> None:
    """Train what is missing, one run after the other, and store each when it ends."""
    for seed in SEEDS:
        for target in TARGETS:
            for method in METHODS:
                found = stored()
                if any((e["method"], e["target"], e["seed"]) == (method, target, seed) for e in found):
                    continue
                before = os.times()
                with tempfile.TemporaryDirectory() as folder:
                    summary = simulate(config_of(method, target, seed), Path(folder) / "run").summary
                after, spent = os.times(), summary["privacy"]
                entry = {
                    "method": method, "target": target, "seed": seed, "settings": SETTINGS, "commit": commit(),
                    "accuracy": summary["global_accuracy"], "tiers": {str(t["tier"]): t["accuracy"] for t in summary["tiers"]},
                    "epsilon": spent and spent["epsilon"], "noise_multiplier": spent and spent["noise_multiplier"],
                    "simulated_s": summary["simulated_s"], "upload_bytes": summary["upload_bytes"],
                    "processor_s": after.user - before.user + after.system - before.system,
                }  # fmt: skip
                write_bytes(RESULTS, "".join(json.dumps(e) + "\n" for e in [*found, entry]).encode())
                print(method, target, seed, entry["accuracy"], round(entry["processor_s"], 1), flush=True)


def accuracy_table() -> str:
    """Return accuracy of the global model by method and ε, the mean over seeds with the least and the most."""
    found, rows = stored(), []
    for method in METHODS:
        row = [create(method).title]
        for target in TARGETS:
            of = [100 * e["accuracy"] for e in found if (e["method"], e["target"]) == (method, target)]
            row.append(f"{fmean(of):.1f} % ({min(of):.1f} to {max(of):.1f})" if of else "–")
        rows.append(row)
    noise = {e["target"]: e["noise_multiplier"] for e in found}
    heads = ["ε = ∞ (clipped, no noise)" if t is None else f"ε = {t:g} (z = {noise.get(t) or 0:g})" for t in TARGETS]
    return table(["Method", *heads], rows)


def accounting_table() -> str:
    """Return ε of the accountant beside what dp-accounting publishes, its other accountants, and closed forms."""
    replaced = dp_accounting.NeighboringRelation.REPLACE_ONE

    def pld(event: Any, count: int, delta: float, relation: Any = replaced) -> float:
        return float(dp_accounting.pld.PLDAccountant(relation, 1e-3).compose(event, count).get_epsilon(delta))

    def rdp(z: float, drawn: int, of: int, count: int, delta: float) -> float:
        event = dp_accounting.SampledWithoutReplacementDpEvent(of, drawn, dp_accounting.GaussianDpEvent(z / 2))
        return float(dp_accounting.rdp.RdpAccountant(neighboring_relation=replaced).compose(event, count).get_epsilon(delta))

    truncated = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for size, count in ((4, 3), (3, 2)):
        truncated.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(size, 0.5, 2, 1.0), count)
    rows = [
        [
            "z = 2√3, 3 releases, δ = 0.126936",
            f"{epsilon(2 * math.sqrt(3), 3, 0.126936):.4f}",
            "1 (its test `test_gaussian_basic`)",
        ],
        [
            "its truncated sampling, 3 + 2 releases, δ = 1e-6",
            f"{truncated.get_epsilon(1e-6):.4f}",
            "17.9043 (its test `…_gaussian_basic`)",
        ],
        [
            "z = 8, 30 releases, δ = 1e-5",
            f"{epsilon(8, 30, 1e-5):.4f}",
            f"{pld(dp_accounting.GaussianDpEvent(8.0), 30, 1e-5):.4f} (PLD)",
        ],
    ]
    for z, drawn, of, count in ((1.0, 20, 1000, 100), (0.8, 50, 10_000, 500), (2.0, 10, 100, 30), (8.0, 10, 20, 30)):
        other = f"{rdp(z, drawn, of, count, 1e-5):.4f} (Rényi, Wang et al. 2019)"
        rows.append(
            [
                f"z = {z:g}, {drawn} of {of}, {count} rounds, δ = 1e-5",
                f"{epsilon(z, count, 1e-5, Sampling(of, drawn)):.4f}",
                other,
            ]
        )
    return table(["Releases", "ε here", "ε elsewhere"], rows)


def composition_table() -> str:
    """Return the noise in the deployed weights of the largest tier, beside that of FedAvg, for the same z, C and clients."""
    rows, dense = [], 0.0
    for method in METHODS:
        own = create(method)
        tiers = tuple(map(Tier, own.default_tiers))
        own = create(method, tiers=own.default_tiers)
        state = own.init(Architecture("cnn-digits", (1, 8, 8), 10), tiers, generator(0, "init"))
        sent = {tier: own.submodel(state, tier, generator(0, "submodel")) for tier in tiers}
        clients, values = {tier: 300 // len(tiers) for tier in tiers}, []
        for multiplier in (0.0, 0.84):
            updates = Central(multiplier, clients).updates(
                own, state, {}, sent, dict.fromkeys(tiers, 0.5), lambda purpose: generator(0, 1, purpose)
            )
            after = combined(own, state, weighed(own, state, clients, updates), sent.__getitem__)
            network = own.deploy(after, tiers[0])
            values.append(torch.cat([tensor.double().flatten() for tensor in network.state_dict().values()]))
        noise = float((values[1] - values[0]).norm())
        dense = dense or noise
        where = "once, in the state's entries" if folds(own) else "per tier, in its factors"
        noised = sum(tensor.numel() for tensor in (state.tensors if folds(own) else sent[tiers[0]].tensors).values())
        rows.append([type(own).title, where, f"{noised:,}", f"{noise:.3f}", f"{noise / dense:.2f}"])
    return table(["Method", "Noise is added", "Values with noise", "‖noise‖ in the deployed weights", "of FedAvg's"], rows)


def main() -> None:
    """Train what is missing if asked, then print, write or check the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train", action="store_true", help="train the runs that are not stored")
    options = arguments(parser)
    if options.train:
        train()
    publish("privacy-accounting", accounting_table(), options)
    publish("privacy-composition", composition_table(), options)
    publish("privacy-accuracy", accuracy_table(), options)


if __name__ == "__main__":
    main()
