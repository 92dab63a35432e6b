"""A run with real devices beside the simulation of the same configuration: predicted and real seconds, bytes and losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from edgefl.errors import InputError
from edgefl.records import ACCURACY, Metric
from edgefl.report.metric import metric_text
from edgefl.report.results import Result
from edgefl.report.round_lines import ClientLine, RoundLine
from edgefl.report.run_files import AnySummary
from edgefl.report.tables import Column, PlainTable, cell, text
from edgefl.report.words import USEFUL, clients_of, of_devices, tier_label
from edgefl.util.units import MISSING, human_bytes, human_seconds

_SAME = ("method", "model", "dataset", "clients", "per_round", "local_epochs", "batch_size", "codec", "objective", "fleet")


@dataclass(frozen=True)
class Sessions(Result):
    """Sessions of one device and tier over all rounds of a run.

    Attributes:
        sessions, trained, refused: how many there were, how many updates were used, and how many were refused.
        train_s: mean seconds of training of those that trained; None if none did. The fields after it are such means, too.
        way_s: seconds before and after training; of a real device with the start of its process.
        download_bytes, upload_bytes: bytes of a session.
    """

    sessions: int
    trained: int
    refused: int
    train_s: float | None
    way_s: float | None
    download_bytes: float | None
    upload_bytes: float | None

    @property
    def lost(self) -> int:
        """How many began and were of no use: dropped, late, crashed and others."""
        return self.sessions - self.trained - self.refused


@dataclass(frozen=True)
class TwinRow(Result):
    """The sessions of a device and tier, real and simulated."""

    device: str
    tier: float
    real: Sessions
    simulated: Sessions


@dataclass(frozen=True)
class WholeRun(Result):
    """A whole run: rounds, mean seconds of a round without waiting, all bytes, bytes of training graphs, accuracy after the last round."""

    rounds: int
    round_s: float
    download_bytes: int
    upload_bytes: int
    setup_bytes: int
    accuracy: float | None


@dataclass(frozen=True)
class Twin(Result):
    """A run with real devices and its simulated twin; ``metric`` is what both have under ``accuracy``."""

    rows: tuple[TwinRow, ...]
    real: WholeRun
    simulated: WholeRun
    metric: Metric = ACCURACY


def twin_of(real: tuple[AnySummary, Sequence[RoundLine]], simulated: tuple[AnySummary, Sequence[RoundLine]]) -> Twin:
    """Return the comparison of two runs, each the content of its ``summary.json`` and its ``rounds.jsonl``.

    Raises:
        InputError: the first run had no real devices, the second had, or they trained something else.
    """
    for (_, rounds), wanted, place in ((real, True, "first"), (simulated, False, "second")):
        if of_devices(rounds) != wanted:
            kinds = "a run with real devices", "a simulation"
            actual, expected = kinds if not wanted else kinds[::-1]
            raise InputError(f"compare: the {place} folder: got {actual}, expected {expected}; give REAL first, then SIMULATED")
    tiers = [[row.tier for row in summary.tiers] for summary, _ in (real, simulated)]
    metric, other = (summary.metric for summary, _ in (real, simulated))
    pairs = [(key, *(getattr(summary, key) for summary, _ in (real, simulated))) for key in _SAME]
    pairs += [("tiers", *tiers), ("metric", metric.name, other.name)]
    if different := [f"{key} is {one!r} and {other!r}" for key, one, other in pairs if one != other]:
        raise InputError(
            f"compare: the runs differ: {'; '.join(different)}; simulate the configuration of the real run (its config.toml)"
        )
    groups = [_grouped(rounds) for _, rounds in (real, simulated)]
    keys = sorted({key for sessions in groups for key in sessions})
    rows = (TwinRow(*key, *(_sessions(sessions.get(key, [])) for sessions in groups)) for key in keys)
    return Twin(tuple(rows), _whole(*real), _whole(*simulated), metric)


def _grouped(rounds: Sequence[RoundLine]) -> dict[tuple[str, float], list[ClientLine]]:
    sessions: dict[tuple[str, float], list[ClientLine]] = {}
    for client in clients_of(rounds):
        sessions.setdefault((client.device, client.tier or 0.0), []).append(client)
    return sessions


def _sessions(clients: Sequence[ClientLine]) -> Sessions:
    trained = [client for client in clients if client.status == USEFUL]
    refused = sum(client.status == "refused" for client in clients)
    if not trained:
        return Sessions(len(clients), 0, refused, None, None, None, None)
    train_s, down_bytes, up_bytes = (
        fmean(getattr(client, key) for client in trained) for key in ("train_s", "download_bytes", "upload_bytes")
    )
    way_s = fmean((client.download_s or 0.0) + (client.upload_s or 0.0) for client in trained)
    return Sessions(len(clients), len(trained), refused, train_s, way_s, down_bytes, up_bytes)


def _whole(summary: AnySummary, rounds: Sequence[RoundLine]) -> WholeRun:
    setup_bytes = sum(line.observed.get("setup_bytes", 0) for line in rounds)
    sums = summary.download_bytes, summary.upload_bytes
    return WholeRun(len(rounds), fmean(line.round_s for line in rounds), *sums, setup_bytes, summary.global_accuracy)


def twin_table(twin: Twin) -> PlainTable:
    """Return a row for each device and tier; below it, what the whole runs took."""

    def both(group: str, key: str, human: Callable[[Any], str]) -> tuple[Column, ...]:
        return tuple(Column(group, side, cell(key, human, side)) for side in ("real", "simulated"))

    columns = (
        text("device", "", "device"),
        Column("tier", "", lambda row: tier_label(row.tier) if row.tier else MISSING, numeric=False),
        *both("trained", "trained", str),
        *both("lost", "lost", str),
        *both("training", "train_s", human_seconds),
        *both("start and way", "way_s", human_seconds),
        *both("upload", "upload_bytes", human_bytes),
    )
    ones = [f"{name}: {_told(one, twin.metric)}" for name, one in (("real", twin.real), ("simulated", twin.simulated))]
    return PlainTable.of(columns, twin.rows, stacked=True, note="\n".join(ones))


def _told(whole: WholeRun, metric: Metric) -> str:
    graphs = f", {human_bytes(whole.setup_bytes)} of training graphs" if whole.setup_bytes else ""
    moved = f"{human_bytes(whole.download_bytes)} down, {human_bytes(whole.upload_bytes)} up{graphs}"
    return f"{whole.rounds} rounds of {human_seconds(whole.round_s)} each; {moved}; {metric.name} {metric_text(metric, whole.accuracy)}"
