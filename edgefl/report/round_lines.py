"""The records of rounds: a line of ``rounds.jsonl``, whose keys are the fields, and a round as a row of a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from typing_extensions import TypedDict  # pydantic cannot read that of typing before Python 3.12

from edgefl.records import Group, RoundRecord, Screened, Shortfall
from edgefl.report.added import with_added
from edgefl.report.results import Result, adapter
from edgefl.report.run_rows import Finite, Number, Whole, Written
from edgefl.util.unknown import known_sum


class HostStages(TypedDict, total=False):
    """Stage → seconds of this computer: in the main thread, in its other threads, and in each worker process."""

    server: Mapping[str, Number]
    background: Mapping[str, Number]
    workers: Mapping[str, Mapping[str, Number]]


@dataclass(frozen=True, kw_only=True)
class SessionFigures(Result):
    """The figures of one client's session in a round.

    Attributes:
        status: "trained" if the server used its update, else how the session ended, such as "late".
        steps: training steps, with the mean loss ``train_loss``.
        start_s: simulated seconds from the beginning of the round; the session took ``total_s`` from then on.
        staleness: server steps between the model that it began with and its update; None in synchronous rounds.
    """

    client: Whole
    device: str
    tier: Written | None
    status: str
    samples: Whole | None = None
    steps: Whole | None = None
    train_loss: float | None = None
    macs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    energy_j: Number | None = None
    end_to_end_j: Number | None = None
    start_s: Number
    download_s: Number | None
    train_s: Number | None
    upload_s: Number | None
    total_s: Number | None = None
    predicted_memory_bytes: Whole | None = None
    measured_training_memory_bytes: Whole | None = None
    staleness: Whole | None = None


@with_added
@dataclass(frozen=True, kw_only=True)
class ClientLine(SessionFigures):
    """One client's session in a round.

    Attributes:
        refusal: the budgets that it does not meet.
        micro_batch, recompute: how the device trains its tier.
        state: that of the device.
        screened: what the server found in its update; None: updates are not screened, or there is none.
    """

    refusal: tuple[Shortfall, ...]
    micro_batch: Whole | None = None
    recompute: tuple[str, ...] = ()
    state: str | None = None
    measured_peak_activation_bytes: Whole | None = None
    screened: Screened | None = None

    @property
    def waits_s(self) -> tuple[Mapping[str, float | None], Mapping[str, float | None]]:
        """Name → seconds of waits for other clients, before the download and after the upload."""
        return {}, {}


@dataclass(frozen=True, kw_only=True)
class RoundRow(Result):
    """One round as a row of a table, without its clients: what it took, and how accurate the models are after it.

    Attributes:
        accuracy: "global" and each tier's label → share, or the run's own metric; empty if the round was not evaluated.
        clock_s: the simulated clock at the end of the round, which took ``round_s`` after ``waited_s``.
        began: under a calendar, when the round began, as "2026-06-01 22:00" or "day 1 22:00".
        trained: the number of updates that the server used.
        host_s: seconds of this computer.
    """

    round: Whole
    accuracy: Mapping[str, Finite]
    accuracy_after_training: Finite | None = None
    clock_s: Number
    round_s: Number
    waited_s: Number
    deadline_s: Number | None
    macs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    energy_j: Written | None
    began: str | None = None
    trained: Whole
    host_s: Number


_OF_RECORD = ("round", "accuracy", "clock_s", "round_s", "waited_s", "deadline_s", "began", "next_s", "host_s", "observed")
_SUMMED = ("macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j")


@with_added
@dataclass(frozen=True, kw_only=True)
class RoundLine(RoundRow):
    """One line of ``rounds.jsonl``.

    Attributes:
        end_to_end_j: energy of the devices and of the network's path; None if it is unknown.
        next_s: under a calendar, the first moment at which the next round may begin.
        clients: missing in most rounds of a dry run.
        observed: figures that the method and the features report of the round.
    """

    end_to_end_j: Written | None
    next_s: Number | None = None
    groups: tuple[Group, ...]
    clients: tuple[ClientLine, ...] = ()
    stages: HostStages | None = None
    observed: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: RoundRecord) -> Self:
        """Return the line of a round without its clients."""
        useful, wasted = record.useful, record.wasted
        own = {key: getattr(record, key) for key in _OF_RECORD}
        sums: dict[str, Any] = {key: known_sum((getattr(useful, key), getattr(wasted, key))) for key in _SUMMED}
        return cls(**own, **sums, trained=useful.clients, groups=tuple(record.groups()))

    @property
    def row(self) -> RoundRow:
        """The round without its clients."""
        row: RoundRow = _row(RoundRow, vars(self))
        return row

    @property
    def sessions(self) -> list["SessionRow"]:
        """The sessions of its clients; none where it lists no clients."""
        return [_row(SessionRow, {"round": self.round, **vars(client)}) for client in self.clients]


@dataclass(frozen=True, kw_only=True)
class _OfRound(Result):
    round: Whole


@dataclass(frozen=True, kw_only=True)
class SessionRow(SessionFigures, _OfRound):
    """One client's session in a round, as a row of a table."""


def _row(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the values of the fields of ``kind`` as a row of a table."""
    return adapter(kind).validate_python({key.name: values[key.name] for key in fields(kind)})
