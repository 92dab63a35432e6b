"""The records of ``summary.json``, whose keys are the fields, and how the files of a run are read back.

Files of version 0.2.0 and later are read by every later version. A field without a default is one that those files have: an error names
it if it is missing, because it was removed. A field that is added later therefore has a default, which says that the figure is not known.
``tests/golden/edgefl-0.2.0`` holds such files.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ValidationError
from pydantic_core import from_json

from edgefl.errors import InputError
from edgefl.records import ACCURACY, DataRecord, Metric, NodeRecord, Totals
from edgefl.report.added import SELDOM, with_added, without_defaults
from edgefl.report.evaluation import Evaluation
from edgefl.report.results import Result, adapter
from edgefl.report.round_lines import HostStages, RoundLine
from edgefl.report.run_rows import ClassRow, Finite, Number, Participation, PolicyRow, TierRow, Whole, Written
from edgefl.util.files import require_plain
from edgefl.util.hashes import checked
from edgefl.util.validation import explain


@dataclass(frozen=True, kw_only=True)
class RunTotals(Result):
    """What all rounds together took.

    Attributes:
        waited_s: how long the server waited for the calendar, for clients to become eligible, and after rounds in which it refused all.
        began, last_began: under a calendar, when the first and the last round began.
        end_to_end_j: energy of the devices and of the network's path; ``energy_j`` is that of the devices. None: unknown, as a device that
            took part has no figures of energy.
        useful: the sessions whose updates the server used; ``wasted`` are the others, refused ones excluded.
    """

    simulated_s: Number
    waited_s: Number
    host_s: Number
    energy_j: Written | None
    end_to_end_j: Written | None
    macs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    useful: Totals
    wasted: Totals
    edgefl_version: str
    began: str = field(default="", metadata=SELDOM)
    last_began: str = field(default="", metadata=SELDOM)


@dataclass(frozen=True, kw_only=True)
class Configured(Result):
    """The keys of a run's configuration that its summary repeats; :class:`edgefl.RunConfig` explains each."""

    method: str
    model: str
    dataset: str
    partition: str
    seed: Whole
    rounds: Whole
    clients: Whole
    per_round: Whole
    batch_size: Whole
    local_epochs: Whole
    tier_assignment: str
    objective: str
    server_optimizer: str
    codec: str
    permute_labels: bool
    conditions: str
    availability: str
    start_hour: Written
    mode: str
    buffer: Whole | None
    enforce: str
    dynamic_devices: bool
    clock_margin: Number = 1.0


@with_added
@dataclass(frozen=True, kw_only=True)
class Summary(RunTotals, Configured):
    """The content of every ``summary.json``.

    Attributes:
        fleet_title: the fleet's name for people.
        assumed: the fleet's figures that are assumed.
        data: how the user's own data were read; None of a known data set.
        calendar: when rounds begin, in words; "" if they follow each other.
    """

    format: Whole
    over_selection: Written
    deadline_s: Number | None
    fleet: str
    assumed: tuple[str, ...]
    tiers: tuple[TierRow, ...]
    classes: tuple[ClassRow, ...]
    participation: tuple[Participation, ...]
    data: DataRecord | None = field(default=None, metadata=SELDOM)
    fleet_title: str = ""
    calendar: str = field(default="", metadata=SELDOM)

    @property
    def titles(self) -> dict[str, str]:
        """Device → its name for people."""
        return {item.device: item.title for item in self.classes}

    @property
    def largest_first(self) -> list[TierRow]:
        """The tiers, largest first."""
        return sorted(self.tiers, key=lambda row: -row.tier)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the fields that runs seldom have, such as own data, if this one has none."""
        return without_defaults(self, super().to_dict())


@with_added
@dataclass(frozen=True, kw_only=True)
class RunSummary(Summary):
    """The summary of a run that trained.

    Attributes:
        metric: what is under the keys of accuracy: the accuracy, or the run's own metric.
        accuracy_of: "global" for one model on all held-out samples, "clients" for the mean over clients on their own.
        global_accuracy: that accuracy after the last round, None if no round was evaluated.
        accuracy_after_training: mean over the clients of the last round, each with the model that it has just trained, on its own held-out
            samples; None if these were not evaluated.
        before_training: that accuracy before the first round, of a run that began with given weights; None of another.
        mixed_nodes: whether nodes that compute other bits than the server were allowed: the run may not be repeatable to the bit.
        evaluation: what the final models predict by class and by client; None without classes or held-out samples.
        no_bundle: why the run has no bundle: none was wanted, or a network or loss of the user's own cannot be written as graphs. Empty if
            it has one.
        nodes: with mixed nodes, those of the cluster that took part since the run was started or resumed last.
    """

    metric: Metric = ACCURACY
    accuracy_of: Literal["global", "clients"]
    global_accuracy: Finite | None
    accuracy_after_training: Finite | None = None
    before_training: Finite | None = field(default=None, metadata=SELDOM)
    mixed_nodes: bool = False
    nodes: tuple[NodeRecord, ...] = field(default=(), metadata=SELDOM)
    host_stages: HostStages
    evaluation: Evaluation | None = field(default=None, metadata=SELDOM)
    no_bundle: str = field(default="", metadata=SELDOM)

    @property
    def epsilon(self) -> float | None:
        """ε that the run spent; None: there was no noise."""
        return None

    @property
    def noise_multiplier(self) -> float | None:
        """The deviation of the noise over the clip; None: there was none."""
        return None

    @property
    def of_clients(self) -> bool:
        """Whether accuracies are means over clients, each with a model or labels of its own."""
        return self.accuracy_of == "clients"


@dataclass(frozen=True, kw_only=True)
class DrySummary(Summary):
    """The summary of a dry run, which has no accuracies; ``policies`` compares assignments of tiers."""

    metric: ClassVar[Metric] = ACCURACY
    global_accuracy: ClassVar[None] = None
    evaluation: ClassVar[None] = None
    no_bundle: ClassVar[str] = ""

    dry_run: Literal[True]
    policies: tuple[PolicyRow, ...]


AnySummary = RunSummary | DrySummary


def read_summary(path: Path) -> AnySummary:
    """Return the content of a run's ``summary.json``, checked; what an earlier version did not write has its default.

    Raises:
        InputError: the file is missing or malformed; the message names file and key.
    """
    return _summary(_text(path), str(path))


def read_trained(path: Path) -> RunSummary:
    """Return the content of the ``summary.json`` of a run that trained; see :func:`read_summary`."""
    summary: RunSummary = _checked(RunSummary, _text(path), str(path))
    return summary


def stored_summary(path: Path) -> dict[str, Any]:
    """Return the JSON form of :func:`read_summary`, with its values as they were written."""
    text = _text(path)
    found: dict[str, Any] = _as_written(_summary(text, str(path)).to_dict(), from_json(text))
    return found


def read_rounds(path: Path) -> list[RoundLine]:
    """Return the lines of a run's ``rounds.jsonl``, checked.

    Raises:
        InputError: the file is missing, or a line is malformed; the message names file, line and key.
    """
    lines = enumerate(_text(path).splitlines(), start=1)
    return [_checked(RoundLine, line, f"{path}: line {number}") for number, line in lines]


def _summary(text: str, where: str) -> AnySummary:
    summary: AnySummary = _checked(DrySummary if '"dry_run":' in text else RunSummary, text, where)
    return summary


def _as_written(found: Any, written: Any) -> Any:
    """Return the JSON form of a record with its values as they were written: 1 is not 1.0."""
    if isinstance(found, dict):
        return {key: _as_written(value, written[key]) if key in written else value for key, value in found.items()}
    if isinstance(found, list):
        return [_as_written(*pair) for pair in zip(found, written, strict=True)]
    return written


def _checked(kind: Any, text: str, where: str) -> Any:
    """Return the record of a JSON text; further keys are ignored."""
    try:
        from_json(text, allow_inf_nan=False)
        return adapter(kind).validate_json(text, strict=True)
    except ValueError as error:
        problem = explain(error.errors()[0]) if isinstance(error, ValidationError) else f"not valid JSON ({error})"
        raise InputError(f"{where}: {problem}; restore the file or run the simulation again") from None


def _text(path: Path) -> str:
    try:
        require_plain(path, InputError)
        return checked(path, path.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        problem = "no such file" if missing else f"cannot be read as UTF-8 text ({error})"
        raise InputError(f"{path}: {problem}; give the folder of a finished run") from None
