"""The page of a dry run: who takes part, how long rounds last, and what each assignment of tiers does; nothing is trained."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from edgefl.report import run_tables
from edgefl.report.answer import Answer
from edgefl.report.chart import WHOLE, Chart, category, clock_unit, layer, layered, number, stacked
from edgefl.report.fleet_charts import fleet_view, useful_card
from edgefl.report.page import facts, render_page
from edgefl.report.round_lines import RoundLine
from edgefl.report.run_charts import deadline_facts, tier_colours, trust_facts
from edgefl.report.run_files import DrySummary
from edgefl.report.run_rows import PolicyRow
from edgefl.report.run_tables import TIER_COLUMNS, inclusion_columns
from edgefl.report.section import sections_of
from edgefl.report.tables import Column, PlainTable, shaded, text, under
from edgefl.report.words import USEFUL, begun, counted, energy_trust, fleet_name, groups_of, tier_label
from edgefl.util.units import human_count, human_joules, human_percent, human_seconds

_DRY_ABOUT = (
    "method", "model", "dataset", "fleet", "partition", "clients", "per_round", "rounds", "local_epochs", "batch_size", "tier_assignment",
    "over_selection", "conditions", "availability", "start_hour", "mode", "seed",
)  # fmt: skip


CLEARLY = 0.05
"""An assignment of tiers has clearly more useful time from this share of the devices' time on."""


def render_dry(summary: DrySummary, rounds: Sequence[RoundLine]) -> str:
    """Return the page of a dry run from its ``summary.json`` and rounds, of which those that list clients have a timeline."""
    policies = summary.policies
    known = [column for column in TIER_COLUMNS if column.group != "accuracy" and "measured" not in column.head]
    return render_page(
        "dry.html.j2",
        about=[*facts(summary, _DRY_ABOUT), *deadline_facts(summary), *trust_facts(summary)],
        answer=answer_of_dry(summary, rounds),
        command="edgefl simulate --dry-run --config dry-run.toml --out again",
        fleet_name=fleet_name(summary.fleet, summary.fleet_title),
        cards=_dry_cards(summary, rounds),
        lasting=[chart for chart in (round_chart(rounds), hour_chart(summary, rounds)) if chart],
        fleet=fleet_view(summary, rounds),
        sections=[section for section in sections_of(summary, rounds) if section.table is not None],
        policies=policy_table(policies, summary.titles) if policies else None,
        policy_sentence=policy_sentence(summary),
        compared_in=_compared_in(summary),
        key_figures=run_tables.key_figures(summary, trained=False),
        table=PlainTable.of(known, summary.largest_first),
        tier_colours=tier_colours(summary),
        batch_size=summary.batch_size,
        steps=run_tables.assignment_steps(summary),
        edgefl_version=summary.edgefl_version,
    )


def answer_of_dry(summary: DrySummary, rounds: Sequence[RoundLine]) -> Answer:
    """Return the answer of a dry run."""
    fleet = fleet_name(summary.fleet, summary.fleet_title)
    asked = f"Who takes part in {len(rounds):,} rounds of {summary.method} on {fleet}, and how long does a round last?"
    counts = counted(groups_of(rounds))
    if not counts[USEFUL]:
        return Answer(asked, "No session trained.", "Look at the outcomes of clients: no update would reach the server.")
    found = f"{human_percent(counts[USEFUL] / counts.total())} of {counts.total():,} sessions train"
    found += f", in a median round of {human_seconds(median(line.round_s for line in begun(rounds)))}"
    served = ((row.used / row.sessions, row.title) for row in summary.participation if row.sessions)
    share, weakest = min(served, key=lambda pair: pair[0])
    found += f"; {weakest} takes part least: {human_percent(share)} of its sessions train."
    return Answer(asked, found, _advice(summary))


def round_chart(rounds: Sequence[RoundLine]) -> Chart:
    """Return how long each round lasted in which something was sent to a client, and how long the server waited."""
    key, title = "rounds", "How long rounds last"
    if not rounds:
        return Chart(key, title, "The dry run has no round.", None)
    lasted = {line.round: line.round_s for line in begun(rounds)}
    if not lasted:
        return Chart(key, title, "Nothing was sent to any client in any round, so there is no time to draw.", None)
    waited_s = sum(line.waited_s for line in rounds)
    typical, longest = median(lasted.values()), max(lasted.values())
    sentence = f"The median round lasts {human_seconds(typical)}, the longest {human_seconds(longest)}"
    idle = len(rounds) - len(lasted)
    awaited = "for clients that may train" if idle else "for clients to become eligible"
    awaited = "for the calendar and for clients" if rounds[0].next_s is not None else awaited
    sentence += f"; the server waited {human_seconds(waited_s)} in all {awaited}." if waited_s else "."
    if idle:
        sentence += f" Not drawn: {idle:,} {'round' if idle == 1 else 'rounds'} in which nothing was sent to any client."
    unit, unit_s = clock_unit(longest)
    rows = [{"round": n, "time": s / unit_s, "told": f"{human_seconds(s)} in round {n}"} for n, s in lasted.items()]
    x = number("round", "round", scale={"zero": False}, **WHOLE)
    y = number("time", f"simulated time ({unit})", tickCount=5)
    line = layer({"type": "line", "color": "var(--tier-0)"}, rows, x=x, y=y)
    points = layer({"type": "point", "size": 60, "opacity": 0}, rows, x=x, y=y, tooltip="told")
    return Chart(key, title, sentence, layered(230, line, points))


def hour_chart(summary: DrySummary, rounds: Sequence[RoundLine]) -> Chart | None:
    """Return rounds by the hour of day at which the server asked for clients; None where hours make no difference."""
    if summary.availability == "always":
        return None
    hours: dict[int, list[tuple[float, float]]] = {}
    for line in rounds:
        waited_s = line.waited_s if line.next_s is None else 0.0  # a calendar decides the hour
        asked_s = line.clock_s - line.round_s - waited_s
        hour = int((asked_s / 3600 + summary.start_hour) % 24)
        hours.setdefault(hour, []).append((waited_s, line.round_s))
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


def policy_table(policies: Sequence[PolicyRow], titles: Mapping[str, str]) -> PlainTable:
    """Return what each assignment of tiers does: to rounds, and to each class's sessions that trained."""
    columns = (
        text("tier assignment", "", "policy"),
        Column("tiers", "", lambda row: ", ".join(map(tier_label, row.tiers))),
        *under("median round", round_s=""),
        shaded("useful share", lambda row: row.useful_share),
        *inclusion_columns(lambda row: row.inclusion, policies, titles),
    )
    return PlainTable.of(columns, policies)


def _advice(summary: DrySummary) -> str:
    """Return the assignment of tiers that serves its weakest class best; the first one is the run's own."""
    least = _least_served(summary.policies)
    if len(least) < 2:
        return "Train this setting: there is no other assignment of tiers to compare it with."
    (best, device, share), (worst, _, lost) = (pick(least, key=lambda found: found[2]) for pick in (max, min))
    within = _compared_in(summary) and f" {_compared_in(summary)}"
    saved = _saved(summary.policies)
    if share == lost and saved:
        often = f"{human_percent(share)} of its sessions{within}"
        return f"Assign tiers as in {saved}. The class that trains least trains as often, in {often}."
    if share == lost:
        return (
            "Keep the assignment of tiers: under every other one, too, the class that trains least trains in "
            f"{human_percent(share)} of its sessions{within}, and no other has more useful time."
        )
    name = summary.titles.get(device, device)
    own = best == summary.policies[0].policy
    return (
        f"{'Keep' if own else 'Assign tiers as in'} “{best}”: {name}, the class that trains least, {'' if own else 'then '}trains in "
        f"{human_percent(share)} of its sessions{within}; under “{worst}” the least is {human_percent(lost)}."
        f"{f' Less time is wasted under {saved}.' if own and saved else ''}"
    )


def _saved(policies: Sequence[PolicyRow]) -> str:
    """Return the assignment with the most useful time, and that time; nothing if it is not clearly more than the run's own has."""
    own, best = policies[0], max(policies, key=_useful)
    if _useful(best) < _useful(own) + CLEARLY:
        return ""
    tiers, shares = ", ".join(map(tier_label, best.tiers)), (human_percent(_useful(of)) for of in (best, own))
    return f"“{best.policy}” (tier {tiers}): {' instead of '.join(shares)} of the devices' time is useful"


def _useful(policy: PolicyRow) -> float:
    return policy.useful_share or 0.0


def _compared_in(summary: DrySummary) -> str:
    """Return in which rounds assignments of tiers were compared; nothing if in all of them."""
    rounds = next((row.rounds for row in summary.policies if row.rounds is not None), None)
    return "" if rounds is None or rounds >= summary.rounds else f"in the first {rounds:,} of {summary.rounds:,} rounds"


def _least_served(policies: Sequence[PolicyRow]) -> list[tuple[str, str, float]]:
    """Return each policy with the class whose sessions train least often, and their share."""
    known = {row.policy: {k: share for k, share in row.inclusion.items() if share is not None} for row in policies}
    return [(policy, *min(shares.items(), key=lambda pair: pair[1])) for policy, shares in known.items() if shares]


def policy_sentence(summary: DrySummary) -> str:
    """Return which assignment serves its weakest class best, and which worst."""
    found, titles = _least_served(summary.policies), summary.titles
    if not found:
        return "No class had a session under any assignment."
    (best, device, share), (worst, lost, lost_share) = (pick(found, key=lambda row: row[2]) for pick in (max, min))
    within = _compared_in(summary)
    sentence = f"{within.capitalize()}, under" if within else "Under"
    sentence += f" “{best}” the class that trains least is {titles.get(device, device)}"
    sentence += f": {human_percent(share)} of its sessions train"
    if share == lost_share:
        return f"{sentence}; no assignment does better or worse."
    return f"{sentence}; under “{worst}” it is {titles.get(lost, lost)}, with {human_percent(lost_share)}."


def _dry_cards(summary: DrySummary, rounds: Sequence[RoundLine]) -> list[tuple[str, str, str]]:
    """Return the key numbers: heading, figure, and what it stands for."""
    took_part = sum(row.distinct for row in summary.participation)
    clients, waited_s = summary.clients, summary.waited_s
    time = f"{human_seconds(waited_s)} of it waiting for clients" if waited_s else "on the fleet's own clock"
    time = f"from {summary.began} to {summary.last_began}" if summary.calendar else time
    return [
        ("Rounds", f"{len(rounds):,}", "simulated without training"),
        ("Simulated time", human_seconds(summary.simulated_s), time),
        ("Clients that took part", human_count(took_part), f"{human_percent(took_part / clients)} of {clients:,}"),
        *useful_card(summary),
        *(
            (name, human_joules(energy_j), energy_trust(energy_j) + f": {what}" * (energy_j is not None))
            for name, energy_j, what in (
                ("Energy on devices", summary.energy_j, "computing and radio"),
                ("Energy end to end", summary.end_to_end_j, "devices and the path to the server"),
            )
        ),
    ]
