"""How many updates of honest clients the default defence of real devices leaves out: methods × partitions × seeds.

Usage: python tools/honest_updates.py [--seeds N] [--minutes M] [--methods NAME,NAME] [--write]

Each run is short, without an attack. Its counts are stored in ``tools/results/honest-updates.json``, so that an interrupted tool
continues. ``--write`` renews the table of ``docs/trust.md``. Above 1 % of the updates, the threshold of the defence is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edgefl import RunConfig
from edgefl.errors import EdgeflError
from edgefl.methods.axes import conflict
from edgefl.methods.create import create
from edgefl.methods.tier_sum import gaps
from edgefl.records import Screened
from edgefl.registry import methods
from edgefl.run.guarded import DEFENCE, STRENGTH
from edgefl.run.prepare import prepare
from edgefl.run.trained import engine_of
from edgefl.server.client_store import ClientStore
from edgefl.util.compute import one_thread
from edgefl.util.files import write_json

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tools" / "results" / "honest-updates.json"
PAGE, BEGIN, END = ROOT / "docs" / "trust.md", "<!-- honest-updates:begin -->\n", "<!-- honest-updates:end -->\n"
PARTITIONS = {"iid": "alike", "classes:1": "one class a client"}
SETTING = {
    "model": "cnn-tiny", "clients": 12, "per_round": 12, "rounds": 4, "local_epochs": 1, "conditions": "ideal", "engine": "inline",
    "tier_assignment": "uniform", "eval_after_training": False, "defence": DEFENCE, "defence_strength": STRENGTH, "data_share": 0.5,
}  # fmt: skip
MOST = 0.01
"""The largest share of honest updates that a default may cost."""


@dataclass(frozen=True)
class Count:
    """The updates of a run, and how many of them were left out."""

    updates: int
    dropped: int


def counted(method: str, partition: str, seed: int) -> Count:
    """Return the counts of one run, which is neither evaluated nor written; EdgeflError if the method does not take the setting."""
    keys = {**SETTING, "method": method, "partition": partition, "seed": seed}
    if len(type(create(method)).default_tiers) == 1:
        keys["tier_assignment"] = "auto"
    run, screened = prepare(RunConfig.of(keys)), list[Screened]()
    with (
        one_thread(),
        tempfile.TemporaryDirectory() as folder,
        ClientStore(Path(folder) / "clients.sqlite") as store,
        engine_of(run) as engine,
    ):
        state = run.start()
        for _ in range(run.config.rounds):
            run, state = run.advanced(state)
            state, record = run.round(state, engine, store)
            state = replace(state, clients=store.commit(record.round))
            screened += [client.screened for client in record.clients if client.screened]
    return Count(len(screened), sum(bool(found.dropped) for found in screened))


def runs(names: list[str], seeds: int) -> Iterator[tuple[str, str, int]]:
    """Yield method, partition and seed of every run, seed by seed."""
    for seed in range(seeds):
        for name in names:
            for partition in PARTITIONS:
                yield name, partition, seed


def table(stored: Mapping[str, object]) -> str:
    """Return the table of shares, with the number of updates."""
    sums: dict[str, dict[str, list[int]]] = {}
    seeds = set()
    for key, found in stored.items():
        name, partition, seed = key.rsplit("|", 2)
        if isinstance(found, list):
            seeds.add(seed)
            one = sums.setdefault(name, {}).setdefault(partition, [0, 0])
            one[0], one[1] = one[0] + found[0], one[1] + found[1]
    lines = [f"| method | {' | '.join(PARTITIONS.values())} |", f"|---|{'---:|' * len(PARTITIONS)}"]
    for name, by in [*sorted(sums.items()), ("**all**", _together(sums))]:
        cells = (f"{by[p][1]} of {by[p][0]:,} ({by[p][1] / max(1, by[p][0]):.2%})" if p in by else "–" for p in PARTITIONS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    refused = sorted({key.split("|")[0] for key, found in stored.items() if isinstance(found, str)} - sums.keys())
    return "\n".join([f"Seeds: {len(seeds)}. Without the defence: {', '.join(refused) or 'none'}.", "", *lines, ""])


def _together(sums: Mapping[str, Mapping[str, list[int]]]) -> dict[str, list[int]]:
    return {p: [sum(by[p][i] for by in sums.values() if p in by) for i in (0, 1)] for p in PARTITIONS}


def main() -> int:
    """Run the tool; return 1 if more honest updates than :data:`MOST` are left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="seeds of each run [20]")
    parser.add_argument("--minutes", type=float, default=1e9, metavar="M", help="how long to run [to the end]")
    parser.add_argument("--methods", default=",".join(methods.names()), metavar="NAME,NAME", help="[all]")
    parser.add_argument("--write", action="store_true", help="renew the table of the page")
    asked = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8")) if STORED.exists() else {}
    end_s = time.monotonic() + 60 * asked.minutes
    for name, partition, seed in runs(asked.methods.split(","), asked.seeds):
        key = f"{name}|{partition}|{seed}"
        if key in stored or time.monotonic() > end_s:
            continue
        why = conflict(gaps(create(name)), "defence", DEFENCE)
        try:
            stored[key] = why or list(vars(counted(name, partition, seed)).values())
        except EdgeflError as error:
            stored[key] = str(error).splitlines()[0]
        print(f"{key}: {stored[key]}", flush=True)
        write_json(STORED, stored)
    text = table(stored)
    print(text)
    if asked.write:
        page = PAGE.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{after}", encoding="utf-8")
    pairs = [found for found in stored.values() if isinstance(found, list)]
    return int(sum(dropped for _, dropped in pairs) > MOST * sum(updates for updates, _ in pairs))


if __name__ == "__main__":
    sys.exit(main())
