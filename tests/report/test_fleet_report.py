"""What reports show of a fleet: rounds on the clock, who takes part, what is useful and wasted, dry runs and what-ifs."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from client_records import client_record
from pages import Page, charts_of, data_of, drawn, heads, labels, layers, looks, printed, rows, series

from edgefl.errors import InputError
from edgefl.fleet.budget import Budget
from edgefl.records import ClientRecord, Cost, Metric, RoundRecord, Shortfall, Status, Tier, Timing
from edgefl.report import html, whatif_page
from edgefl.report.dry_page import hour_chart, policy_sentence, render_dry, round_chart
from edgefl.report.fleet_charts import (
    outcome_charts,
    participation_chart,
    participation_table,
    waste_charts,
    waste_table,
    weakest_sentence,
)
from edgefl.report.results import Result
from edgefl.report.run_files import read_rounds
from edgefl.report.run_rows import TierResult
from edgefl.report.run_tables import compact_tiers, tier_table
from edgefl.report.summary import class_rows, participation_rows, tier_rows, totals
from edgefl.report.timeline import Line, pick, timeline, timelines
from edgefl.report.words import STATUSES, taken_as
from edgefl.server.assignment import Assignment, Attempt

EVIL = "<script>alert(1)</script><b>&\"'"
SHORT = Shortfall("memory_bytes", 2e6, 1e6, "slow", 0.5)
TITLES = {"fast": "Fast phone", "slow": "Slow phone"}


def outcome(client: int, device: str, status: str, parts: tuple[float, ...] = (1.0, 2.0, 1.0), **more: Any) -> ClientRecord:
    """Each second costs 10 MACs, a joule on the device and one in the network; 100 bytes go down, 50 up if the upload began."""
    timing = Timing(*parts, 0.75 * sum(parts), 0.25 * sum(parts), sum(parts))
    sent = {"macs": int(10 * sum(parts)), "download_bytes": 100, "upload_bytes": 50 if parts[2] else 0}
    tier = Tier(1.0 if device == "fast" else 0.5)
    if status == "refused":
        return client_record(client, device, "refused", samples=0, refusal=(SHORT,))
    return client_record(client, device, status, tier, timing, **sent, **more)


def record(number: int, *outcomes: ClientRecord, round_s: float = 4.0, clock_s: float = 104.0, **more: Any) -> dict[str, Any]:
    whole = RoundRecord(number, outcomes, round_s, clock_s, {}, 0.5, **more)
    return dict(json.loads(json.dumps(whole.to_json())))


def busy(number: int = 7, clock_s: float = 104.0, start_s: float = 100.0) -> dict[str, Any]:
    """Ten clients: 4 trained, 1 late, 1 of each way of being lost but one, 1 refused."""
    started = [
        outcome(0, "fast", "trained", (1, 1, 1)),
        outcome(1, "fast", "trained", (1, 2, 1)),
        outcome(2, "slow", "trained", (1, 1.5, 1)),
        outcome(3, "slow", "trained", (1, 1.76, 1)),
        outcome(4, "slow", "late", (1, 5, 1)),
        outcome(5, "fast", "dropped", (1, 1, 0.5)),
        outcome(6, "slow", "interrupted", (1, 0.5, 0)),
        outcome(7, "slow", "out_of_memory", (1, 0.25, 0)),
        outcome(8, "fast", "diverged", (1, 1, 1)),
    ]
    outcomes = (*(replace(o, expected=replace(o.expected, start_s=start_s)) for o in started), outcome(9, "slow", "refused"))
    return record(number, *outcomes, clock_s=clock_s, deadline_s=6.0, waited_s=600.0)


def cost(**changes: Any) -> Cost:
    names = [name for name, kind in Cost.__annotations__.items() if kind in ("int", int)]
    return Cost(**(dict.fromkeys(names, 1000) | {"batch_size": 32, "micro_batch": 32} | changes))


def device(name: str) -> Any:
    return SimpleNamespace(name=name, title=TITLES[name], assumed=("power.idle_w",), clock_error=1.25)


def a_plan() -> Any:
    """Two classes: the fast one takes the full tier in whole batches, the slow one half of it in micro-batches of 8."""
    refused = (SHORT,)
    full, half, parts = Assignment(Tier(1.0)), Assignment(Tier(0.5)), Assignment(Tier(0.5), 8)
    costs = {full: cost(), half: cost(training_memory_bytes=2_000_000), parts: cost(training_memory_bytes=400_000, micro_batch=8)}
    fast = SimpleNamespace(
        device=device("fast"), share=0.25, clients=1, assignment=full, tier=full.tier, options=(full, half), refusals=(),
        attempts=(Attempt(full, ()), Attempt(half, ())), budget=Budget(memory_bytes=8e6),
    )  # fmt: skip
    slow = SimpleNamespace(
        device=device("slow"), share=0.75, clients=3, assignment=parts, tier=parts.tier, options=(parts,), refusals=refused,
        attempts=(Attempt(half, refused), Attempt(parts, ())), budget=Budget(memory_bytes=1e6),
    )  # fmt: skip
    return SimpleNamespace(
        classes=(fast, slow),
        costs={Tier(1.0): costs[full], Tier(0.5): costs[half]},
        cost=costs.__getitem__,
        timing=lambda device, fit, samples: Timing(1.0, samples / 10, 1.0, 1.0, 1.0),
        home_of=lambda tier: fast if tier == Tier(1.0) else slow,
        workload=SimpleNamespace(largest_shard=50, mean_shard=20),
    )


def dicts(rows: Sequence[Result]) -> list[dict[str, Any]]:
    return [row.to_dict() for row in rows]


def summary_of(rounds: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    plan = a_plan()
    results = {Tier(1.0): TierResult(0.9, 0.9, None), Tier(0.5): TierResult(0.8, 0.8, None)}
    names = ("method", "model", "dataset", "fleet", "partition", "tier_assignment", "objective", "server_optimizer", "codec")
    keys = dict.fromkeys((*names, "conditions", "mode", "enforce"), "some") | {"availability": "always", "start_hour": 0.0}
    keys |= {"permute_labels": False, "dynamic_devices": False, "buffer": None, "over_selection": 1.0, "assumed": []}
    numbers = {"format": 1, "seed": 0, "rounds": len(rounds), "clients": 4, "per_round": 4, "batch_size": 32, "local_epochs": 1}
    return {
        **keys,
        **numbers,
        "global_accuracy": 0.9,
        "deadline_s": None,
        **totals(rounds).to_dict(),
        "tiers": dicts(tier_rows(plan, results, rounds)),
        "classes": dicts(class_rows(plan)),
        "participation": dicts(participation_rows(plan, rounds, {"fast": 2, "slow": 2}, {1.0: 0.9, 0.5: 0.8})),
        "accuracy_of": "global",
        "host_stages": {"server": {"wait": 1.0}},
        **changes,
    }


def test_every_status_has_a_look_of_its_own_that_the_page_has_colours_for() -> None:
    assert set(STATUSES) == set(get_args(Status))
    css = (Path(html.__file__).parent / "page.css.j2").read_text(encoding="utf-8")
    for look in STATUSES.values():
        assert css.count(f"{look.colour[4:-1]}: #") == 2, "one colour for light, one for dark"
    for own in ("colour", "symbol", "meaning"):
        assert len({getattr(look, own) for look in STATUSES.values()}) == len(STATUSES)
    patterns = [look.pattern for status, look in STATUSES.items() if status not in ("trained", "refused")]
    assert len(set(patterns)) == len(patterns)
    assert "" not in patterns


def test_every_pattern_of_a_chart_is_on_the_page() -> None:
    rounds = [busy(), busy(8)]
    rounds[1]["groups"][0]["status"] = rounds[1]["clients"][0]["status"] = "of the future"
    for rendered in (html.render(summary_of(rounds), rounds), render_dry(*dry())):
        used = set(re.findall(r"url\(#([\w-]+)\)", data_of(rendered)))
        assert used <= set(re.findall(r'<pattern id="([\w-]+)"', rendered))
        assert {"hatch-late", "status-late"} <= used
    assert {"waiting", "untrained"} <= set(re.findall(r'<pattern id="([\w-]+)"', rendered))


def test_a_round_is_drawn_from_its_beginning_and_closed_where_it_closed() -> None:
    chart = timeline(summary_of([busy()]), busy())
    assert list(looks(layers(chart.spec, "bar")[0], "fill")) == ["download", "training", "upload"]
    bars, hatched = (layer["data"]["values"] for layer in layers(chart.spec, "bar"))
    # The late client ends after 7 s, the axis is in seconds, and the first client begins with the round.
    assert {row["start"] for row in bars if row["series"] == "download"} == {0.0}
    lengths = {
        (wasted, phase): sum(row["end"] - row["start"] for row in bars if row["series"] == phase and bool(row["hatch"]) == wasted)
        for wasted in (False, True)
        for phase in ("download", "training", "upload")
    }
    assert list(lengths.values()) == pytest.approx([4, 6.26, 4, 5, 7.75, 2.5])
    statuses = ("late", "dropped", "interrupted", "out_of_memory", "diverged")
    assert {row["hatch"] for row in hatched} == {f"url(#hatch-{status})" for status in statuses}
    assert hatched == [row for row in bars if row["hatch"]]
    limits = {row["series"]: row["at"] for layer in layers(chart.spec, "rule") for row in layer["data"]["values"]}
    assert limits == {"the round closes": 4.0, "deadline": 6.0}
    ends = {row["reason"]: row["at"] for row in rows(chart.spec, "point")}
    assert ends == pytest.approx({"dropped": 2.5, "diverged": 3.0, "out of memory": 1.25, "interrupted": 1.5, "late": 7.0})
    assert [row["reason"] for row in rows(chart.spec, "text") if "reason" in row] == list(ends)
    assert chart.takeaway == (
        "Round 7 closed after 4.00 s with 4 of 9; 1 was late, 4 were lost (1 dropped, 1 interrupted, 1 out of memory, 1 diverged). "
        "1 more was refused, so nothing was sent: 1 of class Slow phone. "
        "Before it, the server waited 10 min 00 s for clients to become eligible."
    )
    assert "out of memory" in drawn(chart.spec)


def test_a_round_that_closes_at_its_deadline_has_one_line_for_both() -> None:
    line = record(
        1, outcome(0, "fast", "trained"), outcome(1, "slow", "late", (1, 5, 1)), round_s=6.0, clock_s=6.0, deadline_s=6.0
    )
    (limit,) = rows(timeline(summary_of([line]), line).spec, "rule")
    assert limit == {"series": "the round closes at its deadline", "at": 6.0}


def test_lines_stand_under_their_class_from_early_to_late() -> None:
    spec = timeline(summary_of([busy()]), busy()).spec
    assert heads(spec) == ["Fast phone", "Slow phone"]
    assert labels(spec) == ["5", "0", "8", "1", "7", "6", "2", "3", "4"]
    places = layers(spec, "bar")[0]["encoding"]["y"]["scale"]["domain"]
    assert [
        place for place, slot in enumerate(places) if slot in {row["slot"] for row in rows(spec, "text") if "head" in row}
    ] == [0, 5]


def test_rounds_of_milliseconds_are_drawn_in_milliseconds() -> None:
    line = record(1, outcome(0, "fast", "trained", (0.001, 0.002, 0.001)), round_s=0.004, clock_s=0.004)
    (bars, _) = layers(timeline(summary_of([line]), line).spec, "bar")
    assert bars["encoding"]["x"]["title"] == "time in the round (ms)"
    assert [row["end"] - row["start"] for row in bars["data"]["values"]] == pytest.approx([1.0, 2.0, 1.0])


def test_a_straggler_leaves_the_chart_but_says_when_it_ends() -> None:
    line = record(1, outcome(0, "fast", "trained"), outcome(1, "slow", "late", (1, 398, 1)), clock_s=4.0, deadline_s=1000.0)
    chart = timeline(summary_of([line]), line)
    (end,) = rows(chart.spec, "point")
    assert (end["at"], end["reason"]) == (12.0, "late, 6 min 40 s")
    assert "deadline" not in {row["series"] for row in rows(chart.spec, "rule")}
    assert chart.takeaway.endswith("Its deadline, 16 min 40 s, lies beyond the chart.")


def test_where_the_server_steps_clients_begin_before_the_step() -> None:
    o = outcome(0, "fast", "trained", start_s=98.0, staleness=2)
    line = record(3, o, round_s=3.0, clock_s=102.0, deadline_s=5.0)
    chart = timeline(summary_of([line]), line)
    bars = layers(chart.spec, "bar")[0]
    assert bars["data"]["values"][0]["start"] == -1.0
    assert bars["encoding"]["x"]["scale"]["domain"][0] == -1.0
    assert "ended with a step of the server, 3.00 s after the one before, on all 1" in chart.takeaway
    assert chart.takeaway.endswith("Its deadline, 5.00 s, is each client's own.")


def test_many_clients_are_picked_from_every_class_and_outcome() -> None:
    lines = [Line(n, "fast", "", "trained", 0.0, {"download": 1.0, "training": n / 100, "upload": 1.0}) for n in range(500)]
    rare = [Line(500 + n, "slow", "", status, 0.0, {"download": 1.0}) for n, status in enumerate(("late", "crashed", "dropped"))]
    picked = pick([*lines, *rare])
    assert len(picked) == 40
    assert all(line in picked for line in rare)
    ends = sorted(line.client for line in picked if line.device == "fast")
    assert (ends[0], ends[-1], len(ends)) == (0, 499, 37)
    assert pick(lines[:40]) == lines[:40]
    # More outcomes than lines: still no more lines than there is room for.
    assert len(pick([replace(line, status=f"s{line.client}") for line in lines])) == 40


def test_the_round_in_which_most_happened_comes_first_among_at_most_eight() -> None:
    quiet = [record(n, outcome(0, "fast", "trained")) for n in range(1, 21)]
    silent = {key: value for key, value in busy(21).items() if key != "clients"}
    found = timelines(summary_of(quiet), [*quiet[:12], busy(13), *quiet[13:], silent])
    titles = [chart.title for chart in found.charts]
    assert len(titles) == 8
    assert titles[found.chosen] == "Round 13"
    assert {"Round 1", "Round 20"} <= set(titles)
    assert found.labels[found.chosen].startswith("13: 4 of ")
    (none,) = timelines(summary_of(quiet), [silent]).charts
    assert none.spec is None


def test_useful_and_wasted_add_up() -> None:
    rounds = [busy(), record(8, outcome(0, "fast", "trained"), outcome(1, "slow", "trained"))]
    whole, by_round = waste_charts(rounds)
    # Useful: 3 + 4 + 3.5 + 3.76 s, and 8 s in the second round; wasted: 7 + 2.5 + 1.5 + 1.25 + 3 s.
    useful, wasted = 14.26 + 8, 15.25
    assert whole.takeaway == (
        f"{100 * wasted / (useful + wasted):.1f} % of the devices' time was wasted, most of it in sessions that ended as late."
    )
    bars = rows(whole.spec, "bar")
    slots = list(dict.fromkeys(row["slot"] for row in bars))
    for slot in slots:
        assert sum(row["value"] for row in bars if row["slot"] == slot) == pytest.approx(1)
    assert len(slots) == 5
    assert series(bars, "value")["trained"][4] == pytest.approx(useful / (useful + wasted))
    assert heads(whole.spec)[2:4] == ["energy on devices: 37.5 J, 40.7 % wasted", "energy end to end: 75.0 J, 40.7 % wasted"]
    assert by_round.takeaway.endswith(f"most in round 7: {100 * 15.25 / 29.51:.1f} %.")
    times = series(rows(by_round.spec, "bar"), "value")
    assert times["trained"] == pytest.approx([14.26, 8])
    assert sum(map(sum, times.values())) == pytest.approx(useful + wasted)
    cells = {row[0]: row for row in waste_table(rounds).rows}
    assert cells["all wasted"][1:3] == ("5", "152")
    assert cells["all"][3:] == ("1.10 kB", "450 B", "37.5 J", "75.0 J", "37.5 s")
    assert "refused" not in cells
    took = totals(rounds)
    assert took.useful.device_s == pytest.approx(useful)
    assert took.wasted.clients == 5
    assert (took.waited_s, took.end_to_end_j) == (600.0, pytest.approx(2 * (useful + wasted)))


def test_very_many_rounds_are_drawn_as_means_over_several() -> None:
    rounds = [record(n, outcome(0, "fast", "trained"), outcome(1, "slow", "late")) for n in range(1, 1001)]
    per_round, _ = outcome_charts(summary_of(rounds), rounds)
    (bars,) = layers(per_round.spec, "bar")
    assert series(bars["data"]["values"], "value") == {"trained": [1.0] * 112, "late": [1.0] * 112}
    assert series(bars["data"]["values"], "round")["trained"][:2] == [1, 10]
    assert "mean over 9" in bars["encoding"]["x"]["title"]


def test_each_class_s_share_of_the_population_is_beside_its_share_of_useful_sessions() -> None:
    spec = participation_chart(dicts(participation_rows(a_plan(), [busy()], {}, {}))).spec
    assert series(rows(spec, "point"), "share") == {"of the population": [0.25, 0.75], "of useful sessions": [0.5, 0.5]}
    assert heads(spec) == ["Fast phone", "Slow phone"]
    assert [(row["share"], row["other"]) for row in rows(spec, "rule")] == [(0.25, 0.5), (0.75, 0.5)]


def test_participation_counts_sessions_clients_and_work_of_each_class() -> None:
    rows = {row["device"]: row for row in dicts(participation_rows(a_plan(), [busy(), busy(8)], {"fast": 1}, {1.0: 0.9}))}
    fast, slow = rows["fast"], rows["slow"]
    assert fast["statuses"] == {"trained": 4, "dropped": 2, "diverged": 2}
    assert (fast["sessions"], fast["distinct"], fast["accuracy"], fast["tier"]) == (8, 1, 0.9, 1)
    assert (slow["sessions"], slow["distinct"], slow["accuracy"], slow["tier"]) == (12, 0, None, 0.5)
    assert fast["useful"]["device_s"] == pytest.approx(14.0)
    assert fast["wasted"]["macs"] == 2 * (25 + 30)
    assert slow["wasted"]["clients"] == 6
    json.dumps([fast, slow], allow_nan=False)
    cells = dict(
        zip((c.group + c.head for c in participation_table([slow]).columns), participation_table([slow]).rows[0], strict=True)
    )
    assert cells["sessionstrained"] == "33.3 %"
    assert cells["sessionslost"] == "2 interrupted, 2 out of memory"
    assert "tieraccuracy" not in cells


def test_what_a_policy_costs_the_weakest_class_is_said() -> None:
    rows = dicts(participation_rows(a_plan(), [busy()], {}, {1.0: 0.9, 0.5: 0.82}))
    assert weakest_sentence(rows) == (
        "Slow phone is the least represented class: 75.0 % of the population, 50.0 % of 4 useful sessions. "
        "Its tier, 0.5, reaches 82.0 %, 8.0 points below the best class's."
    )
    error = Metric("error", "lower", share=False)
    alike = [{**row, "share": 0.5, "statuses": {"trained": 2}} for row in rows]
    assert weakest_sentence(alike, error).startswith("Fast phone is the least represented class: 50.0 %")
    assert weakest_sentence(alike, error).endswith("Its tier, 1, reaches 0.9, worse than 0.82, the best class's.")
    nothing = [{**row, "tier": None, "accuracy": None} if row["device"] == "slow" else row for row in rows]
    assert weakest_sentence(nothing).endswith(". It fits no tier.")
    assert weakest_sentence([]) == "No client's update was used, so no class took part."
    assert weakest_sentence(rows[:1]) == "Fast phone is the only device class: it has all 2 useful sessions."


def test_the_sums_of_a_record_are_those_of_its_clients() -> None:
    line = busy()
    sums = {"clients": lambda client: 1, "device_s": lambda client: client["total_s"] or 0.0}
    for key in ("macs", "download_bytes", "upload_bytes", "energy_j", "end_to_end_j"):
        sums[key] = lambda client, key=key: client[key] or 0
    for group in line["groups"]:
        own = [c for c in line["clients"] if all(c[key] == group[key] for key in ("device", "tier", "status"))]
        assert {key: sum(map(of, own)) for key, of in sums.items()} == pytest.approx({key: group[key] for key in sums})
    assert sum(group["clients"] for group in line["groups"]) == len(line["clients"])


def test_tiers_are_shown_as_they_are_taken() -> None:
    measured = {"measured_training_memory_bytes": 390_000, "micro_batch": 8}
    other = {"measured_training_memory_bytes": 1_900_000}
    line = record(1, outcome(0, "slow", "trained", **measured), outcome(1, "slow", "trained", **other))
    full, half = tier_rows(a_plan(), {Tier(1.0): TierResult(0.9, 0.9, 7)}, [line])
    assert (full.micro_batch, full.accuracy, half.accuracy) == (None, 0.9, None)
    # Predicted and measured are of the same way of taking it: eight samples at once.
    assert (half.micro_batch, half.training_memory_bytes, half.measured_training_memory_bytes) == (8, 400_000, 390_000)
    assert half.budget_share == 0.4
    assert taken_as(half.to_dict()) == "0.5, 8 at once"
    summary = summary_of([line])
    assert [row[0] for row in tier_table(summary).rows] == ["1", "0.5, 8 at once"]
    assert compact_tiers(summary).to_plain().splitlines()[1].startswith("tier 0.5, 8 at once; device Slow phone")
    assert "0.5, 8 at once" in printed(compact_tiers(summary), 80)


def test_the_steps_of_planning_are_listed_in_their_order() -> None:
    summary = summary_of([busy()])
    slow = summary["classes"][1]
    assert slow["considered"] == [
        {"tier": 0.5, "micro_batch": None, "refusals": [asdict(SHORT)], "recompute": []},
        {"tier": 0.5, "micro_batch": 8, "refusals": [], "recompute": []},
    ]
    text = Page(html.render(summary, [busy()])).text
    for expected in ("How each class got its tier", "memory needs 2 MB, has 1 MB", "the whole batch", "given", "fits"):
        assert expected in text


def test_the_page_of_a_run_says_it_all_in_charts_that_vega_lite_accepts() -> None:
    rounds = [busy(), record(8, outcome(0, "fast", "trained"))]
    rendered = html.render(summary_of(rounds), rounds)
    page = Page(rendered)
    assert all(map(drawn, charts_of(rendered).values()))
    assert page.tags.count("figure") == len(charts_of(rendered)) + 3  # no accuracy was drawn
    for text in (
        "Energy end to end",
        "J end to end",
        "Useful work",
        "out of memory: it went over its device's memory",
        "1 was late",
    ):
        assert text in re.sub(r"\s+", " ", page.text)
    assert page.tags.count("select") == 2
    assert {("for", "round"), ("for", "over")} <= set(page.attributes)
    assert [name for name, _ in page.attributes].count("hidden") == 3


def test_the_page_of_real_devices_has_a_real_clock() -> None:
    rounds = [{**busy(), "observed": {"setup_bytes": 70}}]
    real, simulated = (Page(html.render(summary_of(some), some)).text for some in (rounds, [busy()]))
    assert "Its bars are download, training and upload on the real clock." in real
    assert "on the simulated clock" in simulated
    assert "imulated" not in real


def dry(count: int = 30) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rounds, clock_s = [], 0.0
    for number in range(1, count + 1):
        waited_s = 3600.0 if number % 3 == 0 else 0.0
        clock_s += waited_s + 4.0
        line = busy(number, clock_s, clock_s - 4.0) | {"waited_s": waited_s}
        rounds.append(line if number in (1, count) else {key: value for key, value in line.items() if key != "clients"})
    inclusion = [{"fast": 0.9, "slow": 0.6}, {"fast": 0.8, "slow": 0.2}]
    policies = [
        {"policy": policy, "tiers": [1, 0.5], "round_s": 4.0, "useful_share": 0.5, "inclusion": shares}
        for policy, shares in zip(("auto", "uniform"), inclusion, strict=True)
    ]
    summary = summary_of(rounds, availability="daily", start_hour=22, policies=policies, clients=1_000_000)
    del summary["global_accuracy"]
    summary["participation"] = dicts(participation_rows(a_plan(), rounds, {"fast": 2, "slow": 2}, {}))
    for row in summary["tiers"]:
        row |= {key: None for key in row if "accuracy" in key or key.startswith("measured")}
    return summary, rounds


def test_a_dry_run_has_a_page_without_accuracies() -> None:
    summary, rounds = dry()
    rendered = render_dry(summary, rounds)
    page = Page(rendered)
    assert all(map(drawn, charts_of(rendered).values()))
    assert {"rounds", "hours", "timeline-1", "timeline-30", "participation", "waste"} <= set(charts_of(rendered))
    assert [text for level, text in page.headings if level == 2] == [
        "Time",
        "What each assignment of tiers does to inclusion",
        "A round on the clock",
        "Who takes part",
        "Outcomes of clients",
        "Tiers and their costs",
    ]
    for text in ("Nothing was trained", "Clients that took part", "<0.1 % of 1,000,000", "10 h 00 min of it waiting for clients"):
        assert text in page.text
    assert "reaches" not in page.text
    assert rendered == render_dry(summary, rounds)


def test_rounds_of_a_dry_run_are_drawn_over_the_run_and_over_the_day() -> None:
    summary, rounds = dry()
    lasting = round_chart(rounds)
    assert lasting.takeaway == (
        "The median round lasts 4.00 s, the longest 4.00 s; the server waited 10 h 00 min in all for clients to become eligible."
    )
    chart = hour_chart(summary, rounds)
    assert chart is not None
    bars = rows(chart.spec, "bar")
    # Rounds 1 to 3 are asked for at 22 h, 4 to 6 an hour later, and so on: one in three waits an hour.
    assert series(bars, "hour")["waiting"] == [0, 1, 2, 3, 4, 5, 6, 7, 22, 23]
    assert series(bars, "time")["waiting"] == pytest.approx([20.0] * 10)
    assert series(bars, "time")["the round"] == pytest.approx([4 / 60] * 10)
    assert looks(layers(chart.spec, "bar")[0], "fill")["waiting"] == "url(#waiting)"
    assert [row["time"] for row in rows(lasting.spec, "line")] == [4.0] * 30
    assert hour_chart(summary | {"availability": "always"}, rounds) is None
    assert hour_chart(summary, rounds[:1]) is None
    assert round_chart([]).spec is None


def test_the_policies_of_a_dry_run_are_compared_by_their_weakest_class() -> None:
    summary, rounds = dry()
    assert policy_sentence(summary["policies"], TITLES) == (
        "Under “auto” the class that trains least is Slow phone: 60.0 % of its sessions train; "
        "under “uniform” it is Slow phone, with 20.0 %."
    )
    rendered = render_dry(summary, rounds)
    assert "--share: 0.2" in rendered
    assert "20.0 %" in Page(rendered).text
    assert "What each assignment of tiers" not in Page(render_dry(summary | {"policies": []}, rounds)).text


def test_a_dry_run_in_which_nothing_happened_has_a_page() -> None:
    refused = record(1, outcome(0, "slow", "refused"), round_s=0.0, clock_s=0.0)
    for rounds in ([], [refused]):
        text = Page(render_dry(summary_of(rounds, policies=[]), rounds)).text
        assert "Nothing was sent to any client" in text
        assert "No client's update was used" in text


def whatif() -> dict[str, Any]:
    figures = {"patient": (40.0, 0.9, 0.8), "strict": (10.0, 0.5, 0.1), "poor": (40.0, 0.7, 0.4), "middling": (20.0, 0.8, 0.6)}
    return {
        "profile": "phone",
        "method": "fedhm",
        "clients": 20,
        "per_round": 10,
        "rounds": 50,
        "clock_error": 1.25,
        "titles": TITLES,
        "rows": [
            {
                "label": label,
                "deadline_s": None if label == "patient" else round_s,
                "tiers": [1, 0.5],
                "over_selection": 1.3,
                "round_s": round_s,
                "inclusion": inclusion,
                "inclusion_by_class": {"fast": 1.0, "slow": weakest},
                "weakest": "slow",
                "weakest_inclusion": weakest,
                "wasted_share": 1 - inclusion,
                "energy_j": 7.5,
                "rounds_per_hour": 3600 / round_s,
                "updates": round(500 * inclusion),
            }
            for label, (round_s, inclusion, weakest) in figures.items()
        ],
    }


def test_the_page_of_a_what_if_joins_the_policies_that_no_other_beats() -> None:
    rendered = whatif_page.render(whatif())
    spec = charts_of(rendered)["whatif"]
    joined = rows(spec, "line")
    assert [(row["label"], row["time"], row["inclusion"]) for row in joined] == [
        ("strict", 10.0, 0.5),
        ("middling", 20.0, 0.8),
        ("patient", 40.0, 0.9),
    ]
    assert series(rows(spec, "point"), "label") == {
        "beaten by none": ["patient", "strict", "middling"],
        "beaten by another": ["poor"],
    }
    assert [row["numbers"] for row in rows(spec, "text")] == ["2", "4", "3", "1"]
    assert drawn(spec)
    page = Page(rendered)
    assert page.tags.count("table") == page.tags.count("caption") == 2
    assert "“strict” has the shortest rounds, 10.0 s, and 50.0 % of sessions train; “patient” includes most, 90.0 %" in page.text
    assert "No other policy is both as fast and as inclusive as “strict”; “middling”; “patient”." in page.text
    assert [value for name, value in page.attributes if name == "class"].count("taken") == 6
    assert ("style", "--share: 0.1") in page.attributes


def test_the_table_of_a_what_if_fits_a_terminal() -> None:
    for width in (80, 120):
        text = printed(whatif_page.compact_whatif(whatif()), width)
        assert max(map(len, text.splitlines())) <= width
        assert re.search(r"\* +strict +10\.0 s +50\.0 % +10\.0 % +50\.0 % +7\.50 J", text)
        assert not re.search(r"\* +poor", text)
        assert "Slow phone" in text
    first = whatif_page.whatif_table(whatif()).to_plain().splitlines()[0]
    assert first.startswith(
        "policy 1: patient, tiers 1, 0.5; rounds deadline –, median 40.0 s, within 32–50 s, an hour 90; selected per wanted answer 1.3;"
    )
    assert "No client trained" in whatif_page.whatif_table({"profile": "phone", "rows": []}).to_plain()


def test_a_what_if_in_which_nobody_trained_has_a_page() -> None:
    result = whatif()
    gone = dict.fromkeys(("round_s", "inclusion", "weakest", "weakest_inclusion", "wasted_share", "energy_j", "rounds_per_hour"))
    result["rows"] = [result["rows"][0] | gone | {"inclusion_by_class": {}}]
    text = Page(whatif_page.render(result)).text
    assert "there is nothing to draw" in text
    assert printed(whatif_page.compact_whatif(result), 80)


def test_a_policy_under_which_nobody_trains_is_not_the_fastest() -> None:
    result = whatif()
    result["rows"][2] |= {"round_s": 0.0, "inclusion": 0.0}
    chart = whatif_page.whatif_chart(result)
    assert set(series(rows(chart.spec, "point"), "label")) == {"beaten by none"}
    assert chart.takeaway.startswith("“strict” has the shortest rounds")
    assert chart.takeaway.endswith("Not drawn, because no client trains: poor.")
    assert whatif_page.front(result["rows"]) == [1, 3, 0]


def test_the_report_of_a_dry_run_can_be_written_anew(tmp_path: Path) -> None:
    summary, rounds = dry()
    summary |= {"dry_run": True}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rounds))
    assert html.write(tmp_path).read_text(encoding="utf-8") == render_dry(summary, rounds)
    summary["policies"][0]["inclusion"]["fast"] = "most"
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(InputError, match=r"policies\.0\.inclusion\.fast must be a number, got 'most'"):
        html.write(tmp_path)


def test_names_are_escaped_on_every_page() -> None:
    summary, rounds = dry()
    result = whatif()
    for item in (*summary["classes"], *summary["participation"]):
        item["title"] = EVIL
    summary["policies"][0]["policy"] = summary["availability"] = summary["fleet"] = EVIL
    rounds[0]["clients"][5] |= {"status": EVIL, "state": EVIL}
    rounds[0]["groups"][0]["status"] = EVIL
    result["titles"] = {"slow": EVIL}
    result |= {"profile": EVIL, EVIL: EVIL}
    result["rows"][1]["label"] = EVIL
    for rendered in (render_dry(summary, rounds), whatif_page.render(result)):
        assert "<script>alert" not in rendered
        assert "<" not in data_of(rendered)
        assert all(map(drawn, charts_of(rendered).values()))
        assert "alert(1)" in rendered


def test_a_record_must_have_the_sums_over_its_clients(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    line = busy()
    del line["clients"]
    path.write_text(json.dumps(line))
    assert read_rounds(path) == [line]
    del line["groups"]
    path.write_text(json.dumps(line))
    with pytest.raises(InputError, match=r"line 1: groups: missing"):
        read_rounds(path)
    path.write_text(json.dumps(busy() | {"groups": [{"device": "fast"}]}))
    with pytest.raises(InputError, match=r"line 1: groups\.0\.clients: missing"):
        read_rounds(path)
