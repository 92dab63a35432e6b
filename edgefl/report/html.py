"""One self-contained HTML page per run or dry run: no network, readable on a phone and in the dark."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from edgefl.errors import InputError, first_line
from edgefl.report import run_tables
from edgefl.report.answer import answer_of_run
from edgefl.report.cost_map import cost_maps
from edgefl.report.dry_page import render_dry
from edgefl.report.evaluation import evaluation_charts
from edgefl.report.fleet_charts import fleet_view, useful_card
from edgefl.report.metric import metric_text
from edgefl.report.observed import observed_charts
from edgefl.report.outliers import client_table
from edgefl.report.page import facts, render_page
from edgefl.report.round_lines import ClientLine, RoundLine
from edgefl.report.run_charts import (
    accuracy_charts,
    budget_chart,
    cost_charts,
    deadline_facts,
    loss_chart,
    tier_colours,
    trust_facts,
    trust_of_energy,
)
from edgefl.report.run_files import DrySummary, RunSummary, read_rounds, read_summary
from edgefl.report.section import Section, sections_of
from edgefl.report.tier_notes import tier_notes
from edgefl.report.words import clients_of, clock_word, energy_trust, of_devices
from edgefl.util.files import write_bytes
from edgefl.util.units import human_bytes, human_count, human_joules, human_seconds

_ABOUT = (
    "method", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment", "seed", "objective",
    "server_optimizer", "codec", "conditions", "availability", "over_selection", "mode", "enforce",
)  # fmt: skip


def write(run: Path) -> Path:
    """Write ``report.html`` into the folder of a run or a dry run from its ``summary.json`` and ``rounds.jsonl``, and return its path.

    Raises:
        InputError: a file is missing or malformed; the message names the file, the line and the key.
        StorageError: the page cannot be written.
    """
    summary, rounds = read_summary(run / "summary.json"), read_rounds(run / "rounds.jsonl")
    page = run / "report.html"
    try:
        rendered = render_dry(summary, rounds) if isinstance(summary, DrySummary) else render(summary, rounds)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Each value has its type. Only an edited file has values that contradict each other.
        told = f"its values and those of {run / 'rounds.jsonl'} contradict each other ({first_line(error)})"
        raise InputError(f"{run / 'summary.json'}: {told}; restore both files or run the simulation again") from error
    write_bytes(page, rendered.encode())
    return page


def render(summary: RunSummary, rounds: Sequence[RoundLine]) -> str:
    """Return the page of a run, from its ``summary.json`` and the lines of ``rounds.jsonl``; the same run gives the same page."""
    colours, sections = tier_colours(summary), sections_of(summary, rounds)
    return render_page(
        "template.html.j2",
        summary=summary,
        about=_about(summary, of_devices(rounds), sections),
        answer=answer_of_run(summary, rounds),
        command="" if of_devices(rounds) else "edgefl simulate --config config.toml --out again",
        clock=clock_word(rounds),
        cards=_cards(summary, rounds),
        key_figures=run_tables.key_figures(summary),
        table=run_tables.tier_table(summary),
        tier_colours=colours,
        notes=tier_notes(summary.largest_first),
        metric=summary.metric.name,
        accuracy=accuracy_charts(summary, rounds),
        overs=("rounds", "bytes sent", f"{clock_word(rounds)} time"),
        loss=loss_chart(summary, rounds),
        details=evaluation_charts(summary.evaluation, summary.titles),
        cost=cost_charts(summary),
        maps=cost_maps(summary),
        budgets=budget_chart(summary),
        observed=observed_charts(rounds),
        outliers=client_table(rounds),
        classes=run_tables.class_table(summary),
        steps=run_tables.assignment_steps(summary),
        fleet=fleet_view(summary, rounds),
        refusals=run_tables.refusals_of(summary, rounds),
        sections=[section for section in sections if section.table is not None],
        memory=run_tables.memory_table(summary),
        memory_colours=[colour for colour in colours for _ in run_tables.MEASURED],
        of_clients=summary.of_clients,
        stages=run_tables.stage_table(summary.host_stages),
        data_lines=summary.data.lines() if summary.data else [],
        host_total=human_seconds(run_tables.host_seconds(summary)),
    )


def _about(summary: RunSummary, measured: bool, sections: Sequence[Section]) -> list[tuple[str, str]]:
    labels = "each client's own" if summary.permute_labels else "the same for all"
    whose = "the mean over clients, each on its own" if summary.of_clients else "the global model"
    return [
        *facts(summary, _ABOUT),
        ("labels", labels),
        (f"{summary.metric.name} of", whose),
        *deadline_facts(summary),
        *(fact for section in sections for fact in section.facts),
        *([("seconds", "measured on real devices"), trust_of_energy(summary)] if measured else trust_facts(summary)),
    ]


def _cards(summary: RunSummary, rounds: Sequence[RoundLine]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    down, up = summary.download_bytes, summary.upload_bytes
    metric = summary.metric
    accuracy = metric_text(metric, summary.global_accuracy)
    if summary.of_clients:
        shown = (f"Clients' {metric.name}", accuracy, "on average, each on its own held-out samples")
    else:
        shown = (f"Global {metric.name}", accuracy, f"{'of' if metric.share else 'on'} held-out samples")
    after, before = summary.accuracy_after_training, summary.before_training
    begun = ("Before training", metric_text(metric, before), "with the weights that were given")
    trained = (
        "After local training",
        metric_text(metric, after),
        "on average, each client with the model that it has just trained",
    )
    return [
        shown,
        *([] if before is None else [begun]),
        *([] if after is None else [trained]),
        (
            f"{clock_word(rounds).capitalize()} time",
            human_seconds(summary.simulated_s),
            "on the server's clock" if of_devices(rounds) else "on the fleet's own clock",
        ),
        ("Bytes sent", human_bytes(down + up), f"{human_bytes(down)} down, {human_bytes(up)} up"),
        ("Energy", human_joules(summary.energy_j), _end_to_end(summary.end_to_end_j)),
        *useful_card(summary),
        ("Clients refused", human_count(_refused_clients(summary, clients_of(rounds))), f"of {summary.clients} clients"),
    ]


def _end_to_end(joules: float | None) -> str:
    """Return how far the energy can be trusted, and the energy including the path to the server."""
    return energy_trust(joules) if joules is None else f"{energy_trust(joules)}; {human_joules(joules)} end to end"


def _refused_clients(summary: RunSummary, turns: Sequence[ClientLine]) -> int:
    """Count clients that were refused, among them those of a class that fits no tier and were never asked."""
    asked = {(turn.device, turn.client) for turn in turns if turn.status == "refused"}
    refused = Counter(device for device, _ in asked)
    for item in summary.classes:
        if item.tier is None:
            refused[item.device] = max(refused[item.device], item.clients)
    return refused.total()
