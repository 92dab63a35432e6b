"""One self-contained HTML page on several methods that trained the same clients."""

import shlex
from collections.abc import Mapping
from typing import Any

from edgefl.registry import compared_keys
from edgefl.report.compare_answer import answer_of_comparison, best_first, known_costs
from edgefl.report.compare_charts import accuracy_charts, colours_of, tier_chart
from edgefl.report.compare_page_budget import assignment_table, budget_table, class_table, front_charts, pair_table
from edgefl.report.compare_tables import compare_table, key_table, mixed_accuracies, sd_label, setting_table
from edgefl.report.comparison import ComparisonSummary
from edgefl.report.metric import metric_text
from edgefl.report.page import facts, render_page
from edgefl.report.verdict_words import OTHER_QUESTION, budget_text, limited, measure, rule_text, verdict_notes, winner
from edgefl.report.words import NOT_VALIDATED, UNKNOWN_ENERGY, names


def compare_page(summary: ComparisonSummary) -> str:
    """Return the page of a comparison, from its ``compare.json``; the same comparison gives the same page."""
    rows = summary.methods
    return render_page(
        "compare.html.j2",
        summary=summary,
        about=_about(summary),
        answer=answer_of_comparison(summary),
        command=_again(summary),
        names=names([row.label for row in rows]),
        target=metric_text(summary.metric, summary.target_accuracy),
        metric=summary.metric.name,
        measure=measure(summary),
        sd=sd_label(summary),
        asked=_asked(summary),
        key_figures=key_table(summary),
        table=compare_table(summary),
        colours=[colours_of(summary)[row.label] for row in best_first(summary)],
        runs=[(row.label, row.seeds) for row in rows if row.seeds and not row.folders],
        folders=[(row.label, row.folders) for row in rows if row.folders],
        over=accuracy_charts(summary),
        per_tier=tier_chart(summary),
        warning=mixed_accuracies(summary),
        uncounted=[(row.label, names(row.uncounted_ops)) for row in rows if row.uncounted_ops],
        tiers=setting_table(summary),
        tier_colours=[colours_of(summary)[row.label] for row in rows],
        failures=[(row.label, failure.seed, failure.reason) for row in rows for failure in row.failures],
    )


def _again(summary: ComparisonSummary) -> str:
    """Return the command that makes the comparison again."""
    if folders := [folder for row in summary.methods for folder in row.folders]:
        return f"edgefl compare {' '.join(map(shlex.quote, folders))} --out again"
    return "mkdir again && cp comparison.toml again && edgefl compare --out again --resume"


def _asked(summary: ComparisonSummary) -> Mapping[str, Any]:
    """Return what the page says of the verdict."""
    found, colours, again = summary.verdict, colours_of(summary), _again(summary)
    equal = f"edgefl compare --out equal --resume {OTHER_QUESTION}"
    return {
        "limited": limited(summary),
        "target": found.target_accuracy is not None,
        "budget": budget_text(found.budget),
        "winner": winner(summary),
        "rule": rule_text(summary),
        "notes": verdict_notes(summary),
        "assignment": assignment_table(summary),
        "other": "" if again.startswith("edgefl") else f"mkdir equal && cp comparison.toml equal && {equal}",
        "table": budget_table(summary),
        "colours": [colours[row.label] for row in found.methods],
        "pairs": pair_table(summary),
        "classes": class_table(summary),
        "charts": front_charts(summary, colours),
    }


def _about(summary: ComparisonSummary) -> list[tuple[str, str]]:
    keys = (
        *("fleet", "model", "dataset", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size"),
        *("objective", "server_optimizer", "codec"),
    )
    tiers = summary.tiers if isinstance(summary.tiers, str) else ", ".join(f"{tier:g}" for tier in summary.tiers)
    trust = [(key, value) for key in (*compared_keys(), "defence") if (value := getattr(summary, key))]
    return [
        *facts(summary, keys),
        *trust,
        ("tiers", tiers),
        ("seeds", ", ".join(map(str, summary.seeds))),
        ("energy", NOT_VALIDATED if "energy_j" in known_costs(summary) else UNKNOWN_ENERGY),
    ]
