"""The table of a comparison: every figure for a page, and the most important ones for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgefl.report.tables import Column, PlainTable, Row, human_of, text, under
from edgefl.report.words import names, tier_label
from edgefl.util.units import MISSING, human_count, human_percent

_METHOD = text("method", "", "label")


def compare_table(summary: Row) -> PlainTable:
    """Return every figure of every method of a comparison, in the order asked for; ``summary`` is the content of ``compare.json``."""
    labels = sorted({label for row in summary["methods"] for label in row["tier_accuracy"]}, key=float, reverse=True)
    columns = (
        _METHOD,
        Column("tiers", "", tiers_text, numeric=False),
        *_result(summary),
        *_inner("tier_accuracy", "accuracy per tier", mean_sd, **dict(zip(labels, labels, strict=True))),
        *_means("bytes in all", download_bytes="down", upload_bytes="up"),
        *_means("spent in all", macs="MACs", simulated_s="simulated time", energy_j="energy"),
        *_inner("params", "parameters per tier", human_count, **dict(zip(labels, labels, strict=True))),
        Column("runs", "seeds", _seeds),
        *_means("runs", host_s="this computer's time"),
    )
    return PlainTable.of(columns, summary["methods"])


def compact_comparison(summary: Row) -> PlainTable:
    """Return the table that ends a comparison in a terminal."""
    columns = (
        _METHOD,
        Column("method", "tiers", tiers_text, numeric=False),
        *_result(summary),
        *_means("in all", bytes="bytes", macs="MACs", simulated_s="time", energy_j="energy"),
        Column("parameters", "largest", lambda row: human_count(max(row["params"].values(), default=None))),
        Column("parameters", "smallest", lambda row: human_count(min(row["params"].values(), default=None))),
    )
    return PlainTable.of(columns, summary["methods"], note=footnote(summary), stacked=True)


def setting_table(summary: Row) -> PlainTable:
    """Return the tiers and options that each method was given."""
    columns = (
        _METHOD,
        text("is", "", "title"),
        Column("tiers", "", tiers_text, numeric=False),
        Column("why these", "", lambda row: str(row["tiers_why"]), numeric=False, wraps=True),
        Column("options of its own", "", lambda row: names([f"{k} = {v}" for k, v in row["options"].items()]), False, wraps=True),
    )
    return PlainTable.of(columns, summary["methods"])


def mean_sd(found: Row | None) -> str:
    """Return a mean share with its standard deviation over seeds: ``91.2 ± 0.4 %``."""
    if found is None:
        return MISSING
    return human_percent(found["mean"]) if found["sd"] is None else f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f} %"


def tiers_text(row: Row) -> str:
    """Return a method's tiers as a list for people."""
    return ", ".join(map(tier_label, row["tiers"])) or MISSING


def mixed_accuracies(summary: Row) -> str:
    """Return a warning if some accuracies are of global models and some are means over clients, else nothing."""
    by_kind: dict[str, list[str]] = {}
    for row in summary["methods"]:
        if row["seeds"]:
            by_kind.setdefault(row["accuracy_of"], []).append(row["label"])
    if len(by_kind) < 2:
        return ""
    return (
        f"Not one kind of accuracy: of {', '.join(by_kind['clients'])} it is the mean over clients, each with a model of its own on "
        f"held-out samples of its own; of {', '.join(by_kind['global'])} it is the global model's on all held-out samples."
    )


def footnote(summary: Row) -> str:
    """Return the warnings that belong below the table: unlike accuracies, failures, untrained tiers, uncounted operations."""
    notes = [mixed_accuracies(summary)]
    for row in summary["methods"]:
        notes += [f"{row['label']}, seed {f['seed']}: failed: {f['reason'].splitlines()[0]}" for f in row["failures"]]
        if row["untrained_tiers"]:
            notes.append(f"{row['label']}: nobody trained tier {', '.join(row['untrained_tiers'])}")
        if row["uncounted_ops"]:
            notes.append(f"{row['label']}: not counted, so no budget can be claimed met: {', '.join(row['uncounted_ops'])}")
    return "\n".join(note for note in notes if note)


def _result(summary: Row) -> tuple[Column, ...]:
    group = f"until {human_percent(summary['target_accuracy'])}"
    return (
        Column("accuracy", "", lambda row: mean_sd(row["accuracy"])),
        *under("accuracy", lambda value: value or MISSING, accuracy_of="of"),
        *_inner("to_target", group, lambda value: MISSING if value is None else str(value), round="round"),
        *_inner("to_target", group, bytes="bytes", macs="MACs", simulated_s="time"),
    )


def _inner(outer: str, group: str, human: Callable[[Any], str] | None = None, **heads: str) -> tuple[Column, ...]:
    """Return columns of the values within the record ``outer`` of a row, which may be None."""

    def cell(key: str) -> Callable[[Row], str]:
        return lambda row: (human or human_of(key))((row[outer] or {}).get(key))

    return tuple(Column(group, head, cell(key)) for key, head in heads.items())


def _means(group: str, **heads: str) -> tuple[Column, ...]:
    return tuple(column for key, head in heads.items() for column in _inner(key, group, human_of(key), mean=head))


def _seeds(row: Row) -> str:
    failed = [failure["seed"] for failure in row["failures"]]
    return names(row["seeds"]) + (f" (failed: {names(failed)})" if failed else "")
