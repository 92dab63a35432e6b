"""One self-contained HTML page per run or dry run: no network, readable on a phone and in the dark."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from edgefl.report import run_tables
from edgefl.report.chart import WHOLE, Chart, Json, category, clock_unit, layer, layered, number, stacked
from edgefl.report.energy import energy_sentence
from edgefl.report.fleet_charts import fleet_view, useful_card
from edgefl.report.metric import metric_of, metric_text
from edgefl.report.observed import observed_charts
from edgefl.report.outliers import client_table
from edgefl.report.page import facts, render_page
from edgefl.report.privacy import privacy_facts
from edgefl.report.run_charts import accuracy_charts, budget_chart, cost_charts, of_clients, tier_colour
from edgefl.report.run_files import read_rounds, read_summary
from edgefl.report.run_tables import TIER_COLUMNS, inclusion_columns
from edgefl.report.secure_sums import secure_table
from edgefl.report.tables import Column, PlainTable, shaded, text, under
from edgefl.report.words import NOT_VALIDATED, clock_word, of_devices, tier_label
from edgefl.util.files import write_bytes
from edgefl.util.units import human_bytes, human_count, human_joules, human_percent, human_seconds

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
    rendered = render_dry(summary, rounds) if summary.get("dry_run") else render(summary, rounds)
    write_bytes(page, rendered.encode())
    return page


def render(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a run, from its ``summary.json`` and the lines of ``rounds.jsonl``; the same run gives the same page."""
    tier_colours = _tier_colours(summary)
    return render_page(
        "template.html.j2",
        summary=summary,
        about=_about(summary, of_devices(rounds)),
        clock=clock_word(rounds),
        cards=_cards(summary, rounds),
        table=run_tables.tier_table(summary),
        tier_colours=tier_colours,
        energy=energy_sentence(summary["tiers"]),
        metric=metric_of(summary).name,
        accuracy=accuracy_charts(summary, rounds),
        cost=cost_charts(summary),
        budgets=budget_chart(summary),
        observed=observed_charts(rounds),
        outliers=client_table(rounds),
        classes=run_tables.class_table(summary),
        steps=run_tables.assignment_steps(summary),
        fleet=fleet_view(summary, rounds),
        refusals=run_tables.refusals_of(summary, rounds),
        secure=secure_table(summary),
        memory=run_tables.memory_table(summary),
        memory_colours=[colour for colour in tier_colours for _ in run_tables.MEASURED],
        of_clients=of_clients(summary),
        stages=run_tables.stage_table(summary),
    )


def _about(summary: Json, measured: bool) -> list[tuple[str, str]]:
    labels = "each client's own" if summary["permute_labels"] else "the same for all"
    whose = "the mean over clients, each on its own" if of_clients(summary) else "the global model"
    return [
        *facts(summary, _ABOUT),
        ("labels", labels),
        (f"{metric_of(summary).name} of", whose),
        _deadline(summary),
        *_attack(summary),
        *privacy_facts(summary),
        *([("seconds", "measured on real devices"), ("energy", NOT_VALIDATED)] if measured else _trust(summary)),
    ]


def _attack(summary: Json) -> list[tuple[str, str]]:
    """Return the adversaries of the run; nothing if every client is honest."""
    if (attack := summary.get("attack")) is None:
        return []
    clients, count = attack["clients"], attack["count"]
    more = f" and {count - len(clients):,} more" if count > len(clients) else ""
    who = f"{count:,} of {summary['clients']:,} clients: {', '.join(map(str, clients))}{more}"
    return [("adversaries", f"{attack['adversary']}, {who}")]


def _trust(summary: Json) -> list[tuple[str, str]]:
    """Return how far simulated seconds and joules can be trusted."""
    errors = sorted({item["clock_error"] for item in summary["classes"]})
    factors = " to ".join(f"{error:.3g}" for error in dict.fromkeys(errors[:1] + errors[-1:]))
    clock = [("seconds of training", f"right within a factor of {factors}")] if errors else []
    return [*clock, ("energy", NOT_VALIDATED)]


def _deadline(summary: Json) -> tuple[str, str]:
    return "round deadline", "none" if summary["deadline_s"] is None else human_seconds(summary["deadline_s"])


def _tier_colours(summary: Json) -> list[str]:
    return [tier_colour(summary, row["tier"]) for row in run_tables.largest_first(summary)]


def _cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    turns = [client for record in rounds for client in record.get("clients", ())]
    down, up = summary["download_bytes"], summary["upload_bytes"]
    metric = metric_of(summary)
    accuracy = metric_text(metric, summary["global_accuracy"])
    shown = (f"Clients' {metric.name}", accuracy, "on average, each on its own held-out samples")
    after = summary.get("accuracy_after_training")
    trained = (
        "After local training",
        metric_text(metric, after),
        "on average, each client with the model that it has just trained",
    )
    return [
        shown if of_clients(summary) else (f"Global {metric.name}", accuracy, "of held-out samples"),
        *([] if after is None else [trained]),
        (
            f"{clock_word(rounds).capitalize()} time",
            human_seconds(summary["simulated_s"]),
            "on the server's clock" if of_devices(rounds) else "on the fleet's own clock",
        ),
        ("Bytes sent", human_bytes(down + up), f"{human_bytes(down)} down, {human_bytes(up)} up"),
        ("Energy", human_joules(summary["energy_j"]), f"{NOT_VALIDATED}; {human_joules(summary['end_to_end_j'])} end to end"),
        *useful_card(summary),
        ("Clients refused", human_count(_refused_clients(summary, turns)), f"of {summary['clients']} clients"),
        ("Host time", human_seconds(summary["host_s"]), "this computer's time"),
    ]


def _refused_clients(summary: Json, turns: Sequence[Json]) -> int:
    """Count clients that were refused, among them those of a class that fits no tier and were never asked."""
    asked = {(turn["device"], turn["client"]) for turn in turns if turn["status"] == "refused"}
    refused = Counter(device for device, _ in asked)
    for item in summary["classes"]:
        if item["tier"] is None:
            refused[item["device"]] = max(refused[item["device"]], item["clients"])
    return refused.total()


_DRY_ABOUT = (
    "method", "model", "dataset", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment",
    "over_selection", "conditions", "availability", "start_hour", "mode", "seed",
)  # fmt: skip


def render_dry(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a dry run from its ``summary.json`` and rounds, of which those that list clients have a timeline."""
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    policies = summary["policies"]
    known = [column for column in TIER_COLUMNS if column.group != "accuracy" and "measured" not in column.head]
    return render_page(
        "dry.html.j2",
        about=[*facts(summary, _DRY_ABOUT), _deadline(summary), *_trust(summary)],
        fleet_name=summary["fleet"],
        cards=_dry_cards(summary, rounds),
        lasting=[chart for chart in (round_chart(rounds), hour_chart(summary, rounds)) if chart],
        fleet=fleet_view(summary, rounds),
        secure=secure_table(summary),
        policies=policy_table(policies, titles) if policies else None,
        policy_sentence=policy_sentence(policies, titles),
        table=PlainTable.of(known, run_tables.largest_first(summary)),
        tier_colours=_tier_colours(summary),
        batch_size=summary["batch_size"],
        steps=run_tables.assignment_steps(summary),
        edgefl_version=summary["edgefl_version"],
    )


def round_chart(rounds: Sequence[Json]) -> Chart:
    """Return how long each round lasted, with a word on how long the server waited before."""
    key, title = "rounds", "How long rounds last"
    if not rounds:
        return Chart(key, title, "The dry run has no round.", None)
    lasted = {record["round"]: record["round_s"] for record in rounds}
    waited_s = sum(record["waited_s"] for record in rounds)
    typical, longest = median(lasted.values()), max(lasted.values())
    sentence = f"The median round lasts {human_seconds(typical)}, the longest {human_seconds(longest)}"
    sentence += f"; the server waited {human_seconds(waited_s)} in all for clients to become eligible." if waited_s else "."
    unit, unit_s = clock_unit(longest)
    rows = [{"round": n, "time": s / unit_s, "told": f"{human_seconds(s)} in round {n}"} for n, s in lasted.items()]
    x = number("round", "round", scale={"zero": False}, **WHOLE)
    y = number("time", f"simulated time ({unit})", tickCount=5)
    line = layer({"type": "line", "color": "var(--tier-0)"}, rows, x=x, y=y)
    points = layer({"type": "point", "size": 60, "opacity": 0}, rows, x=x, y=y, tooltip="told")
    return Chart(key, title, sentence, layered(230, line, points))


def hour_chart(summary: Json, rounds: Sequence[Json]) -> Chart | None:
    """Return rounds by the hour of day at which the server asked for clients; None where hours make no difference."""
    if summary["availability"] == "always":
        return None
    hours: dict[int, list[tuple[float, float]]] = {}
    for record in rounds:
        asked_s = record["clock_s"] - record["round_s"] - record["waited_s"]
        hour = int((asked_s / 3600 + summary["start_hour"]) % 24)
        hours.setdefault(hour, []).append((record["waited_s"], record["round_s"]))
    if len(hours) < 2:
        return None
    means = {hour: [fmean(parts) for parts in zip(*hours[hour], strict=True)] for hour in sorted(hours)}
    whole = {hour: sum(parts) for hour, parts in means.items()}
    worst, best = max(whole, key=whole.__getitem__), min(whole, key=whole.__getitem__)
    unit, unit_s = clock_unit(whole[worst])
    sentence = f"If the server asks at {best} o'clock, a round takes {human_seconds(whole[best])} on average, waiting included"
    sentence += f"; at {worst} o'clock it takes {human_seconds(whole[worst])}."
    looks = {"waiting": "url(#waiting)", "the round": "var(--tier-0)"}
    rows = [
        {"hour": hour, "series": series, "time": part_s / unit_s, "told": f"{series}, at {hour} o'clock: {human_seconds(part_s)}"}
        for hour, parts in means.items()
        for series, part_s in zip(looks, parts, strict=True)
    ]
    x, y = category("hour", "hour of day", range(24)), number("time", f"mean time ({unit})", tickCount=5)
    return Chart("hours", "Over the day", sentence, layered(230, stacked(rows, looks, x=x, y=y)))


def policy_table(policies: Sequence[Json], titles: Mapping[str, str]) -> PlainTable:
    """Return what each assignment of tiers does: to rounds, and to each class's sessions that trained."""
    columns = (
        text("tier assignment", "", "policy"),
        Column("tiers", "", lambda row: ", ".join(map(tier_label, row["tiers"]))),
        *under("median round", round_s=""),
        shaded("useful share", lambda row: row["useful_share"]),
        *inclusion_columns("inclusion", policies, titles),
    )
    return PlainTable.of(columns, policies)


def policy_sentence(policies: Sequence[Json], titles: Mapping[str, str]) -> str:
    """Return which assignment serves its weakest class best, and which worst."""
    known = {row["policy"]: {k: share for k, share in row["inclusion"].items() if share is not None} for row in policies}
    found = [(policy, min(shares.items(), key=lambda pair: pair[1])) for policy, shares in known.items() if shares]
    if not found:
        return "No class had a session under any assignment."
    (best, (device, share)), (worst, (lost, lost_share)) = (pick(found, key=lambda pair: pair[1][1]) for pick in (max, min))
    sentence = f"Under “{best}” the class that trains least is {titles.get(device, device)}"
    sentence += f": {human_percent(share)} of its sessions train"
    if share == lost_share:
        return f"{sentence}; no assignment does better, none worse."
    return f"{sentence}; under “{worst}” it is {titles.get(lost, lost)}, with {human_percent(lost_share)}."


def _dry_cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    took_part = sum(row["distinct"] for row in summary["participation"])
    clients, waited_s = summary["clients"], summary["waited_s"]
    time = f"{human_seconds(waited_s)} of it waiting for clients" if waited_s else "on the fleet's own clock"
    return [
        ("Rounds", f"{len(rounds):,}", "simulated without training"),
        ("Simulated time", human_seconds(summary["simulated_s"]), time),
        ("Clients that took part", human_count(took_part), f"{human_percent(took_part / clients)} of {clients:,}"),
        *useful_card(summary),
        ("Energy on devices", human_joules(summary["energy_j"]), f"{NOT_VALIDATED}: computing and radio"),
        ("Energy end to end", human_joules(summary["end_to_end_j"]), f"{NOT_VALIDATED}: devices and the path to the server"),
    ]
