"""What a Python prompt and a notebook show of a run: its table of tiers, its accuracy over rounds, and progress while it trains."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path

from edgefl.records import Metric, RoundRecord
from edgefl.report.metric import metric_text
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_files import AnySummary, RunSummary
from edgefl.report.run_tables import compact_tiers
from edgefl.report.tables import PlainTable
from edgefl.util.units import human_seconds

_WIDTH, _HEIGHT = 420, 180


def run_text(folder: Path, summary: AnySummary) -> str:
    """Return a run as text of at most 100 columns: what it was, and a row per tier."""
    return table_text(_title(folder, summary), compact_tiers(summary))


def table_text(title: str, table: PlainTable) -> str:
    """Return a table as text of at most 100 columns under its title."""
    from rich.console import Console

    from edgefl.report.terminal import shown

    console = Console(width=100, highlight=False, markup=False, record=True, file=io.StringIO(), force_jupyter=False)
    console.print(title)
    console.print(shown(table))
    return "\n".join(line.rstrip() for line in console.export_text().splitlines() if line.strip())


def run_html(folder: Path, summary: AnySummary, rounds: Sequence[RoundLine]) -> str:
    """Return a run as HTML: what it was, a row per tier, and accuracy over rounds as SVG."""
    plot = _accuracy_svg(summary, rounds) if isinstance(summary, RunSummary) else ""
    return table_html(_title(folder, summary), compact_tiers(summary)) + plot


def table_html(title: str, table: PlainTable) -> str:
    """Return a table as HTML under its title."""
    heads = "".join(f"<th>{escape(f'{column.group} {column.head}'.strip())}</th>" for column in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(text)}</td>' for text in row)}</tr>" for row in table.rows)
    return f"<p>{escape(title)}</p><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def progress_in_notebook(rounds: int) -> Callable[[RoundRecord], None] | None:
    """Return what shows each of ``rounds`` rounds in the notebook that this process runs in; None: it runs in none."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    shown = ipython.display.display(ipython.display.HTML("preparing"), display_id=True)  # type: ignore[union-attr]

    def show(record: RoundRecord) -> None:
        accuracy = _reached(record.metric, record.accuracy.get("global"))
        told = f"round {record.round} of {rounds}{accuracy}, simulated clock {human_seconds(record.clock_s)}"
        bar = f'<progress value="{record.round}" max="{rounds}"></progress>'
        shown.update(ipython.display.HTML(f"{bar} {escape(told)}"))  # type: ignore[union-attr]

    return show


def _title(folder: Path, summary: AnySummary) -> str:
    reached = _reached(summary.metric, summary.global_accuracy)
    return f"{folder}: {summary.method}, {summary.model} on {summary.dataset}, {summary.rounds} rounds{reached}"


def _reached(metric: Metric, value: float | None) -> str:
    return "" if value is None else f", {metric.name} {metric_text(metric, value)}"


def _accuracy_svg(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    if find_spec("vl_convert") is None:
        return "<p>The chart of this run needs the extra figures: pip install 'edgefl-sim[figures]'</p>"
    import vl_convert

    from edgefl.report.figures import light
    from edgefl.report.run_charts import accuracy_charts

    chart = accuracy_charts(summary, rounds)[0]
    if chart.spec is None:
        return ""
    return str(vl_convert.vegalite_to_svg(light({**chart.spec, "width": _WIDTH, "height": _HEIGHT})))
