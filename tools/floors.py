"""The rounds of ``rounds.py`` as bare loops of torch, without any framework: what a simulator's own work is measured against.

Usage: python tools/floors.py KIND WORK [--rounds N] [--data-dir DIR] --json FILE

KIND: ``sequential`` is one process with torch's own threads; ``processes`` two with a thread each, weights and sums in shared memory;
``flat`` those two with weights, gradients and momentum each in one buffer; ``grouped`` the two with the clients of a round trained
together, as groups of one convolution and as batches of matrix products. No records, no checkpoints, no metering, no serialisation.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from speed.loops import LOOPS, Client, Loop, sequential_network
from speed.work import HELD_OUT, SEED, TIMED, WARM_UP, WORKS, Work, material
from torch import Tensor

from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.rng import generator, torch_seeded

PROCESSES = 2
Sums = list[Tensor]
Team = Callable[[Sequence[int]], int]
"""Trains some clients from the global weights, adds what they weigh to the sums, and gives the number of samples."""


def clients_of(data: Dataset, work: Work, whole: bool) -> list[Client]:
    """Return every client's samples: consecutive parts of the shuffled data, or where ``whole`` parts are too few, draws."""
    rng = generator(SEED, "floor", "deal")
    if whole:
        order = rng.permutation(len(data.train))[: work.clients * work.samples]
        x, y = torch.from_numpy(data.train.x[order]), torch.from_numpy(data.train.y[order])
        return list(zip(x.split(work.samples), y.split(work.samples), strict=True))
    draws = [rng.permutation(len(data.train))[: work.samples] for _ in range(work.clients)]
    return [(torch.from_numpy(data.train.x[own]), torch.from_numpy(data.train.y[own])) for own in draws]


def _work(connection: Connection, loop: Loop, clients: Sequence[Client], weights: Sums, sums: Sums, number: int) -> None:
    torch.set_num_threads(1)
    with torch_seeded(generator(SEED, "floor", "worker", number)), contextlib.suppress(EOFError):
        while True:
            connection.send(loop.train([clients[c] for c in connection.recv()], weights, sums))


@contextlib.contextmanager
def team_of(loop: Loop, clients: Sequence[Client], weights: Sums, sums: Sequence[Sums], processes: int) -> Iterator[Team]:
    """Return who trains: this process, or several that are forked from it."""
    if processes == 1:
        yield lambda chosen: loop.train([clients[c] for c in chosen], weights, sums[0])
        return
    context = multiprocessing.get_context("fork")  # the samples are there at once, and no thread has run yet
    ends = []
    for number in range(processes):
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(theirs, loop, clients, weights, sums[number], number), daemon=True).start()
        ends.append(ours)

    def train(chosen: Sequence[int]) -> int:
        for number, end in enumerate(ends):
            end.send(chosen[number::processes])
        return sum(end.recv() for end in ends)

    yield train


def run(kind: str, work: Work, rounds: int, data_dir: str | None) -> dict[str, object]:
    """Play the rounds; return when each began and the last ended, and what was learnt."""
    processes = 1 if kind == "sequential" else PROCESSES
    if processes > 1:
        torch.set_num_threads(1)
    used = material(work, data_dir)
    data = load(used.dataset, used.data_dir)
    with torch_seeded(generator(SEED, "floor", "init")):
        network = sequential_network(used.model, data.input_shape, data.classes)
    loop = LOOPS[kind](network)
    weights = [tensor.share_memory_() for tensor in loop.weights()]
    sums = [[torch.zeros_like(w).share_memory_() for w in weights] for _ in range(processes)]
    clients = clients_of(data, work, used.partition == "iid")
    marks, samples = [], []
    with team_of(loop, clients, weights, sums, processes) as train:
        for number in range(rounds):
            marks.append(time.time())
            chosen = generator(SEED, number, "floor", "select").choice(work.clients, work.per_round, replace=False).tolist()
            samples.append(train(chosen))
            for weight, *parts in zip(weights, *sums, strict=True):
                weight.copy_(parts[0])
                for part in parts[1:]:
                    weight.add_(part)
                weight.div_(samples[-1])
        marks.append(time.time())
    loop.put(weights)
    with torch.no_grad():
        x, y = torch.tensor(data.test.x[:HELD_OUT]), torch.tensor(data.test.y[:HELD_OUT])
        accuracy = float((network(x).argmax(1) == y).float().mean())
    return {"dataset": used.dataset, "marks": marks, "samples": samples, "accuracy": accuracy}


def main() -> None:
    """Play and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=LOOPS)
    parser.add_argument("work", choices=WORKS)
    parser.add_argument("--rounds", type=int, default=WARM_UP + TIMED, help=f"[{WARM_UP + TIMED}]")
    parser.add_argument("--data-dir", help="the folder of Fashion-MNIST's four files [the system's]")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help="when rounds began, in seconds since 1970")
    options = parser.parse_args()
    found = run(options.kind, WORKS[options.work], options.rounds, options.data_dir)
    options.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
