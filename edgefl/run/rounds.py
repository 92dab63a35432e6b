"""The rounds of a run, one after the other: with training, or simulated only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from edgefl.engine import open_engine
from edgefl.records import RoundRecord
from edgefl.run.run import Run
from edgefl.run.trained import Trained, accuracies
from edgefl.server.client_store import ClientStore
from edgefl.server.state import Standing
from edgefl.timing.spans import span


def train(
    run: Run, store: ClientStore, standing: Standing | None = None, first: int = 1
) -> Iterator[tuple[Run, Standing, RoundRecord]]:
    """Train rounds ``first`` to the last; yield after each the run in its phase, the server's state, and the round's record."""
    config = run.config
    standing = standing or Standing(run.first_state())
    with open_engine(str(config.engine), config.workers, run.clients) as engine:
        for number in range(first, config.rounds + 1):
            with span("prepare", round=number):
                run, state = run.advanced(standing.state, number)
            standing, record = run.play(run.method, replace(standing, state=state), engine, store, number)
            if number % config.eval_every == 0 or number == config.rounds:
                started = time.perf_counter()
                with span("evaluate", round=number):
                    accuracy = accuracies(Trained(run, standing.state, store), number)
                record = replace(record, accuracy=accuracy, host_s=record.host_s + time.perf_counter() - started)
            yield run, standing, record


def without_training(run: Run, rounds: int) -> Iterator[RoundRecord]:
    """Yield the records of ``rounds`` rounds without training: clients, seconds, bytes and joules are those of training."""
    standing = Standing(run.first_state())
    store = ClientStore(Path("never written"))
    for number in range(1, rounds + 1):
        run, _ = run.advanced(standing.state, number)
        standing, record = run.play(run.method, standing, None, store, number)
        yield record
