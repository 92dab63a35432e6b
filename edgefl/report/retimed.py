"""Finished rounds, timed again with clocks that are wrong by some factors.

The server's plan stays as it was, since it has only the predictions: the same clients are asked, with the same tiers. Their training takes
longer or shorter, so other answers are in time, and rounds close at other times. A client that would still be busy is asked all the same.
The clock is that of the run plus what its rounds change, so a factor of 1 gives the run itself. Async rounds overlap: they are not timed
again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgefl.fleet.clock_error import Draws, power_of
from edgefl.report.surrogate import EXPONENT
from edgefl.report.words import USEFUL

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Retimed:
    """The rounds of a run in every draw; arrays have the shape (draws, rounds).

    Attributes:
        clock_s: the clock at the end of each round.
        used: how many updates the server uses of it.
        predicted: how many it used in the run itself, one per round.
        client_j: joules of the client that has used most by then; None: not asked for.
    """

    clock_s: np.ndarray
    used: np.ndarray
    predicted: np.ndarray
    client_j: np.ndarray | None = None

    def scores(self, places: Sequence[int], values: Sequence[float]) -> np.ndarray:
        """Return what a run reaches in every draw at the rounds ``places``, where it had ``values``: shape (draws, places).

        A round with u useful updates counts as √u of progress, as :mod:`edgefl.report.surrogate` has it. A draw has the value that the
        run had at the same progress, and 0 before any; nothing is said beyond the run's end.
        """
        own, drawn = (np.cumsum(used**EXPONENT, axis=-1) for used in (self.predicted, self.used))
        reached, at = own[list(places)], drawn[:, list(places)]
        if not len(reached) or (at == reached).all():
            return np.tile(np.asarray(values, dtype=float), (len(at), 1))
        return np.interp(at, np.concatenate([[0.0], reached]), np.concatenate([[0.0], values]))


def retimed(
    rounds: Sequence[Json], per_round: int, factors: Draws, watts: Mapping[str, float] | None = None, draws: int | None = None
) -> Retimed:
    """Return rounds, lines of ``rounds.jsonl`` with their clients, with the seconds of training of each device times its factors.

    ``per_round`` is how many updates a round wants. With ``watts``, device → watts while it trains, joules follow the seconds.
    """
    count = draws or max((len(own) for own in factors.values()), default=1)
    rows = [_round(record, per_round, factors, count) for record in rounds]
    later_s, used = (np.stack([row[of] for row in rows], axis=1) for of in (0, 1))
    predicted = np.array([row[2] for row in rows], dtype=float)
    clock_s = np.array([record["clock_s"] for record in rounds]) + np.cumsum(later_s, axis=1)
    joules = None if watts is None else _joules(rounds, factors, watts, count)
    return Retimed(clock_s, used, predicted, joules)


def _round(record: Json, per_round: int, factors: Draws, draws: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return by how many seconds a round is longer in every draw, how many updates it uses, and how many it used in the run."""
    sent = [client for client in record["clients"] if client.get("train_s") is not None]
    useful = sum(client["status"] == USEFUL for client in record["clients"])
    if not sent:
        return np.zeros(draws), np.full(draws, float(useful)), float(useful)
    limit_s = np.inf if record.get("deadline_s") is None else record["deadline_s"]
    train_s, total_s = (np.array([float(client[key]) for client in sent]) for key in ("train_s", "total_s"))
    answers = np.array([client["status"] in (USEFUL, "late") for client in sent])
    spare = any(client["status"] == "late" and client["total_s"] <= limit_s for client in sent)
    wanted = useful if spare and useful else max(per_round, useful)

    def closed(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        times = np.sort(np.where(answers & (seconds <= limit_s), seconds, np.inf), axis=1)
        in_time = np.isfinite(times).sum(axis=1)
        full = in_time >= wanted
        last_s = times[:, wanted - 1] if 0 < wanted <= times.shape[1] else np.full(len(times), np.inf)
        return np.where(full, last_s, np.minimum(seconds.max(axis=1), limit_s)), np.minimum(in_time, wanted)

    wrong = np.stack([_factor(factors, client["device"], draws) for client in sent], axis=1)
    (as_run_s,), (as_run,) = closed(total_s[None])
    drawn_s, used = closed(total_s + train_s * (wrong - 1))
    return drawn_s - as_run_s, used + (useful - as_run), float(useful)


def _joules(rounds: Sequence[Json], factors: Draws, watts: Mapping[str, float], draws: int) -> np.ndarray:
    """Return the joules of the client that has used most by the end of each round, in every draw."""
    spent: dict[int, np.ndarray] = {}
    most = np.zeros(draws)
    found = []
    for record in rounds:
        for client in record["clients"]:
            if client["download_s"] is None:
                continue
            device, train_s = client["device"], client.get("train_s") or 0.0
            wrong = _factor(factors, device, draws) * _factor(factors, power_of(device), draws)
            joules = (client["energy_j"] or 0.0) + watts.get(device, 0.0) * train_s * (wrong - 1)
            spent[client["client"]] = spent.get(client["client"], 0.0) + joules
            most = np.maximum(most, spent[client["client"]])
        found.append(most)
    return np.stack(found, axis=1)


def _factor(factors: Draws, device: str, draws: int) -> np.ndarray:
    found = factors.get(device)
    return np.ones(draws) if found is None else found
