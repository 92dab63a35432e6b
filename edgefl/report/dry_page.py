"""One self-contained HTML page on a dry run: who would take part and what it would take, without training anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from edgefl.report.chart import Chart, Json, category, clock_unit, layer, layered, number, stacked
from edgefl.report.fleet_view import fleet_view, useful_card
from edgefl.report.page import facts, render_page
from edgefl.report.run_charts import tier_colour
from edgefl.report.run_tables import TIER_COLUMNS, assignment_steps, inclusion_columns, largest_first
from edgefl.report.tables import Column, PlainTable, shaded, text, under
from edgefl.report.words import tier_label
from edgefl.util.units import human_count, human_joules, human_percent, human_seconds

_ABOUT = (
    "method", "model", "dataset", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment",
    "over_selection", "conditions", "availability", "start_hour", "mode", "seed",
)  # fmt: skip


def render(summary: Json, rounds: Sequence[Json]) -> str:
    """Return the page of a dry run from its ``summary.json`` and rounds, of which those that list clients have a timeline."""
    titles = {item["device"]: item["title"] for item in summary["classes"]}
    policies, deadline_s = summary["policies"], summary["deadline_s"]
    known = [column for column in TIER_COLUMNS if column.group != "accuracy" and "measured" not in column.head]
    return render_page(
        "dry.html.j2",
        about=[*facts(summary, _ABOUT), ("round deadline", "none" if deadline_s is None else human_seconds(deadline_s))],
        fleet_name=summary["fleet"],
        cards=_cards(summary, rounds),
        lasting=[chart for chart in (round_chart(rounds), hour_chart(summary, rounds)) if chart],
        fleet=fleet_view(summary, rounds),
        policies=policy_table(policies, titles) if policies else None,
        policy_sentence=policy_sentence(policies, titles),
        table=PlainTable.of(known, largest_first(summary)),
        tier_colours=[tier_colour(summary, row["tier"]) for row in largest_first(summary)],
        batch_size=summary["batch_size"],
        steps=assignment_steps(summary),
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
    x = number("round", "round", scale={"zero": False}, tickMinStep=1)
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
    sentence = f"Under “{best}” the class that takes least part is {titles.get(device, device)}"
    sentence += f": {human_percent(share)} of its sessions train"
    if share == lost_share:
        return f"{sentence}; no assignment does better, none worse."
    return f"{sentence}; under “{worst}” it is {titles.get(lost, lost)}, with {human_percent(lost_share)}."


def _cards(summary: Json, rounds: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    took_part = sum(row["distinct"] for row in summary["participation"])
    clients, waited_s = summary["clients"], summary["waited_s"]
    time = f"{human_seconds(waited_s)} of it waiting for clients" if waited_s else "on the fleet's own clock"
    return [
        ("Rounds", f"{len(rounds):,}", "simulated without training"),
        ("Simulated time", human_seconds(summary["simulated_s"]), time),
        ("Clients that took part", human_count(took_part), f"{human_percent(took_part / clients)} of {clients:,}"),
        *useful_card(summary),
        ("Energy on devices", human_joules(summary["energy_j"]), "computing and radio"),
        ("Energy end to end", human_joules(summary["end_to_end_j"]), "devices, and the path to the data centre"),
    ]
