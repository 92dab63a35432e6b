"""The evaluated rounds of a run: what had been used by then, and how good the model is that each client gets.

Seconds are those of the simulated clock at the end of a round. Bytes and joules are those of one client: of the client that has used most
up to that round, so that no client exceeds its budget. All sessions count, also those whose updates the server did not use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, get_args

from edgefl.errors import ConfigError
from edgefl.report.results import Result
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import RunSummary
from edgefl.report.run_rows import Participation, TierRow
from edgefl.report.words import USEFUL, clients_of, tier_label
from edgefl.util.unknown import known_sum

RankBy = Literal["clients", "worst", "global"]
"""What methods are ranked by: the mean over clients of the model that each gets, that of the worst device class, or the global model."""
RANKED_BY: tuple[RankBy, ...] = get_args(RankBy)


@dataclass(frozen=True)
class Evaluated(Result):
    """One evaluated round of a run, and what had been used at its end.

    Attributes:
        client_bytes, client_j: of the client that had used most; ``client_j`` is None if the energy of a client is unknown.
        macs: of all clients together, as are ``bytes`` both ways and ``energy_j``, which is None if it is unknown.
        accuracy: "global" and each tier's label → a share in [0, 1], or the run's own metric.
        trained: device → how many of its clients had trained at least once.
    """

    round: int
    simulated_s: float
    client_bytes: float
    client_j: float | None
    macs: float
    accuracy: Mapping[str, float]
    trained: Mapping[str, int]
    bytes: float = 0.0
    energy_j: float | None = None


@dataclass(frozen=True)
class Served:
    """What the clients of one device get in one run.

    Attributes:
        tier: the largest that fits the device; None if it is refused.
        runs: label of a tier → the share of the clients that run it. The rest has no model.
        refused: the share of the clients that are refused.
    """

    device: str
    title: str
    clients: int
    tier: float | None
    runs: Mapping[str, float]
    refused: float = 0.0

    @classmethod
    def of_tier(cls, device: str, title: str, clients: int, tier: float | None) -> Served:
        """Return a device whose clients all run ``tier``, or are refused and have no model."""
        return cls(device, title, clients, tier, {} if tier is None else {tier_label(tier): 1.0}, float(tier is None))

    def accuracy(self, of: Mapping[str, float]) -> float:
        """Return the mean over these clients from the accuracy of each tier; a client without a model counts as 0.

        >>> Served("phone", "Phone", 4, 0.5, {"0.5": 0.75}).accuracy({"0.5": 0.8})
        0.6000000000000001
        """
        return sum(share * of[label] for label, share in self.runs.items())


@dataclass(frozen=True)
class CountedRun:
    """One finished run, as far as it counts in a comparison.

    Attributes:
        points: its evaluated rounds.
        classes: a line per device.
        rounds: the lines of its ``rounds.jsonl``, and ``per_round`` how many updates a round wants; both are needed for other clocks only.
    """

    seed: int
    points: tuple[Evaluated, ...]
    classes: tuple[Served, ...]
    rounds: Sequence[RoundLine] = ()
    per_round: int = 0

    def score(self, point: Evaluated, rank_by: RankBy) -> float:
        """Return what a method is ranked by at one evaluated round."""
        served = [of for of in self.classes if of.clients]
        if rank_by == "global" or not served:
            return float(point.accuracy["global"])
        own = [of.accuracy(point.accuracy) for of in served]
        return min(own) if rank_by == "worst" else fmean(own, weights=[of.clients for of in served])

    @property
    def refused(self) -> float:
        """The share of all clients that are refused."""
        whole = sum(of.clients for of in self.classes)
        return sum(of.refused * of.clients for of in self.classes) / whole if whole else 0.0


def check_rank_by(rank_by: str) -> RankBy:
    """Return ``rank_by``; raise :class:`ConfigError` if methods cannot be ranked by it."""
    for known in RANKED_BY:
        if rank_by == known:
            return known
    raise ConfigError(f"rank_by: got {rank_by!r}, expected one of {', '.join(RANKED_BY)}")


def counted_run(seed: int, summary: RunSummary, rounds: Sequence[RoundLine]) -> CountedRun:
    """Return a finished run as far as it counts in a comparison."""
    return CountedRun(seed, evaluated_of(rounds), served_of(summary, rounds), rounds, summary.per_round)


def evaluated_of(rounds: Sequence[RoundLine]) -> tuple[Evaluated, ...]:
    """Return the evaluated rounds of a run from the lines of its ``rounds.jsonl``."""
    sent: Counter[int] = Counter()
    joules: dict[int, float | None] = {}
    trained: dict[int, str] = {}
    macs, all_bytes, all_j, found = 0, 0.0, known_sum([0.0]), []
    for line in rounds:
        macs += line.macs
        all_bytes += line.download_bytes + line.upload_bytes
        all_j = known_sum((all_j, line.energy_j))
        for client in line.clients:
            number = client.client
            sent[number] += client.download_bytes + client.upload_bytes
            spent_j = 0.0 if client.download_s is None else client.energy_j  # nothing was sent to it
            joules[number] = known_sum((joules.get(number, 0.0), spent_j))
            if client.status == USEFUL:
                trained[number] = client.device
        if line.accuracy:
            unknown = None in joules.values()
            most = (
                max(sent.values(), default=0),
                None if unknown else max((j for j in joules.values() if j is not None), default=0.0),
            )
            devices = dict(sorted(Counter(trained.values()).items()))
            found.append(Evaluated(line.round, line.clock_s, *most, macs, dict(line.accuracy), devices, all_bytes, all_j))
    return tuple(found)


def served_of(summary: RunSummary, rounds: Sequence[RoundLine]) -> tuple[Served, ...]:
    """Return what the clients of each device get.

    That is the tier that they are assigned, if some client trained it. A client that is refused, or whose tier no client trained, gets
    the smallest trained tier that its device can run, or no model.
    """
    drawn = summary.tier_assignment != "auto"
    return tuple(_served(summary, row, _drawn(rounds, row.device) if drawn else {}) for row in summary.participation)


def _served(summary: RunSummary, row: Participation, drawn: Mapping[float | None, float]) -> Served:
    assigned = drawn or {row.tier: 1.0}
    trained = {tier.tier for tier in summary.tiers if tier.updates != 0}
    runs: dict[str, float] = {}
    for tier, share in assigned.items():
        used = tier if tier in trained else _smallest_that_runs(summary, row.device)
        if used is not None:
            runs[tier_label(used)] = runs.get(tier_label(used), 0.0) + share
    return Served(row.device, row.title, row.clients, row.tier, runs, assigned.get(None, 0.0))


def _drawn(rounds: Sequence[RoundLine], device: str) -> dict[float | None, float]:
    """Return tier → the share of a device's sessions that were assigned it, None for refused ones; nothing without a session."""
    own = Counter(client.tier for client in clients_of(rounds) if client.device == device)
    return {tier: count / own.total() for tier, count in own.items()}


def _smallest_that_runs(summary: RunSummary, device: str) -> float | None:
    """Return the smallest trained tier whose inference of one sample fits the memory of a device; None if none does."""
    memory = _memory_bytes(summary, device)
    trained = (row.tier for row in summary.tiers if row.updates != 0 and memory is not None and _inference_bytes(row) <= memory)
    return min(trained, default=None)


def _memory_bytes(summary: RunSummary, device: str) -> float | None:
    """Return what an application may hold on a device; None if the summary does not say."""
    found = (
        budget.have
        for row in summary.classes
        if row.device == device
        for budget in row.budgets
        if budget.budget == "memory_bytes"
    )
    return max(found, default=None)


def _inference_bytes(row: TierRow) -> float:
    """Return the bytes of an inference of one sample: the weights, and a sample's share of the activations of a batch."""
    return row.weights_bytes_inference + -(-row.peak_activation_bytes_inference // row.batch_size)
