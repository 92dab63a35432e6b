"""Updates that differ from the others of their tier, in words and as a table."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from edgefl.report.tables import Column, PlainTable, Record, cell, text, under, value_of
from edgefl.report.words import tier_label
from edgefl.util.units import MISSING

FAR = 3.0
"""A change whose norm is more than so many times its tier's median is remarked on."""
_MOST = 20

Json = Mapping[str, Any]


def remarks(screened: Record) -> list[str]:
    """Return what is suspicious about an update, from its entry ``screened``; nothing if it looks like the others.

    A cap on its samples is not: an honest client may have far more data than the median.

    >>> remarks({"norm_ratio": 11.2, "cosine": -0.9, "clipped": True, "dropped": False, "counted_samples": 360})
    ["change 11.2 times the tier's median", 'opposite to its tier (cosine -0.90)']
    >>> remarks({"norm_ratio": 1.1, "cosine": 0.5, "clipped": True, "dropped": False, "counted_samples": None})
    []
    """
    found = []
    if (ratio := value_of(screened, "norm_ratio")) is not None and ratio > FAR:
        found.append(f"change {ratio:,.3g} times the tier's median")
    if (cosine := value_of(screened, "cosine")) is not None and cosine < 0:
        found.append(f"opposite to its tier (cosine {cosine:.2f})")
    if value_of(screened, "dropped"):
        found.append("left out by the defence")
    return found


def _figure(key: str, form: str) -> Column:
    heads = {"change_norm": "norm", "norm_ratio": "/ median", "cosine": "cosine"}
    return Column("change", heads[key], cell(key, lambda value: MISSING if value is None else format(value, form)))


_FIGURES = (_figure("change_norm", ".4g"), _figure("norm_ratio", ".3g"), _figure("cosine", ".2f"))


def update_table(rows: Iterable[Record]) -> PlainTable:
    """Return the table of a round's update files: all of them if there are few, else those with remarks.

    "counted" are the samples that a capped update counted for.
    """
    every = list(rows)
    shown = every if len(every) <= _MOST else [row for row in every if remarks(row)]
    columns = (
        text("update", "", "file"),
        *under("tier", tier_label, tier=""),
        *under("samples", "{:,}".format, samples=""),
        *_FIGURES,
        *under("counted", lambda samples: MISSING if samples is None else f"{samples:,}", counted_samples=""),
        Column("clipped", "", cell("clipped", lambda clipped: "yes" if clipped else ""), numeric=False),
        Column("remarks", "", lambda row: ", ".join(remarks(row)), numeric=False),
    )
    return PlainTable.of(columns, shown)


def client_rows(rounds: Sequence[Json]) -> list[dict[str, Any]]:
    """Return a row for each client of a run whose updates were screened: the medians of its figures, and in how many rounds what happened.

    The clients with the most remarks come first.
    """
    entries: dict[int, list[Json]] = {}
    for record in rounds:
        for client in record.get("clients", ()):
            if client.get("screened"):
                entries.setdefault(client["client"], []).append({**client["screened"], "tier": client["tier"]})
    rows = [_row(client, of) for client, of in entries.items()]
    return sorted(rows, key=lambda row: (-row["remarked"], -(row["norm_ratio"] or 0.0), row["client"]))


def _row(client: int, entries: Sequence[Json]) -> dict[str, Any]:
    def middle(key: str) -> float | None:
        values = [entry[key] for entry in entries if entry[key] is not None]
        return median(values) if values else None

    return {
        "client": client,
        "rounds": len(entries),
        "change_norm": middle("change_norm"),
        "norm_ratio": middle("norm_ratio"),
        "cosine": middle("cosine"),
        "clipped": sum(entry["clipped"] for entry in entries),
        "dropped": sum(entry["dropped"] for entry in entries),
        "capped": sum(entry["counted_samples"] is not None for entry in entries),
        "remarked": sum(bool(remarks(entry)) for entry in entries),
    }


def client_table(rounds: Sequence[Json]) -> PlainTable:
    """Return the table of :func:`client_rows`, of the first clients; without rows if no update was screened."""
    columns = (
        *under("client", str, client=""),
        *under("rounds", str, rounds="", remarked="with remarks"),
        *_FIGURES,
        *under("rounds in which it was", str, clipped="clipped", dropped="left out", capped="capped"),
    )
    return PlainTable.of(columns, client_rows(rounds)[:_MOST])
