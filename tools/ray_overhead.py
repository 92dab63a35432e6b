"""What a job costs on a Ray cluster over the same job in the pool of one computer: clients that hardly train, in turns within one run.

Usage: python tools/ray_overhead.py [--raylets 1,2] [--jobs N] [--turns N] [--json FILE]

Starts raylets on loopback, each with one slot, and for each number of them an engine and a pool of as many workers. Both run the same jobs
in turns: clients that take one step on a few samples. A turn gives time per job, of the clock and of this process, the server. The
difference of the medians is what Ray adds. Figures of the clock mean something only on a computer that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from speed.process import commit, machine

from edgefl.client.client import Clients
from edgefl.client.job import Job, Task
from edgefl.client.training import Training
from edgefl.data.digits import digits
from edgefl.engine.contract import Cluster, Engine, in_order, open_engine
from edgefl.methods.create import create
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator
from edgefl.wire.message import Blob
from edgefl.wire.payload import encode

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # the cluster of the tests

TASK = Task(0, "digits", None, "iid", 200, Architecture("mlp", (1, 8, 8), 10), Training(1, 64, 0.05, 0.9, 0.0))


@dataclass(frozen=True)
class PerJob:
    """Medians over turns, in milliseconds per job: of the clock, and of the server's processor time."""

    engine: str
    workers: int
    wall_ms: float
    server_ms: float


def jobs_of(count: int) -> list[Job]:
    """Return jobs of clients 0, 1, 2, … in one tier."""
    method, tier = create("fedavg"), Tier(1.0)
    state = method.init(TASK.architecture, (tier,), generator(0, "init"))
    payload = Blob(encode(dict(method.submodel(state, tier, np.random.default_rng(0)).tensors)))
    return [Job(1, number % TASK.clients, method, tier, payload) for number in range(count)]


def turn(engine: Engine, jobs: list[Job]) -> tuple[float, float]:
    """Run ``jobs``; return milliseconds per job, of the clock and of this process."""
    wall_s, own_s = time.perf_counter(), time.process_time()
    for _ in in_order(engine, jobs):
        pass
    return 1e3 * (time.perf_counter() - wall_s) / len(jobs), 1e3 * (time.process_time() - own_s) / len(jobs)


def measured(address: str, workers: int, jobs: list[Job], turns: int) -> list[PerJob]:
    """Return the medians of the pool and of Ray with ``workers`` each, after a turn of each that does not count."""
    found: dict[str, list[tuple[float, float]]] = {"pool": [], "ray": []}
    with ExitStack() as stack:
        clients = Clients(TASK, digits())
        engines = {name: stack.enter_context(open_engine(name, workers, clients, Cluster(address))) for name in found}
        for number in range(turns + 1):
            for name, engine in engines.items():
                one = turn(engine, jobs)
                found[name] += [one] if number else []
    return [PerJob(name, workers, *(median(values) for values in zip(*ones, strict=True))) for name, ones in found.items()]


def main() -> None:
    """Measure and print."""
    from ray_nodes import ray_nodes

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raylets", default="1,2", help="numbers of raylets, and of the pool's workers")
    parser.add_argument("--jobs", type=int, default=400, help="jobs in a turn")
    parser.add_argument("--turns", type=int, default=5, help="turns of each engine that count")
    parser.add_argument("--json", type=Path, help="where to store the figures")
    options = parser.parse_args()
    rows: list[PerJob] = []
    with ray_nodes() as nodes:
        for count in map(int, options.raylets.split(",")):
            nodes.mend(count)
            rows += measured(nodes.address, count, jobs_of(options.jobs), options.turns)
    print("| slots | pool, ms a job | Ray, ms a job | Ray adds, ms | server's processor: pool, ms | Ray, ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for pool, ray in zip(rows[::2], rows[1::2], strict=True):
        added = ray.wall_ms - pool.wall_ms
        print(
            f"| {pool.workers} | {pool.wall_ms:.2f} | {ray.wall_ms:.2f} | {added:.2f} | {pool.server_ms:.2f} | {ray.server_ms:.2f} |"
        )
    if options.json is not None:
        found = {"commit": commit(), "machine": machine(), "jobs": options.jobs, "turns": options.turns}
        options.json.write_text(json.dumps({**found, "rows": [asdict(row) for row in rows]}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
