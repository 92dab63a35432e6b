"""The audit table of docs/privacy.md: the empirical ε of small runs beside the accounted one, and a membership attack without privacy.

Every audit is an entry of tools/results/audit.json. A stopped command makes what is missing.

Usage: python tools/audit_table.py [--write | --check] [--train]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from counters.markdown import arguments, publish, table

from edgefl import RunConfig, simulate
from edgefl.contrib.audit.audit import audit
from edgefl.run.feature import Json
from edgefl.util.files import write_json

RESULTS = Path(__file__).parent / "results" / "audit.json"
BASE: dict[str, Any] = {
    "model": "mlp", "clients": 20, "per_round": 10, "rounds": 2, "local_epochs": 1, "data_share": 0.5, "bundle": False, "eval_every": 2,
}  # fmt: skip
_CENTRAL = {"privacy": "central", "clip_norm": 0.5, "noise_multiplier": 2.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "central, FedAvg": {**_CENTRAL, "method": "fedavg"},
    "central, HeteroFL": {**_CENTRAL, "method": "heterofl"},
    "central, FedHM": {**_CENTRAL, "method": "fedhm"},
    "central, FedHM, adaptive clip": {**_CENTRAL, "method": "fedhm", "clip_norm": "adaptive"},
    "central, 10 of 1,000 clients": {**_CENTRAL, "method": "fedhm", "clients": 1000, "partition": "index:15", "conditions": "ideal"},
    "local, FedHM": {"privacy": "local", "privacy_clip": 0.5, "noise_multiplier": 2.0, "method": "fedhm"},
    "example, FedHM": {"privacy": "example", "privacy_clip": 0.5, "noise_multiplier": 2.0, "method": "fedhm"},
    "none, FedAvg, 2 rounds": {"method": "fedavg"},
    "none, FedAvg, 20 rounds of 5 epochs on a tenth of the data": {
        "method": "fedavg", "rounds": 20, "local_epochs": 5, "data_share": 0.1, "clients": 4, "per_round": 4, "eval_every": 20,
    },
}  # fmt: skip
CANARIES = 200


def audited(keys: dict[str, Any]) -> Json:
    """Return the audit of a run with these keys, as JSON has it."""
    with tempfile.TemporaryDirectory() as folder:
        result = simulate(RunConfig.of({**BASE, **keys}), Path(folder) / "run", on_round=lambda record: None)
        return audit(result.folder, CANARIES).to_json()


def stored() -> dict[str, Any]:
    """Return name of a setting → its keys and its audit, of the present settings."""
    found = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    return {
        name: entry
        for name, entry in found.items()
        if entry["keys"] == json.loads(json.dumps({**BASE, **SETTINGS.get(name, {})}))
    }


def train() -> None:
    """Make what is missing, and store each audit when it ends."""
    for name, keys in SETTINGS.items():
        if name not in (found := stored()):
            write_json(RESULTS, {**found, name: {"keys": {**BASE, **keys}, "audit": audited(keys)}})
            print(name, flush=True)


def noise_table() -> str:
    """Return a row for each attacker of each run with noise."""
    rows = []
    for name in SETTINGS:
        for leak in entry["audit"]["leaks"] if (entry := stored().get(name)) else ():
            values = (f"{leak[key]:.2f}" for key in ("empirical", "accounted", "most_likely", "upper"))
            rows.append([f"{name}; {leak['attacker']}", *values])
    return table(["Run; the attacker", "empirical ε (at least)", "accounted ε", "most likely", "at most"], rows)


def membership_table() -> str:
    """Return a row for each run without noise."""
    rows = []
    for name in SETTINGS:
        if (entry := stored().get(name)) and (found := entry["audit"]["membership"]):
            right = (found["told"] + 1 - found["mistaken"]) / 2
            rows.append([name, f"{100 * right:.1f} %", f"{found['auc']:.3f}", f"{found['epsilon_low']:.2f}"])
    return table(["Run", "right guesses (50 % by chance)", "AUC", "no training with a smaller ε allows it"], rows)


def main() -> None:
    """Make what is missing if asked, then print, write or check the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", action="store_true", help="make the runs and audits that are not stored")
    options = arguments(parser)
    if options.train:
        train()
    publish("privacy-audit", noise_table(), options)
    publish("privacy-membership", membership_table(), options)


if __name__ == "__main__":
    main()
