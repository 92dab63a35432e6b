"""The tables of a comparison: every figure of every method, the few that a terminal shows, and the settings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from edgefl.report.answer import diverged_text, many_diverged
from edgefl.report.compare_answer import best_first
from edgefl.report.compare_page_budget import rank_text
from edgefl.report.comparison import ComparisonSummary, MethodResult
from edgefl.report.comparison_budget import WithinBudget
from edgefl.report.metric import metric_text, spread_text
from edgefl.report.tables import Column, PlainTable, Row, human_of, text, under
from edgefl.report.verdict_words import LIMITED, limited, measure, p_text, pair_of, rule_text, verdict_notes, winner
from edgefl.report.words import USEFUL, counts_text, names, tier_label, tiers_text
from edgefl.util.units import MISSING, human_count, human_percent

_METHOD = text("method", "", "label")
_USED = Column("sessions", "used", lambda row: _used(row.statuses))


def compare_table(summary: ComparisonSummary) -> PlainTable:
    """Return every figure of every method of a comparison, the most accurate first."""
    tiers, metric = {label: label for label in tier_labels(summary)}, summary.metric
    columns = (
        _METHOD,
        _rank(summary),
        Column("tiers", "", _tiers, numeric=False),
        *_result(summary),
        *under(f"{metric.name} per tier{sd_label(summary)}", partial(spread_text, metric), "tier_accuracy", **tiers),
        *_means("bytes in all", download_bytes="down", upload_bytes="up"),
        *_means("spent in all", macs="MACs", simulated_s="simulated time", energy_j="energy"),
        _USED,
        Column("sessions", "not used", lambda row: _not_used(row.statuses), numeric=False, wraps=True),
        *under("parameters per tier", human_count, "params", **tiers),
        Column("runs", "seeds", _seeds),
        *_means("runs", host_s="this computer's time"),
    )
    return PlainTable.of(columns, best_first(summary))


def key_table(summary: ComparisonSummary) -> PlainTable:
    """Return what decides between the methods, the most accurate first."""
    columns = (
        _METHOD,
        _rank(summary),
        Column("tiers", "", _tiers, numeric=False),
        *_result(summary),
        *_means("in all", bytes="bytes", macs="MACs", simulated_s="time", energy_j="energy"),
        _USED,
    )
    return PlainTable.of(columns, best_first(summary))


def compact_comparison(summary: ComparisonSummary) -> PlainTable:
    """Return the table that ends a comparison in a terminal; the verdict is below it."""
    columns = (
        _METHOD,
        Column("method", "rank", _rank(summary).cell),
        Column("method", "tiers", _tiers, numeric=False),
        *_result(summary),
        *_means("in all", bytes="bytes", macs="MACs", simulated_s="time", energy_j="energy"),
        Column("parameters", "largest", lambda row: human_count(max(row.params.values(), default=None))),
        Column("parameters", "smallest", lambda row: human_count(min(row.params.values(), default=None))),
    )
    # A budget has a table of its own, with these notes.
    asked = summary.verdict.target_accuracy is not None or limited(summary)
    own = [] if asked else verdict_notes(summary)
    return PlainTable.of(
        columns, best_first(summary), note="\n".join([winner(summary), *own, footnote(summary)]).strip(), stacked=True
    )


def paper_text(summary: ComparisonSummary) -> str:
    """Return the ranking as LaTeX that fits a column of a paper; with a target accuracy, also what it costs, as a second table."""
    target, notes, tables = summary.verdict.target_accuracy, [rule_text(summary)], [_paper_table(summary)]
    notes.append(f"Columns {', '.join(_ranked_and_global(summary))}: {summary.metric.name}")
    if max(len(row.seeds) for row in summary.verdict.methods) > 1:
        notes.append("± is the standard error over seeds; p is that of the difference to the first method, corrected.")
    if target is not None:
        notes.append(f"Second table: the means over seeds of what was used until {human_percent(target)}.")
        tables.append(_target_table(summary))
    small = r"{\footnotesize\setlength{\tabcolsep}{3pt}"
    return "\n".join([*(f"% {note}" for note in notes), small, "\n\n".join(table.to_latex() for table in tables), "}"])


def _ranked_and_global(summary: ComparisonSummary) -> list[str]:
    ranked = summary.verdict.rank_by if summary.metric.share else "global"
    return list(dict.fromkeys((ranked, "global")))


def _paper_table(summary: ComparisonSummary) -> PlainTable:
    found, metric = summary.verdict, summary.metric
    rows, unit = found.methods, ", %" if metric.share else ""

    def score(key: str) -> Callable[[WithinBudget], str]:
        return lambda row: spread_text(metric, getattr(row, f"{key}_accuracy")).removesuffix(" %")

    def p(row: WithinBudget) -> str:
        pair = pair_of(summary, rows[0].label, row.label)
        return p_text(None if pair is None else pair.corrected_p)

    columns = (
        _METHOD,
        Column("rank", "", lambda row: rank_text(row, rows)),
        *(Column(key + unit, "", score(key)) for key in _ranked_and_global(summary)),
        *([Column("refused", "", lambda row: human_percent(row.refused))] if any(row.refused for row in rows) else []),
        *([Column("p", "", p)] if any(pair.p is not None for pair in found.pairs) else []),
    )
    return PlainTable.of(columns, rows)


def _target_table(summary: ComparisonSummary) -> PlainTable:
    def mean(axis: str, human: Callable[[float | None], str]) -> Callable[[WithinBudget], str]:
        return lambda row: human(None if (found := (row.to_target or {}).get(axis)) is None else found.mean)

    columns = (
        _METHOD,
        Column("reached", "", lambda row: f"{row.reached} of {len(row.seeds)}"),
        *(Column(of.word, "", mean(axis, of.human)) for axis, of in LIMITED.items()),
    )
    return PlainTable.of(columns, summary.verdict.methods)


def _rank(summary: ComparisonSummary) -> Column:
    rows = summary.verdict.methods
    ranks = {row.label: rank_text(row, rows) for row in rows}
    return Column("rank", "", lambda row: ranks[row.label])


def sd_label(summary: ComparisonSummary) -> str:
    """Return what ± is in a group of columns: the standard deviation over seeds, where there are several."""
    return ", ± SD" if max((len(row.seeds) for row in summary.methods), default=0) > 1 else ""


def setting_table(summary: ComparisonSummary) -> PlainTable:
    """Return the tiers and options that each method was given."""
    columns = (
        _METHOD,
        text("is", "", "title"),
        Column("tiers", "", lambda row: ", ".join(map(tier_label, row.tiers)) or MISSING, numeric=False),
        Column("why these", "", lambda row: str(row.tiers_why), numeric=False, wraps=True),
        *(_setting(key) for key in dict.fromkeys(key for row in summary.methods for key in row.settings)),
        Column("options of its own", "", lambda row: names([f"{k} = {v}" for k, v in row.options.items()]), False, wraps=True),
    )
    return PlainTable.of(columns, summary.methods)


def _setting(key: str) -> Column:
    """Return the column of a setting that is not the same for all methods."""
    return Column(key.replace("_", " "), "", lambda row: str(row.settings.get(key, MISSING)), numeric=False)


def choice_table(rows: Sequence[Row]) -> PlainTable:
    """Return the chosen setting of every method; ``rows`` are the choices of ``sweep.json``."""
    keys = dict.fromkeys(key for row in rows for key in row["setting"])
    columns = (
        text("method", "", "method"),
        *(_chosen(key) for key in keys),
        Column("on validation samples", "", lambda row: human_percent(row["score"])),
        Column("at the edge", "", lambda row: ", ".join(row["at_edge"]) or "–", numeric=False),
    )
    edges = [f"{row['method']}: {', '.join(row['at_edge'])}" for row in rows if row["at_edge"]]
    beyond = f"chosen at the edge of the grid, so a better value may lie beyond: {'; '.join(edges)}"
    return PlainTable.of(columns, rows, note=beyond if edges else "")


def _chosen(key: str) -> Column:
    return Column(key.replace("_", " "), "", lambda row: str(row["setting"][key]))


def _used(statuses: Mapping[str, int]) -> str:
    """Return the share of sessions whose update the server used."""
    return human_percent(statuses.get(USEFUL, 0) / sum(statuses.values())) if any(statuses.values()) else MISSING


def _not_used(statuses: Mapping[str, int]) -> str:
    return counts_text({status: n for status, n in statuses.items() if status != USEFUL}) or MISSING


def _tiers(row: MethodResult) -> str:
    """Return the tiers that clients trained, as a list for people."""
    return ", ".join(label for label in map(tier_label, row.tiers) if label in row.tier_accuracy) or MISSING


def mixed_accuracies(summary: ComparisonSummary) -> str:
    """Return a warning if some accuracies are of global models and some are means over clients, else nothing."""
    by_kind: dict[str, list[str]] = {}
    for row in summary.methods:
        if row.accuracy_of is not None:
            by_kind.setdefault(row.accuracy_of, []).append(row.label)
    if len(by_kind) < 2:
        return ""
    return (
        f"Not one kind of {summary.metric.name}: of {', '.join(by_kind['clients'])} it is the mean over clients, each with a model of "
        f"its own on held-out samples of its own; of {', '.join(by_kind['global'])} it is the global model's on all held-out samples."
    )


def footnote(summary: ComparisonSummary) -> str:
    """Return the warnings that belong below the table: unlike accuracies, failures, diverged sessions, untrained tiers and the like."""
    notes = [mixed_accuracies(summary)]
    for row in summary.methods:
        notes += [f"{row.label}, seed {f.seed}: failed: {f.reason.splitlines()[0]}" for f in row.failures]
        notes += [f"{row.label}: {diverged_text(row.statuses)}"] if many_diverged(row.statuses) else []
        runs = len(row.seeds)
        for seeds in sorted({len(seeds) for seeds in row.untrained_tiers.values()}, reverse=True):
            which = tiers_text(float(label) for label, idle in row.untrained_tiers.items() if len(idle) == seeds)
            often = "" if seeds == runs else f" in {seeds} of {runs} seeds"
            notes.append(f"{row.label}: no client trained {which}{often}")
        if row.uncounted_ops:
            notes.append(f"{row.label}: not counted, so no budget can be claimed met: {', '.join(row.uncounted_ops)}")
    return "\n".join(note for note in notes if note)


def _result(summary: ComparisonSummary) -> tuple[Column, ...]:
    metric, sd = summary.metric, sd_label(summary)
    group = f"until {metric_text(metric, summary.target_accuracy)}"
    ranked, beside = f"{measure(summary)}{sd}", f"{metric.name}{sd}"
    after = Column(beside, "after training", lambda row: spread_text(metric, row.accuracy_after_training))
    epsilon = Column("ε", "", lambda row: MISSING if row.epsilon is None else f"{row.epsilon:.3g}")
    whole = Column(beside, "global", lambda row: spread_text(metric, row.accuracy))
    return (
        Column(ranked, "", lambda row: spread_text(metric, row.score)),
        *([whole] if summary.verdict.rank_by != "global" else []),
        *([after] if any(row.accuracy_after_training for row in summary.methods) else []),
        *under(beside, lambda value: value or MISSING, accuracy_of="of"),
        *([epsilon] if any(row.epsilon is not None for row in summary.methods) else []),
        *under(group, lambda value: MISSING if value is None else str(value), "to_target", round="round"),
        *under(group, outer="to_target", bytes="bytes", macs="MACs", simulated_s="time"),
    )


def tier_labels(summary: ComparisonSummary) -> list[str]:
    """Return the labels of the tiers that some method has trained, largest first."""
    return sorted({label for row in summary.methods for label in row.tier_accuracy}, key=float, reverse=True)


def _means(group: str, **heads: str) -> tuple[Column, ...]:
    return tuple(column for key, head in heads.items() for column in under(group, human_of(key), key, mean=head))


def _seeds(row: MethodResult) -> str:
    failed = [failure.seed for failure in row.failures]
    return names(row.seeds) + (f" (failed: {names(failed)})" if failed else "")
