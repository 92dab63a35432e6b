"""The record of one round: a line for each client, their totals, and the line of ``rounds.jsonl``."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Self

from edgefl.records.metric import ACCURACY, Metric
from edgefl.records.model import Tier
from edgefl.records.session import Expected, Grouped, Outcome, Status
from edgefl.util.unknown import known_sum

# The first keys of a client's entry, in the order of the file.
_BEFORE_TIMES = (
    "client", "device", "status", "tier", "samples", "steps", "train_loss", "macs", "download_bytes", "upload_bytes",
    "measured_peak_activation_bytes", "measured_training_memory_bytes", "predicted_memory_bytes", "memory_bytes", "host_memory_bytes",
    "micro_batch", "recompute", "state",
)  # fmt: skip
# Of a session: MACs, bytes down and up. Of one that began: joules on the device and with the path to the server, None if unknown; seconds.
Counts = tuple[int, int, int]
Spent = tuple[float | None, float | None, float]
_OF_GROUP = ("device", "tier", "status")
Observed = Mapping[str, Any]
"""Figures that a method or a stage reports of a round, by names of its own: JSON values."""


@dataclass(frozen=True)
class Screened:
    """The result of screening one client's update.

    Attributes:
        change_norm: norm of the client's change before clipping; None: not measured.
        clipped: whether the change was scaled down.
        dropped: whether the update was left out of the aggregate.
        counted_samples: the samples that the update counted for, if its client claimed more; None: as many as it claimed.
        norm_ratio: ``change_norm`` over the median of the tier's; None: not measured.
        cosine: cosine of the client's change and the coordinate-wise median of its tier's; None: not measured, or one of them is zero.
    """

    change_norm: float | None = None
    clipped: bool = False
    dropped: bool = False
    counted_samples: int | None = None
    norm_ratio: float | None = None
    cosine: float | None = None


@dataclass(frozen=True)
class ClientRecord:
    """One client's entry in a round's record.

    Attributes:
        expected: its session; if its job failed, shortened to the part that took place.
        outcome: what became of its job, without payload and stored tensors; None if the server did not wait for it.
        staleness: how many steps the server has taken since it sent the model; None in synchronous rounds.
        unmasked: whether its update could be used: not if too few clients of its group were left to read their sum.
        screened: what the server found in its update; None: updates are not screened, or there is none.
    """

    expected: Expected
    outcome: Outcome | None = None
    staleness: int | None = None
    unmasked: bool = True
    screened: Screened | None = None

    @property
    def client(self) -> int:
        """The number of the client."""
        return self.expected.client

    @property
    def status(self) -> Status:
        """How its session ended."""
        if self.outcome is not None and self.outcome.status == "trained" and not self.unmasked:
            return "masked"
        if self.outcome is not None and self.outcome.status != "lost":  # a lost job runs elsewhere
            return self.outcome.status
        return "late" if self.expected.status == "expected" else self.expected.status

    def to_json(self) -> dict[str, Any]:
        """Return the entry's JSON form, a flat table apart from ``refusal`` and, if there is one, ``screened``."""
        expected, timing = self.expected, self.expected.timing
        values = {**vars(self.outcome or Outcome(self.client, "lost")), **vars(expected)}
        times = ("download_s", "train_s", "upload_s", "total_s", "total_j", "end_to_end_j")
        return {
            **{key: values[key] for key in _BEFORE_TIMES},
            "status": self.status,
            "tier": expected.tier.number if expected.tier else None,
            "staleness": self.staleness,
            "start_s": expected.start_s,
            **{key.replace("total_j", "energy_j"): getattr(timing, key, None) for key in times},
            **({} if expected.grouped is None else self._grouped(expected.grouped)),
            "refusal": [asdict(s) for s in expected.refusal],
            **({} if self.screened is None else {"screened": asdict(self.screened)}),
        }

    def _grouped(self, grouped: Grouped) -> dict[str, Any]:
        """Return what a group adds to the entry."""
        timing = self.expected.timing
        stages = {s.name: {"upload_bytes": s.upload_bytes, "download_bytes": s.download_bytes} for s in grouped.stages}
        seconds = {key: getattr(timing, key, None) for key in ("agree_s", "unmask_s")}
        return {grouped.key: {"group": grouped.group, "agreed": grouped.agreed, "stages": stages, **seconds}}


@dataclass(frozen=True)
class Totals:
    """Sums over simulated sessions: MACs, bytes to and from clients, and seconds of devices.

    ``energy_j`` is spent on devices; ``end_to_end_j`` includes the path to the server. Both are None if that of a session is unknown.
    """

    clients: int
    macs: int
    download_bytes: int
    upload_bytes: int
    energy_j: float | None
    end_to_end_j: float | None
    device_s: float

    @classmethod
    def of(cls, records: Iterable[ClientRecord]) -> Self:
        """Return the sums over ``records``; a refused client adds one to the clients and nothing else."""
        sessions = [record.expected for record in records]
        spent = [None if (t := s.timing) is None else (t.total_j, t.end_to_end_j, t.total_s) for s in sessions]
        return cls.summed([((s.macs, s.download_bytes, s.upload_bytes), of) for s, of in zip(sessions, spent, strict=True)])

    @classmethod
    def summed(cls, sessions: Sequence[tuple[Counts, Spent | None]]) -> Self:
        """Return the sums over sessions, added in their order; of one that did not begin, nothing is spent."""
        counts, begun = [of for of, _ in sessions], [spent for _, spent in sessions if spent is not None]
        macs, down_bytes, up_bytes = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
        energy_j, end_to_end_j, seconds = zip(*begun, strict=True) if begun else ((), (), ())
        return cls(len(sessions), macs, down_bytes, up_bytes, known_sum(energy_j), known_sum(end_to_end_j), sum(seconds))


@dataclass(frozen=True, kw_only=True)
class Group(Totals):
    """The totals of the clients of one device, tier and status in a round; refused clients may have no tier."""

    device: str
    tier: float | None
    status: str


@dataclass(frozen=True)
class RoundRecord:
    """One line of ``rounds.jsonl``: what every client did, what it cost, and how accurate the models are after the aggregation.

    Attributes:
        round: the round's number, from 1.
        round_s, clock_s: duration of the round without ``waited_s``, and the simulated clock at its end.
        accuracy: ``"global"`` and each tier's label → its ``metric``; empty if the round was not evaluated. If clients have models or
            labels of their own, it is the mean over clients, each on its own held-out samples.
        host_s: how long the round took on this computer.
        observed: figures that the method reports of the round.
        waited_s: how long the server waited for the calendar, for eligible clients, and after a round in which it refused all clients.
        deadline_s: the longest that the round may last; None: no limit.
        metric: what ``accuracy`` has.
        of_features: what features add to the line, by key.
        began: under a calendar, when the round began, as "2026-06-01 22:00" or "day 1 22:00".
        next_s: under a calendar, the first moment at which the next round may begin.
    """

    round: int
    clients: tuple[ClientRecord, ...]
    round_s: float
    clock_s: float
    accuracy: Mapping[str, float]
    host_s: float
    observed: Observed = field(default_factory=dict)
    waited_s: float = 0.0
    deadline_s: float | None = None
    metric: Metric = ACCURACY
    of_features: Observed = field(default_factory=dict)
    began: str | None = None
    next_s: float | None = None

    @property
    def accuracy_after_training(self) -> float | None:
        """The mean accuracy of the networks that clients trained, each on held-out samples of the client; None: not evaluated."""
        outcomes = [record.outcome for record in self.clients if record.outcome is not None and record.status == "trained"]
        accuracies = [outcome.accuracy_after_training for outcome in outcomes if outcome.accuracy_after_training is not None]
        return fmean(accuracies) if accuracies else None

    @property
    def useful(self) -> Totals:
        """Totals of the clients whose updates the server used."""
        return Totals.of(c for c in self.clients if c.status == "trained")

    @property
    def wasted(self) -> Totals:
        """Totals of the sessions that began and whose updates the server did not use."""
        return Totals.of(c for c in self.clients if c.status not in ("trained", "refused"))

    def groups(self) -> list[Group]:
        """Return the totals of each combination of device, tier and status, in that order."""
        of_group: dict[tuple[str, float, str], list[ClientRecord]] = {}
        for record in self.clients:
            expected = record.expected
            of_group.setdefault((expected.device, expected.tier.ratio if expected.tier else 0.0, record.status), []).append(
                record
            )
        return [
            Group(**vars(Totals.of(records)), device=device, tier=Tier(tier).number if tier else None, status=status)
            for (device, tier, status), records in sorted(of_group.items())
        ]

    def to_json(self, clients: bool = True) -> dict[str, Any]:
        """Return the record's JSON form with its totals and, with ``clients``, an entry for each client."""
        useful, wasted, after = dict(vars(self.useful)), dict(vars(self.wasted)), self.accuracy_after_training
        sums = ("macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j")
        return {
            **{key: getattr(self, key) for key in ("round", "round_s", "waited_s", "deadline_s", "clock_s")},
            **({} if self.began is None else {"began": self.began, "next_s": self.next_s}),
            "accuracy": dict(self.accuracy),
            **({} if after is None else {"accuracy_after_training": after}),
            "trained": useful["clients"],
            **{key: known_sum((useful[key], wasted[key])) for key in sums},
            "useful": useful,
            "wasted": wasted,
            "groups": [{key: vars(group)[key] for key in _OF_GROUP} | vars(group) for group in self.groups()],
            "host_s": self.host_s,
            **({"observed": dict(self.observed)} if self.observed else {}),
            **self.of_features,
            **({"clients": [c.to_json() for c in self.clients]} if clients else {}),
        }
