"""What ``onnx_steps.py`` measures, as records, and the tables of docs/on-device.md of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort
import torch
from bench import machine
from counters.markdown import table
from inference_shares import SLACK

from edgefl.bundle.forms import FORMS

RATIO_TARGET, EXPORT_TARGET_S = 1.2, 20.0


@dataclass(frozen=True)
class Facts:
    """What does not depend on this machine's speed: bytes of the graph, and of what it trains."""

    graph_bytes: int
    parameter_bytes: int

    @property
    def most_graph_bytes(self) -> int:
        """What the graph is held to."""
        return int(1.5 * self.parameter_bytes) + 300_000


@dataclass(frozen=True)
class Timed:
    """Seconds of a step on so many threads, medians, and the median of their ratio."""

    threads: int
    torch_s: float
    onnx_s: float
    ratio: float


@dataclass(frozen=True)
class Row:
    """A line of the tables."""

    network: str
    facts: Facts
    times: tuple[Timed, ...]


def bold(text: str, missed: bool) -> str:
    """Return ``text``, marked where a target is missed.

    >>> bold("1.31", 1.31 > 1.2)
    '**1.31**'
    """
    return f"**{text}**" if missed else text


def steps_markdown(rows: Sequence[Row], samples: int, export_s: float | None) -> str:
    """Return the table of time, size and memory; ``samples`` are in a batch."""
    here = machine()
    about = (
        f"Milliseconds of a step of {samples} samples, momentum SGD with decay. *kB* is the size of `train.onnx`, *at most* its limit. "
        f"onnxruntime {ort.__version__}, "
        f"torch {torch.__version__.partition('+')[0]}, {here['cores']} cores, {here['system']}. "
        f"Bold: a missed target, such as more than {RATIO_TARGET:g} × torch's time."
    )
    titles = [title for t in rows[0].times for title in (f"{_threads(t.threads)}: torch", "onnxruntime", "ratio")]
    lines = [[row.network, *(cell for t in row.times for cell in _times(t)), *_sizes(row.facts)] for row in rows]
    parts = [about, table(["network", *titles, "kB", "at most"], lines)]
    if export_s is not None:
        taken = bold(f"{export_s:.1f} s", export_s >= EXPORT_TARGET_S)
        parts.append(f"Export of ResNet-18's four FedHM tiers with all three graphs, in a separate process: {taken}.")
    return "\n\n".join(parts)


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _times(found: Timed) -> list[str]:
    return [f"{found.torch_s * 1e3:.1f}", f"{found.onnx_s * 1e3:.1f}", bold(f"{found.ratio:.2f}", found.ratio > RATIO_TARGET)]


def _sizes(facts: Facts) -> list[str]:
    size = bold(f"{facts.graph_bytes / 1e3:,.0f}", facts.graph_bytes > facts.most_graph_bytes)
    return [size, f"{facts.most_graph_bytes / 1e3:,.0f}"]


def forms_markdown(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the table of inference in every form: network → rows of ``inference_shares``; ``auto`` is held to its target."""
    lines = []
    for network, rows in found.items():
        for tier in dict.fromkeys(row["tier"] for row in rows if row["form"] in FORMS):  # "dense" is what shares are of
            forms = {row["form"]: row for row in rows if row["tier"] == tier and row["form"] in FORMS}
            least, auto = min(row["mac_share"] for row in forms.values()), forms["auto"]
            if not auto["layers"]:
                continue  # nothing is factorized: it is the dense network itself
            missed = auto["time_share"] > least + SLACK
            times = [bold(f"{forms[form]['time_share']:.2f}", missed and form == "auto") for form in FORMS]
            sizes = [f"{forms[form]['file_bytes'] / 1e6:.2f}" for form in FORMS]
            lines.append([f"{network} {tier:g}", f"{least:.2f}", *times, f"{auto['composed']} of {auto['layers']}", *sizes])
    return table(["network", "MACs", *FORMS, "composed by auto", *(f"{form}: MB" for form in FORMS)], lines)
