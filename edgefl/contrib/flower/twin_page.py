"""A run with real devices beside its simulation, for ``edgefl compare``: a table, and one self-contained HTML page."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.cli.console import echo, show_result
from edgefl.contrib.flower.twin import Sessions, Twin, TwinRow, WholeRun, twin_of, twin_table
from edgefl.registry import view
from edgefl.report.chart import Chart, clock_unit, layered, number, slots, stacked
from edgefl.report.metric import metric_text
from edgefl.report.page import render_page
from edgefl.report.words import tier_label
from edgefl.util.files import write_bytes
from edgefl.util.units import human_bytes, human_seconds
from edgefl.version import __version__

_Parts = Callable[[Sessions], dict[str, tuple[float, str]]]
"""Series → length of a part of a bar, and how people read it."""
_PARTS = {"training": "var(--tier-0)", "start and way": "var(--tier-1)"}
_ENDS = {"trained": "var(--tier-0)", "lost": "var(--tier-1)", "refused": "var(--tier-2)"}


def twin_page(twin: Twin) -> str:
    """Return the page; the same comparison gives the same page."""
    return render_page(
        "flower/twin.html.j2", table=twin_table(twin), times=times_chart(twin.rows), ends=ends_chart(twin.rows), wholes=_wholes(twin),
        edgefl_version=__version__,
    )  # fmt: skip


def times_chart(rows: Sequence[TwinRow]) -> Chart:
    """Return the mean seconds of sessions that trained, real above simulated, for each device and tier."""
    key, title = "times", "Seconds of a session"
    known = [row for row in rows if row.real.train_s is not None and row.simulated.train_s is not None]
    if not known:
        return Chart(key, title, "No device and tier trained in both runs.", None)
    off = max(known, key=lambda row: abs(_ratio(row) - 1))
    sentence = f"Training differs most on {_name(off)}: {human_seconds(off.real.train_s)}, {_ratio(off):.2g} times the simulated"
    sentence += f" {human_seconds(off.simulated.train_s)}."
    longest_s = max((one.train_s or 0) + (one.way_s or 0) for row in known for one in (row.real, row.simulated))
    unit, unit_s = clock_unit(longest_s)

    def parts(one: Sessions) -> dict[str, tuple[float, str]]:
        values = dict(zip(_PARTS, (one.train_s or 0.0, one.way_s or 0.0), strict=True))
        return {name: (value_s / unit_s, human_seconds(value_s)) for name, value_s in values.items()}

    return _bars(key, title, sentence, known, _PARTS, f"mean time ({unit})", parts)


def ends_chart(rows: Sequence[TwinRow]) -> Chart:
    """Return how many sessions trained, were lost or refused, real above simulated, for each device and tier."""
    lost, simulated = (sum(getattr(row, side).lost for row in rows) for side in ("real", "simulated"))
    sentence = f"The real run lost {lost} {'session' if lost == 1 else 'sessions'}, the simulation {simulated}."

    def parts(one: Sessions) -> dict[str, tuple[float, str]]:
        return {name: (float(getattr(one, name)), str(getattr(one, name))) for name in _ENDS}

    return _bars("ends", "What became of sessions", sentence, rows, _ENDS, "sessions", parts)


def _bars(
    key: str, title: str, sentence: str, rows: Sequence[TwinRow], looks: Mapping[str, str], axis: str, parts: _Parts
) -> Chart:
    """Return bars in parts, two for each device and tier."""
    places = slots([(_name(row), ["real", "simulated"]) for row in rows])
    bars = [
        {"slot": slot, "series": series, "value": value, "told": f"{_name(row)}, {side}, {series}: {text}"}
        for row, own in zip(rows, places.of, strict=True)
        for side, slot in zip(("real", "simulated"), own, strict=True)
        for series, (value, text) in parts(getattr(row, side)).items()
    ]
    spec = layered({"step": 24}, stacked(bars, looks, True, x=number("value", axis, tickCount=5), y=places.y), places.heads)
    return Chart(key, title, sentence, spec)


def _name(row: TwinRow) -> str:
    return f"{row.device}, tier {tier_label(row.tier)}" if row.tier else row.device


def _ratio(row: TwinRow) -> float:
    return (row.real.train_s or 0.0) / row.simulated.train_s if row.simulated.train_s else float("inf")


def _wholes(twin: Twin) -> list[tuple[str, str, str]]:
    """Return what the runs took as a whole: a name, the real figure and the simulated one."""

    def line(name: str, text: Callable[[WholeRun], str]) -> tuple[str, str, str]:
        return name, text(twin.real), text(twin.simulated)

    return [
        line("rounds", lambda of: str(of.rounds)),
        line("mean round", lambda of: human_seconds(of.round_s)),
        line("down", lambda of: human_bytes(of.download_bytes)),
        line("up", lambda of: human_bytes(of.upload_bytes)),
        line("training graphs", lambda of: human_bytes(of.setup_bytes)),
        line(twin.metric.name, lambda of: metric_text(twin.metric, of.accuracy)),
    ]


@view("twin")
def show_twin(both: list[Any], out: Path | None, as_json: bool) -> None:
    """Print the comparison of the summaries and rounds of ``both`` runs, and write its page into ``out``."""
    twin = twin_of(both[0], both[1])
    if out is not None:
        write_bytes(out / "compare.html", twin_page(twin).encode())
    if as_json:
        echo(json.dumps(twin.to_dict(), indent=2))
    else:
        show_result(twin_table(twin))
