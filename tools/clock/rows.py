"""Measured steps of networks: rows of a CSV file."""

from __future__ import annotations

import csv
import math
import sys
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
MEASURED = FOLDER / "raspberry-pi-steps.csv"
SPLITS = ("fit", "held-out")
_NEEDED = ("timm_name", "device", "batch", "train_step_s")


@dataclass(frozen=True)
class Row:
    """A network's measured seconds on a device.

    Attributes:
        network: its name in timm.
        family: of networks that are fitted, or held out, together.
        split: ``fit`` or ``held-out``.
        device: the name of a profile.
        batch: samples of a step.
        step_s: seconds of a training step, None if it was not measured.
        forward_s: seconds of a step that trains the classifier only, None if it was not measured.
    """

    network: str
    family: str
    split: str
    device: str
    batch: int
    step_s: float | None
    forward_s: float | None


def read(path: Path = MEASURED) -> tuple[Row, ...]:
    """Return the rows of a CSV file; the program ends with a message if the file is malformed."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [key for key in _NEEDED if key not in (reader.fieldnames or ())]
            if missing:
                sys.exit(f"{path}: expected the columns {', '.join(_NEEDED)}, got no {', '.join(missing)}")
            return tuple(_row(values, f"{path}: line {reader.line_num}") for values in reader)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")


def _row(values: dict[str, str], where: str) -> Row:
    network = values["timm_name"]
    split = values.get("split") or "held-out"
    if split not in SPLITS:
        sys.exit(f"{where}: split: expected {' or '.join(SPLITS)}, got {split!r}")
    batch = _number(values["batch"], f"{where}: batch")
    if batch is None or batch != int(batch):
        sys.exit(f"{where}: batch: expected a whole number of samples, got {values['batch']!r}")
    family = network.partition("_")[0].rstrip("0123456789")
    times = [_number(values.get(key) or "", f"{where}: {key}") for key in ("train_step_s", "head_only_step_s")]
    return Row(network, family, split, values["device"], int(batch), times[0], times[1])


def _number(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        sys.exit(f"{where}: expected a number above 0, got {text!r}")
    return value
