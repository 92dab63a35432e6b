"""What a report needs to find in ``summary.json`` and in the lines of ``rounds.jsonl``; other keys are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import from_json

from edgefl.errors import InputError
from edgefl.report.schema_fleet import Considered, Group, Number, Participation, Policy, Record, Refusal, Whole, Work
from edgefl.util.validation import explain


class BudgetUse(Record):
    """How much of one budget a device class needs."""

    budget: str
    need: Number
    have: Number
    share: Number | None


class TierRow(Record):
    """One tier: its device, accuracy and costs."""

    tier: Number
    micro_batch: Whole | None = None
    device: str | None
    device_title: str | None
    clients: Whole
    accuracy: Number | None
    torch_accuracy: Number | None
    params: Whole
    macs_forward: Whole
    macs_backward: Whole
    macs_compose: Whole
    macs_train_step: Whole
    peak_activation_bytes_inference: Whole
    peak_activation_bytes_training: Whole
    measured_peak_activation_bytes_training: Whole | None
    measured_training_memory_bytes: Whole | None = None  # runs of older versions have neither
    measured_peak_activation_bytes_inference: Whole | None = None
    measured_peak_activation_bytes_onnx: Whole | None = None
    parameter_bytes: Whole
    gradient_bytes: Whole
    optimizer_bytes: Whole
    training_memory_bytes: Whole
    inference_memory_bytes: Whole
    download_bytes: Whole
    upload_bytes: Whole
    round_seconds: Number | None
    round_joules: Number | None
    budget_share: Number | None
    limiting_budget: str | None
    uncounted_ops: list[str]


class ClassRow(Record):
    """One class of devices: its tier, and its budgets."""

    device: str
    title: str
    share: Number
    clients: Whole
    tier: Number | None
    budgets: list[BudgetUse]
    refusals: list[Refusal]
    micro_batch: Whole | None = None
    considered: list[Considered] = Field(default_factory=list)
    assumed: list[str]


class Stages(Record):
    """Stage → seconds of this computer: of the thread that plays the rounds, of those beside it, of each worker process."""

    server: dict[str, Number] = Field(default_factory=dict)
    background: dict[str, Number] = Field(default_factory=dict)
    workers: dict[str, dict[str, Number]] = Field(default_factory=dict)


class Summary(Record):
    """``summary.json``."""

    format: Whole
    method: str
    model: str
    dataset: str
    fleet: str
    partition: str
    tier_assignment: str
    edgefl_version: str
    seed: Whole
    rounds: Whole
    clients: Whole
    per_round: Whole
    batch_size: Whole
    local_epochs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    simulated_s: Number
    host_s: Number
    host_stages: Stages | None = None
    energy_j: Number
    global_accuracy: Number | None = None  # a dry run trains nothing
    deadline_s: Number | None
    # Runs of older versions have none of these, and are what the defaults say.
    accuracy_of: Literal["global", "clients"] = "global"
    objective: str = "none"
    server_optimizer: str = "avg"
    codec: str = "fp32"
    permute_labels: bool = False
    macs: Whole | None = None
    end_to_end_j: Number | None = None
    waited_s: Number = 0.0
    useful: Work | None = None
    wasted: Work | None = None
    participation: list[Participation] = Field(default_factory=list)
    dry_run: bool = False
    policies: list[Policy] = Field(default_factory=list)
    availability: str = "always"
    start_hour: Number = 0.0
    tiers: list[TierRow]
    classes: list[ClassRow]


class ClientLine(Record):
    """One client's part in a round."""

    client: Whole
    device: str
    status: str
    tier: Number | None = None
    refusal: list[Refusal]
    start_s: Number = 0.0
    download_s: Number | None = None
    train_s: Number | None = None
    upload_s: Number | None = None


class RoundLine(Record):
    """One line of ``rounds.jsonl``."""

    round: Whole
    clock_s: Number
    download_bytes: Whole
    upload_bytes: Whole
    accuracy: dict[str, Number]
    clients: list[ClientLine] = Field(default_factory=list)
    groups: list[Group] = Field(default_factory=list)
    round_s: Number = 0.0
    waited_s: Number = 0.0
    deadline_s: Number | None = None
    macs: Whole | None = None
    energy_j: Number | None = None
    stages: Stages | None = None
    observed: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _of_somebody(self) -> RoundLine:
        if not self.model_fields_set & {"clients", "groups"}:
            raise ValueError("clients: missing, and groups as well: expected at least one of them")
        return self


def read_summary(path: Path) -> dict[str, Any]:
    """Return a run's summary, validated.

    Raises:
        InputError: the file is missing or malformed; names file and key.
    """
    return _checked(Summary, _text(path), str(path))


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the records of a run's rounds, validated.

    Raises:
        InputError: the file is missing, or a line is malformed; names file, line and key.
    """
    lines = _text(path).splitlines()
    return [_checked(RoundLine, line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


def _checked(kind: type[Record], text: str, where: str) -> dict[str, Any]:
    try:
        values: dict[str, Any] = from_json(text, allow_inf_nan=False)
        kind.model_validate(values)
    except ValidationError as error:
        problem = explain(error.errors()[0])
        raise InputError(f"{where}: {problem}; restore the file or run the simulation again") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error}); restore the file or run the simulation again") from None
    return values


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the folder of a finished run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error}); give the folder of a finished run") from None
