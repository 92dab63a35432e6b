"""Finished rounds, timed again with clocks that are wrong by some factors.

The server's plan stays as it was, since it has only the predictions: the same clients are asked, with the same tiers. Their training takes
longer or shorter, so other answers are in time, and rounds close at other times. A client that would still be busy is asked all the same.
The clock is that of the run plus what its rounds change, so a factor of 1 gives the run itself. The pauses of a calendar absorb it. Async
rounds overlap: they are not timed again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgefl.fleet.clock import Draws, power_of
from edgefl.report.policies import EXPONENT
from edgefl.report.round_lines import RoundLine
from edgefl.report.words import USEFUL


@dataclass(frozen=True, eq=False)
class TimedRound:
    """What a round needs to be timed again: columns of the sessions that began, and the round's own figures.

    Attributes:
        useful: how many updates the server used.
        devices: of each session.
        train_s, total_s: of each session, float64.
        answers: whether each session answered, in time or late.
        late: whether each answered after the round's end.
        pause_s: the wait for the calendar before the round.
    """

    clock_s: float
    deadline_s: float | None
    useful: int
    devices: Sequence[str]
    train_s: np.ndarray
    total_s: np.ndarray
    answers: np.ndarray
    late: np.ndarray
    pause_s: float = 0.0

    @cached_property
    def classes(self) -> list[str]:
        """The devices, each once."""
        return [*dict.fromkeys(self.devices)]

    @cached_property
    def places(self) -> np.ndarray:
        """The place among :attr:`classes` of each session's device, int64."""
        place_of = {device: place for place, device in enumerate(self.classes)}
        return np.array([place_of[device] for device in self.devices], np.int64)

    @classmethod
    def of(cls, record: RoundLine) -> TimedRound:
        """Return what the line of a round with its clients says."""
        sent = [client for client in record.clients if client.train_s is not None]
        statuses = [client.status for client in sent]
        train_s, total_s = (np.array([getattr(client, key) for client in sent], float) for key in ("train_s", "total_s"))
        return cls(
            record.clock_s,
            record.deadline_s,
            sum(client.status == USEFUL for client in record.clients),
            [client.device for client in sent],
            train_s,
            total_s,
            np.array([status in (USEFUL, "late") for status in statuses], bool),
            np.array([status == "late" for status in statuses], bool),
            0.0 if record.next_s is None else record.waited_s,
        )


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
    rounds: Sequence[RoundLine],
    per_round: int,
    factors: Draws,
    watts: Mapping[str, float] | None = None,
    draws: int | None = None,
) -> Retimed:
    """Return rounds, lines of ``rounds.jsonl`` with their clients, with the seconds of training of each device times its factors.

    ``per_round`` is how many updates a round wants. With ``watts``, device → watts while it trains, joules follow the seconds.
    """
    count = draws or max((len(own) for own in factors.values()), default=1)
    again = rounds_retimed([TimedRound.of(record) for record in rounds], per_round, factors, count)
    return again if watts is None else replace(again, client_j=_joules(rounds, factors, watts, count))


def rounds_retimed(rounds: Sequence[TimedRound], per_round: int, factors: Draws, draws: int) -> Retimed:
    """Return the rounds of a run in every draw, see :func:`retimed`."""
    more = {device: np.append(0.0, own - 1) for device, own in factors.items() if (own != 1).any()}
    shift_s, clocks, used = np.zeros(draws), list[np.ndarray](), list[np.ndarray]()
    for of in rounds:
        later_s, its_used = _round(of, per_round, more, draws)
        shift_s = (np.maximum(shift_s - of.pause_s, 0.0) if of.pause_s else shift_s) + later_s
        clocks.append(of.clock_s + shift_s)
        used.append(its_used)
    predicted = np.array([of.useful for of in rounds], dtype=float)
    return Retimed(np.stack(clocks, axis=1), np.stack(used, axis=1), predicted)


def _round(record: TimedRound, per_round: int, more: Mapping[str, np.ndarray], draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return by how many seconds a round is longer in every draw, and how many updates it uses.

    ``more`` is what the training of a device takes more, as a share of its seconds: (1 + draws,), the run itself first. Sessions of other
    devices take what they took.
    """
    useful, total_s = record.useful, record.total_s
    wrong = [device in more for device in record.classes]
    if not any(wrong):
        return np.zeros(draws), np.full(draws, float(useful))
    limit_s = np.inf if record.deadline_s is None else record.deadline_s
    spare = bool((record.late & (total_s <= limit_s)).any())
    wanted = useful if spare and useful else max(per_round, useful)

    moves, unchanged = np.array(wrong)[record.places], np.zeros(draws + 1)
    shares = np.stack([more.get(device, unchanged) for device in record.classes])[record.places[moves]]
    seconds, still_s = total_s[moves, None] + record.train_s[moves, None] * shares, total_s[~moves]
    answers_s, still = seconds[record.answers[moves]], np.sort(still_s[record.answers[~moves]])

    in_time = (answers_s <= limit_s).sum(axis=0) + np.searchsorted(still, limit_s, "right")
    closed_s = np.minimum(np.maximum(seconds.max(axis=0), still_s.max(initial=-np.inf)), limit_s)
    full = in_time >= wanted
    if full.any():
        # Answers that take what they took are sorted: those too early to be the last one that is wanted need no look.
        early = max(0, wanted - len(answers_s) - 1)
        near = np.broadcast_to(still[early:wanted, None], (len(still[early:wanted]), draws + 1))
        last = wanted - 1 - early
        closed_s = np.where(full, np.partition(np.concatenate([near, answers_s]), last, axis=0)[last], closed_s)
    used = np.minimum(in_time, wanted)
    return closed_s[1:] - closed_s[0], used[1:] + (useful - used[0])


def _joules(rounds: Sequence[RoundLine], factors: Draws, watts: Mapping[str, float], draws: int) -> np.ndarray:
    """Return the joules of the client that has used most by the end of each round, in every draw."""
    spent: dict[int, np.ndarray] = {}
    most = np.zeros(draws)
    found = []
    for record in rounds:
        for client in record.clients:
            if client.download_s is None:
                continue
            device, train_s = client.device, client.train_s or 0.0
            wrong = _factor(factors, device, draws) * _factor(factors, power_of(device), draws)
            joules = (client.energy_j or 0.0) + watts.get(device, 0.0) * train_s * (wrong - 1)
            spent[client.client] = spent.get(client.client, 0.0) + joules
            most = np.maximum(most, spent[client.client])
        found.append(most)
    return np.stack(found, axis=1)


def _factor(factors: Draws, device: str, draws: int) -> np.ndarray:
    found = factors.get(device)
    return np.ones(draws) if found is None else found
