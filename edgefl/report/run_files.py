"""How the files of a run are read back: ``summary.json`` and ``rounds.jsonl``, checked against the records that they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from edgefl.errors import InputError
from edgefl.records import Shortfall, Totals
from edgefl.report.results import Result, adapter
from edgefl.report.run_rows import DrySummary, HostStages, Number, RunSummary, Whole
from edgefl.util.validation import explain


@dataclass(frozen=True, kw_only=True)
class GroupLine(Totals):
    """The work of the clients of one device, tier and status in a round."""

    device: str
    tier: Number | None
    status: str


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


@dataclass(frozen=True, kw_only=True)
class RoundLine(Result):
    """One line of ``rounds.jsonl``. ``clients`` is missing in most rounds of a dry run."""

    round: Whole
    clock_s: Number
    round_s: Number
    waited_s: Number
    deadline_s: Number | None
    macs: Whole
    download_bytes: Whole
    upload_bytes: Whole
    energy_j: Number
    accuracy: Mapping[str, Number]
    groups: tuple[GroupLine, ...]
    clients: tuple[ClientLine, ...] = ()
    stages: HostStages | None = None
    observed: Mapping[str, Any] = field(default_factory=dict)


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a run's ``summary.json``, checked.

    Raises:
        InputError: the file is missing or malformed; the message names file and key.
    """
    text = _text(path)
    kind = DrySummary if '"dry_run":' in text else RunSummary
    return _checked(kind, text, str(path))


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's ``rounds.jsonl``, checked.

    Raises:
        InputError: the file is missing, or a line is malformed; the message names file, line and key.
    """
    lines = _text(path).splitlines()
    return [_checked(RoundLine, line, f"{path}: line {number}") for number, line in enumerate(lines, start=1)]


def _checked(kind: Any, text: str, where: str) -> dict[str, Any]:
    """Return the content of a JSON text that has the fields of ``kind``; further keys are ignored.

    Raises:
        InputError: the text is not JSON, or a value is missing or wrong; the message names ``where``, key, expectation and value.
    """
    try:
        values: dict[str, Any] = from_json(text, allow_inf_nan=False)
        adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        problem = explain(error.errors()[0])
        raise InputError(f"{where}: {problem}; restore the file or run the simulation again") from None
    except ValueError as error:
        raise InputError(f"{where}: not valid JSON ({error}); restore the file or run the simulation again") from None
    return values


def _text(path: Path) -> str:
    """Return the text of a file of a run.

    Raises:
        InputError: the file is missing or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give the folder of a finished run") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text ({error}); give the folder of a finished run") from None
