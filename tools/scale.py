"""Rounds per minute on 1 to 64 nodes of a Ray cluster, predicted from measured runs, and where the server becomes the limit.

Usage: python tools/scale.py --ray-address HOST:PORT [--check 1,2] [--slots N] [--link-mbps X] [--json FILE]
       python tools/scale.py --raylets 4 --check 1,2,4

Short runs on the cluster: half of the clients on one slot, then all clients on each number of slots to check, first on one. The first two
give what the server's process spends on a round and on a client, in processor seconds, and what a client takes on a slot. The others check
the prediction. ``--raylets`` starts the cluster on loopback, each node with one slot.

With J clients in a round, a round takes as long as the slowest of

- the slots: ⌈J / slots⌉ · seconds of a client,
- the server: J · its seconds for a client (messages, decoding, aggregation),
- its link: the updates of J clients, and the payload of each tier once for each node,

and then the server's seconds that depend on no client (evaluation, factorization, records), while slots wait.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from speed.process import commit, machine

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the cluster of the tests
NODES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Cost:
    """What was measured.

    Attributes:
        client_s: seconds of a client on a slot.
        server_client_s, server_round_s: the server's processor seconds for a client, and for a round besides.
        update_bytes: mean bytes of a client's update.
        payload_bytes: bytes of the payloads of all tiers.
    """

    client_s: float
    server_client_s: float
    server_round_s: float
    update_bytes: float
    payload_bytes: float


@dataclass(frozen=True)
class Prediction:
    """Rounds per minute on so many nodes, and what limits them: "slots", "server" or "link"."""

    nodes: int
    rounds_per_minute: float
    limit: str


def predicted(cost: Cost, clients: int, nodes: int, slots: int, link_mbps: float) -> Prediction:
    """Return the rounds per minute of ``clients`` per round on ``nodes`` of ``slots`` each, by the formula above.

    >>> predicted(Cost(1.0, 0.01, 0.5, 1e6, 2e6), clients=64, nodes=4, slots=16, link_mbps=10_000)
    Prediction(nodes=4, rounds_per_minute=40.0, limit='slots')
    >>> predicted(Cost(1.0, 0.05, 0.5, 1e6, 2e6), clients=64, nodes=8, slots=16, link_mbps=10_000)
    Prediction(nodes=8, rounds_per_minute=16.216, limit='server')
    """
    moved_bytes = clients * cost.update_bytes + nodes * cost.payload_bytes
    needs_s = {
        "slots": math.ceil(clients / (nodes * slots)) * cost.client_s,
        "server": clients * cost.server_client_s,
        "link": moved_bytes * 8e-6 / link_mbps,
    }
    limit = max(needs_s, key=lambda name: needs_s[name])
    return Prediction(nodes, round(60 / (needs_s[limit] + cost.server_round_s), 3), limit)


def measured(options: argparse.Namespace, clients: int, slots: int) -> dict[str, Any]:
    """Run ``clients`` per round on ``slots`` slots of the cluster; return means of all rounds except the first."""
    from edgefl import RunConfig, simulate
    from edgefl.records import RoundRecord

    rounds = options.rounds + 1
    config = RunConfig.of({
        "clients": clients, "per_round": clients, "conditions": "ideal", "rounds": rounds, "eval_every": rounds + 1,
        "local_epochs": options.local_epochs, "engine": "ray", "ray_address": options.ray_address, "workers": slots,
    })  # fmt: skip
    marks = [(time.perf_counter(), time.process_time())]
    records: list[RoundRecord] = []

    def mark(record: RoundRecord) -> None:
        marks.append((time.perf_counter(), time.process_time()))
        records.append(record)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        simulate(config, path / "run", on_round=mark, trace=path / "trace.json")
        events = json.loads((path / "trace.json").read_text(encoding="utf-8"))
    events = events["traceEvents"] if isinstance(events, dict) else events
    busy_s = sum(event["dur"] * 1e-6 for event in events if event["ph"] == "X" and event["pid"])
    spans = [event for event in events if event["ph"] == "X" and event["name"] == "train"]
    steps = list(itertools.pairwise(marks[1:]))
    sent = [client.expected for record in records for client in record.clients]
    payloads = {client.tier: client.download_bytes for client in sent}
    return {
        "clients": clients,
        "slots": slots,
        "round_s": median(after[0] - before[0] for before, after in steps),
        "server_s": median(after[1] - before[1] for before, after in steps),
        "client_s": busy_s / len(spans),
        "update_bytes": sum(client.upload_bytes for client in sent) / len(sent),
        "payload_bytes": sum(payloads.values()),
    }


def cost_of(half: dict[str, Any], whole: dict[str, Any]) -> Cost:
    """Return the costs that two runs, with half of the clients and with all, tell apart."""
    client_s = max(0.0, (whole["server_s"] - half["server_s"]) / (whole["clients"] - half["clients"]))
    round_s = max(0.0, whole["server_s"] - client_s * whole["clients"])
    return Cost(whole["client_s"], client_s, round_s, whole["update_bytes"], whole["payload_bytes"])


def main() -> None:
    """Measure, predict and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ray-address", default="auto", help="the cluster; two slots are enough")
    parser.add_argument("--raylets", type=int, default=0, help="start so many nodes here instead, until the end")
    parser.add_argument("--check", default="1,2", help="numbers of slots whose prediction is checked; begins with 1")
    parser.add_argument("--clients", type=int, default=32, help="clients per round of the runs, and of the prediction")
    parser.add_argument("--rounds", type=int, default=4, help="rounds that count, after one of warm-up")
    parser.add_argument("--local-epochs", type=int, default=5)
    parser.add_argument("--slots", type=int, default=1, help="slots of a node in the prediction")
    parser.add_argument("--link-mbps", type=float, default=10_000.0, help="the server's link in the prediction")
    parser.add_argument("--json", type=Path, help="where to store the figures")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        if options.raylets:
            from ray_nodes import ray_nodes

            nodes = stack.enter_context(ray_nodes())
            nodes.mend(options.raylets)
            options.ray_address = nodes.address
        half = measured(options, options.clients // 2, 1)
        checks = [measured(options, options.clients, int(slots)) for slots in options.check.split(",")]
    cost = cost_of(half, checks[0])
    for run in checks:
        told = predicted(cost, options.clients, run["slots"], 1, options.link_mbps).rounds_per_minute
        print(f"{run['slots']} slots: predicted {told:.1f} rounds a minute, measured {60 / run['round_s']:.1f}")
    rows = [predicted(cost, options.clients, nodes, options.slots, options.link_mbps) for nodes in NODES]
    print("| nodes | rounds a minute | limited by |\n| ---: | ---: | --- |")
    for row in rows:
        print(f"| {row.nodes} | {row.rounds_per_minute:.1f} | {row.limit} |")
    if options.json is not None:
        found = {"commit": commit(), "machine": machine(), "runs": [half, *checks], "cost": asdict(cost)}
        text = json.dumps({**found, "slots": options.slots, "predicted": [asdict(row) for row in rows]}, indent=2)
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
