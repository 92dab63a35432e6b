"""Who takes part and what is wasted: shares of classes, sums over clients, and the weakest class."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_fleet import a_plan, busy, dicts, outcome, record, summary_of
from made_records import filled, rounds_in, summary_in
from pages import heads, layers, rows, series

from edgefl.errors import InputError
from edgefl.records import Metric
from edgefl.report.fleet_charts import (
    outcome_charts,
    participation_chart,
    participation_table,
    waste_charts,
    waste_table,
    weakest_sentence,
)
from edgefl.report.run_files import read_rounds
from edgefl.report.run_rows import Participation
from edgefl.report.summary import participation_rows, totals


def test_useful_and_wasted_add_up() -> None:
    rounds = rounds_in([busy(), record(8, outcome(0, "fast", "trained"), outcome(1, "slow", "trained"))])
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
    per_round, _ = outcome_charts(summary_in(summary_of(rounds)), rounds_in(rounds))
    (bars,) = layers(per_round.spec, "bar")
    assert series(bars["data"]["values"], "value") == {"trained": [1.0] * 112, "late": [1.0] * 112}
    assert series(bars["data"]["values"], "round")["trained"][:2] == [1, 10]
    assert "mean over 9" in bars["encoding"]["x"]["title"]


def test_each_class_s_share_of_the_population_is_beside_its_share_of_useful_sessions() -> None:
    spec = participation_chart(participation_rows(a_plan(), rounds_in([busy()]), {}, {})).spec
    assert series(rows(spec, "point"), "share") == {"of the population": [0.25, 0.75], "of useful sessions": [0.5, 0.5]}
    assert heads(spec) == ["Fast phone", "Slow phone"]
    assert [(row["share"], row["other"]) for row in rows(spec, "rule")] == [(0.25, 0.5), (0.75, 0.5)]


def test_participation_counts_sessions_clients_and_work_of_each_class() -> None:
    rows = {
        row["device"]: row for row in dicts(participation_rows(a_plan(), rounds_in([busy(), busy(8)]), {"fast": 1}, {1.0: 0.9}))
    }
    fast, slow = rows["fast"], rows["slow"]
    assert fast["statuses"] == {"trained": 4, "dropped": 2, "diverged": 2}
    assert (fast["sessions"], fast["distinct"], fast["accuracy"], fast["tier"]) == (8, 1, 0.9, 1)
    assert (slow["sessions"], slow["distinct"], slow["accuracy"], slow["tier"]) == (12, 0, None, 0.5)
    assert fast["useful"]["device_s"] == pytest.approx(14.0)
    assert fast["wasted"]["macs"] == 2 * (25 + 30)
    assert slow["wasted"]["clients"] == 6
    json.dumps([fast, slow], allow_nan=False)
    table = participation_table([filled(Participation, slow)])
    cells = dict(zip((c.group + c.head for c in table.columns), table.rows[0], strict=True))
    assert cells["sessionstrained"] == "33.3 %"
    assert cells["sessionslost"] == "2 interrupted, 2 out of memory"
    assert "tieraccuracy" not in cells


def test_what_a_policy_costs_the_weakest_class_is_said() -> None:
    rows = participation_rows(a_plan(), rounds_in([busy()]), {}, {1.0: 0.9, 0.5: 0.82})
    assert weakest_sentence(rows) == (
        "Slow phone is the least represented class: 75.0 % of the population, 50.0 % of 4 useful sessions. "
        "Its tier, 0.5, reaches 82.0 %, 8.0 points below the best class's."
    )
    error = Metric("error", "lower", share=False)
    alike = [replace(row, share=0.5, statuses={"trained": 2}) for row in rows]
    assert weakest_sentence(alike, error).startswith("Fast phone is the least represented class: 50.0 %")
    assert weakest_sentence(alike, error).endswith("Its tier, 1, reaches 0.9, worse than 0.82, the best class's.")
    nothing = [replace(row, tier=None, accuracy=None) if row.device == "slow" else row for row in rows]
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


def test_a_record_must_have_the_sums_over_its_clients(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    line = busy()
    del line["clients"]
    path.write_text(json.dumps(line))
    assert read_rounds(path) == rounds_in([line])
    del line["groups"]
    path.write_text(json.dumps(line))
    with pytest.raises(InputError, match=r"line 1: groups: missing"):
        read_rounds(path)
    path.write_text(json.dumps(busy() | {"groups": [{"device": "fast"}]}))
    with pytest.raises(InputError, match=r"line 1: groups\.0\.clients: missing"):
        read_rounds(path)
