"""One self-contained HTML page on what a network's tiers cost: no network, readable on a phone and in the dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgefl import __version__
from edgefl.errors import InputError
from edgefl.report.chart import Chart
from edgefl.report.cost_charts import MOST_LAYERS, layer_charts, tier_charts
from edgefl.report.cost_columns import LAYERS, MEMORY, ON_DEVICE, SENT, SUMMARY, compute_columns, draws
from edgefl.report.cost_layers import layer_rows
from edgefl.report.cost_tables import about, per_device, per_tier
from edgefl.report.page import render_page
from edgefl.report.tables import PlainTable, Row
from edgefl.report.words import tier_label
from edgefl.util.units import human_percent


class TierLayers(NamedTuple):
    """The layers of one tier on the page: their charts and their table."""

    label: str
    charts: tuple[Chart, ...]
    table: PlainTable
    draws: bool


def cost_page(rows: Sequence[Row]) -> str:
    """Return the page of a network's costs; the same rows give the same page.

    Args:
        rows: those of :func:`edgefl.report.cost_tables.cost_table`, with layers and tensors, of one model and one method.

    Raises:
        InputError: there is no row.
    """
    if not rows:
        raise InputError("a page of costs needs at least one tier, got none")
    tiers = per_tier(rows)
    of_tiers = tier_charts(tiers)
    of_layers = [_layers(row, f"layers-{number}") for number, row in enumerate(tiers)]
    on_device = per_device(rows)
    return render_page(
        "cost_page.html.j2",
        [*of_tiers, *(chart for tier in of_layers for chart in tier.charts)],
        model=str(rows[0]["model"]),
        method=rows[0]["method"],
        about=about(rows),
        batch_size=rows[0]["batch_size"],
        tiers=PlainTable.of((*SUMMARY, *compute_columns(tiers), *MEMORY), tiers),
        charts=of_tiers,
        layers=of_layers,
        most_layers=MOST_LAYERS,
        devices=PlainTable.of(ON_DEVICE, on_device, (row.get("takes") is True for row in on_device)) if on_device else None,
        verdict=_verdict(on_device),
        uncounted=[(tier_label(row["tier"]), list(row["uncounted_ops"])) for row in tiers if row["uncounted_ops"]],
        edgefl_version=__version__,
    )


def _layers(row: Row, key: str) -> TierLayers:
    table = PlainTable.of((*LAYERS, *SENT), layer_rows(row))
    return TierLayers(tier_label(row["tier"]), layer_charts(row, key), table, draws(row))


def _verdict(rows: Sequence[Row]) -> list[str]:
    """Return one sentence per device: the tier that it takes, or why it cannot take the smallest."""
    sentences = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        taken = [f"tier {tier_label(row['tier'])}" for row in own if row.get("takes")]
        none = f"no tier{_reason(min(own, key=lambda row: float(row['tier'])))}"
        sentences.append(f"{own[0].get('device_title') or device} takes {[*taken, none][0]}.")
    return sentences


def _reason(smallest: Row) -> str:
    tier = f"tier {tier_label(smallest['tier'])}"
    if smallest["uncounted_ops"]:
        return f": not every operation of {tier} is counted"
    share = smallest.get("budget_share")
    return "" if share is None else f": {tier} needs {human_percent(share)} of its tightest budget"
