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
from edgefl.server.state import ServerState
from edgefl.timing.spans import span


def train(run: Run, store: ClientStore, state: ServerState | None = None) -> Iterator[tuple[Run, ServerState, RoundRecord]]:
    """Train the rounds after ``state``, all of them if it is None; yield after each the run in its phase, the state and the record."""
    config, state = run.config, state or run.start()
    with open_engine(str(config.engine), config.workers, run.clients) as engine:
        while state.round < config.rounds:
            with span("prepare", round=state.round + 1):
                run, state = run.advanced(state)
            state, record = run.round(state, engine, store)
            if state.round % config.eval_every == 0 or state.round == config.rounds:
                started = time.perf_counter()
                with span("evaluate", round=state.round):
                    accuracy = accuracies(Trained(run, state, store))
                record = replace(record, accuracy=accuracy, host_s=record.host_s + time.perf_counter() - started)
            yield run, state, record


def without_training(run: Run, rounds: int) -> Iterator[RoundRecord]:
    """Yield the records of ``rounds`` rounds without training: clients, seconds, bytes and joules are those of training."""
    state, store = run.start(), ClientStore(Path("never written"))
    for _ in range(rounds):
        run, _ = run.advanced(state)
        state, record = run.round(state, None, store)
        yield record
