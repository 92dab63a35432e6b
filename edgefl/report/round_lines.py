"""The records of rounds: a line of ``rounds.jsonl``, whose keys are the fields, and a round as a row of a table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from typing_extensions import TypedDict  # pydantic cannot read that of typing before Python 3.12

from edgefl.records import Group, Screened, Shortfall
from edgefl.report.results import Result, adapter
from edgefl.report.run_rows import Finite, Number, Whole


class HostStages(TypedDict, total=False):
    """Stage → seconds of this computer: in the main thread, in its other threads, and in each worker process."""

    server: Mapping[str, Number]
    background: Mapping[str, Number]
    workers: Mapping[str, Mapping[str, Number]]


@dataclass(frozen=True)
class ClientLine:
    """One client's session in a round, as far as a report shows it."""

    client: Whole
    device: str
    status: str
    tier: Number | None
    refusal: tuple[Shortfall, ...]
    start_s: Number
    download_s: Number | None
    train_s: Number | None
    upload_s: Number | None
    screened: Screened | None = None


@dataclass(frozen=True, kw_only=True)
class RoundFigures(Result):
    """What one round took and how accurate the models are after it.

    Attributes:
        accuracy: "global" and each tier's label → share, or the run's own metric; empty if the round was not evaluated.
        clock_s: the simulated clock at the end of the round, which took ``round_s`` after ``waited_s``.
        began: under a calendar, when the round began, as "2026-06-01 22:00" or "day 1 22:00".
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
    energy_j: Number | None
    began: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoundLine(RoundFigures):
    """One line of ``rounds.jsonl``. ``clients`` is missing in most rounds of a dry run; ``adversaries`` are the clients that attacked."""

    groups: tuple[Group, ...]
    clients: tuple[ClientLine, ...] = ()
    stages: HostStages | None = None
    observed: Mapping[str, Any] = field(default_factory=dict)
    adversaries: tuple[Whole, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RoundRow(RoundFigures):
    """One round as a row of a table, without its clients: ``trained`` is the number of updates that the server used.

    ``host_s`` are seconds of this computer.
    """

    trained: Whole
    host_s: Number

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> Self:
        """Return the row of a line of ``rounds.jsonl``."""
        row: Self = _row(cls, line)
        return row


@dataclass(frozen=True, kw_only=True)
class SessionRow(Result):
    """One client's session in a round, as a row of a table.

    Attributes:
        status: "trained" if the server used its update, else how the session ended, such as "late".
        steps: training steps, with the mean loss ``train_loss``.
        start_s: simulated seconds from the beginning of the round; the session took ``total_s`` from then on.
        staleness: server steps between the model that it began with and its update; None in synchronous rounds.
    """

    round: Whole
    client: Whole
    device: str
    tier: Number | None = None
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
    download_s: Number | None = None
    train_s: Number | None = None
    upload_s: Number | None = None
    total_s: Number | None = None
    predicted_memory_bytes: Whole | None = None
    measured_training_memory_bytes: Whole | None = None
    staleness: Whole | None = None

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> list[Self]:
        """Return the rows of a line of ``rounds.jsonl``; none where it has no clients, as in most rounds of a dry run."""
        return [_row(cls, {"round": line["round"], **client}) for client in line.get("clients", ())]


def _row(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return the values of the fields of ``kind``, checked; a figure that was not written has its default."""
    return adapter(kind).validate_python({key.name: values[key.name] for key in fields(kind) if key.name in values})
