"""The table of a comparison: for the page, for a terminal, and as plain lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from edgefl.report.tables import Column, PlainTable, Row, plain_lines, stacked, under
from edgefl.util.units import MISSING, human_bytes, human_count, human_joules, human_percent, human_seconds

_ROOMY = 110


def compare_table(summary: Row) -> PlainTable:
    """Return every figure of every method of a comparison, written for people, in the order asked for.

    Args:
        summary: the content of ``compare.json``.
    """
    labels = sorted({label for row in summary["methods"] for label in row["tier_accuracy"]}, key=float, reverse=True)
    columns = (
        Column("method", "", lambda row: str(row["label"]), numeric=False),
        Column("tiers", "", tiers_text, numeric=False),
        *_result(summary),
        *(Column("accuracy per tier", label, _of_tier(label)) for label in labels),
        *_total("bytes in all", human_bytes, download_bytes="down", upload_bytes="up"),
        *_total("spent in all", human_count, macs="MACs"),
        *_total("spent in all", human_seconds, simulated_s="simulated time"),
        *_total("spent in all", human_joules, energy_j="energy"),
        *(Column("parameters per tier", label, _params(label)) for label in labels),
        Column("runs", "seeds", _seeds),
        *_total("runs", human_seconds, host_s="this computer's time"),
    )
    return PlainTable.of(columns, summary["methods"])


def to_rich(summary: Row, width: int = 80) -> Table:
    """Return the table that ends a comparison in a terminal."""
    return stacked(_compact(summary), summary["methods"], gap=2 if width >= _ROOMY else 1, caption=footnote(summary))


def to_plain(summary: Row) -> str:
    """Return the same figures as plain lines, one per method."""
    note = footnote(summary)
    return "\n".join([*plain_lines(_compact(summary), summary["methods"]), *([note] if note else [])])


def mean_sd(found: Row | None) -> str:
    """Return a mean share with its standard deviation over seeds.

    >>> mean_sd({"mean": 0.912, "sd": 0.004}), mean_sd({"mean": 0.912, "sd": None}), mean_sd(None)
    ('91.2 ± 0.4 %', '91.2 %', '–')
    """
    if found is None:
        return MISSING
    return human_percent(found["mean"]) if found["sd"] is None else f"{100 * found['mean']:.1f} ± {100 * found['sd']:.1f} %"


def tiers_text(row: Row) -> str:
    """Return a method's tiers as a list for people."""
    return ", ".join(f"{tier:g}" for tier in row["tiers"]) or MISSING


def mixed_accuracies(summary: Row) -> str:
    """Return a warning where some accuracies are of global models and some are means over clients, else nothing."""
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
    """Return what a reader of the table has to know: unlike accuracies, failures, tiers without clients, uncounted operations."""
    notes = [mixed_accuracies(summary)]
    for row in summary["methods"]:
        notes += [f"{row['label']}, seed {f['seed']}: failed: {f['reason'].splitlines()[0]}" for f in row["failures"]]
        if row["untrained_tiers"]:
            notes.append(f"{row['label']}: nobody trained tier {', '.join(row['untrained_tiers'])}")
        if row["uncounted_ops"]:
            notes.append(f"{row['label']}: not counted, so no budget can be claimed met: {', '.join(row['uncounted_ops'])}")
    return "\n".join(note for note in notes if note)


def _compact(summary: Row) -> tuple[Column, ...]:
    return (
        Column("method", "", lambda row: str(row["label"]), numeric=False),
        Column("method", "tiers", tiers_text, numeric=False),
        *_result(summary),
        *_total("in all", human_bytes, bytes="bytes"),
        *_total("in all", human_count, macs="MACs"),
        *_total("in all", human_seconds, simulated_s="time"),
        *_total("in all", human_joules, energy_j="energy"),
        Column("parameters", "largest", lambda row: human_count(max(row["params"].values(), default=None))),
        Column("parameters", "smallest", lambda row: human_count(min(row["params"].values(), default=None))),
    )


def _result(summary: Row) -> tuple[Column, ...]:
    group = f"until {human_percent(summary['target_accuracy'])}"
    return (
        Column("accuracy", "", lambda row: mean_sd(row["accuracy"])),
        Column("accuracy", "of", lambda row: str(row["accuracy_of"] or MISSING)),
        *_under_target(group, str, round="round"),
        *_under_target(group, human_bytes, bytes="bytes"),
        *_under_target(group, human_count, macs="MACs"),
        *_under_target(group, human_seconds, simulated_s="time"),
    )


def _under_target(group: str, human: Callable[[Any], str], **heads: str) -> tuple[Column, ...]:
    inner = under(group, human, **heads)
    return tuple(Column(c.group, c.head, _or_missing("to_target", c.cell)) for c in inner)


def _or_missing(key: str, cell: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: MISSING if row[key] is None else cell(row[key])


def _total(group: str, human: Callable[[Any], str], **heads: str) -> tuple[Column, ...]:
    def cell(key: str) -> Callable[[Row], str]:
        return lambda row: human(None if row[key] is None else row[key]["mean"])

    return tuple(Column(group, head, cell(key)) for key, head in heads.items())


def _of_tier(label: str) -> Callable[[Row], str]:
    return lambda row: mean_sd(row["tier_accuracy"].get(label))


def _params(label: str) -> Callable[[Row], str]:
    return lambda row: human_count(row["params"].get(label))


def _seeds(row: Mapping[str, Any]) -> str:
    return _numbers(row["seeds"]) + (f" (failed: {_numbers([f['seed'] for f in row['failures']])})" if row["failures"] else "")


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "none"
