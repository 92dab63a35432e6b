"""The table of a sweep: the setting that was chosen for each method."""

from collections.abc import Sequence

from edgefl.report.tables import Column, PlainTable, Row, text
from edgefl.util.units import human_percent


def choice_table(rows: Sequence[Row]) -> PlainTable:
    """Return the chosen setting of every method; ``rows`` are the choices of ``sweep.json``."""
    keys = dict.fromkeys(key for row in rows for key in row["setting"])
    columns = (
        text("method", "", "method"),
        *(_setting(key) for key in keys),
        Column("on validation samples", "", lambda row: human_percent(row["score"])),
        Column("at the edge", "", lambda row: ", ".join(row["at_edge"]) or "–", numeric=False),
    )
    edges = [f"{row['method']}: {', '.join(row['at_edge'])}" for row in rows if row["at_edge"]]
    beyond = f"chosen at the edge of the grid, so a better value may lie beyond: {'; '.join(edges)}"
    return PlainTable.of(columns, rows, note=beyond if edges else "")


def _setting(key: str) -> Column:
    return Column(key.replace("_", " "), "", lambda row: str(row["setting"][key]))
