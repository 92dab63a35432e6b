"""The three sentences of a page, from hand-made records: each advice where its reason holds, the most urgent first."""

from dataclasses import replace
from typing import Any

import pytest
from compared import contender, of_json, played, two, with_summary
from made_cost_rows import layer, tier_row
from made_records import dry_in, filled, rounds_in, summary_in
from made_whatif import outcome_with, whatif_with

from edgefl.report.answer import Answer, answer_of_run
from edgefl.report.compare_answer import answer_of_comparison, best_first
from edgefl.report.compare_tables import compact_comparison, compare_table
from edgefl.report.comparison import Played, comparison_of
from edgefl.report.cost_page import answer_of_costs
from edgefl.report.cost_rows import ProfileRow
from edgefl.report.dry_page import answer_of_dry
from edgefl.report.fleet_charts import weakest_sentence
from edgefl.report.policies import PolicyOutcome
from edgefl.report.policy_advice import updates_per_hour
from edgefl.report.run_budget import RunBudget
from edgefl.report.run_charts import loss_chart
from edgefl.report.run_rows import Participation
from edgefl.report.run_tables import host_seconds
from edgefl.report.whatif_page import answer_of_whatif


def tier(number: float, accuracy: float, macs: int) -> dict[str, Any]:
    return {"tier": number, "accuracy": accuracy, "macs_train_step": macs, "uncounted_ops": [], "energy_share": None}


def taking_part(title: str, number: float | None, **statuses: int) -> dict[str, Any]:
    return {"title": title, "tier": number, "sessions": sum(statuses.values()), "statuses": statuses}


def of_class(title: str, number: float | None, *refusals: tuple[float, str, float]) -> dict[str, Any]:
    short = [{"tier": of, "budget": budget, "need": need, "have": 0.6, "micro_batch": None} for of, budget, need in refusals]
    return {"title": title, "tier": number, "refusals": short}


def run(**changed: Any) -> dict[str, Any]:
    """A run of two classes; low-end phones would need 0.8 s for tier 0.5, which is 1.3 points better."""
    summary = {
        "method": "fedhm",
        "model": "cnn",
        "dataset": "digits",
        "fleet": "phone",
        "rounds": 10,
        "accuracy_of": "global",
        "global_accuracy": 0.9,
        "simulated_s": 6.5,
        "download_bytes": 1_000_000,
        "upload_bytes": 1_000_000,
        "deadline_s": 0.6,
        "tiers": [tier(0.5, 0.913, 200), tier(0.25, 0.9, 100)],
        "classes": [of_class("Flagship phone", 0.5), of_class("Low-end phone", 0.25, (0.5, "deadline_s", 0.8))],
        "participation": [taking_part("Flagship phone", 0.5, trained=9), taking_part("Low-end phone", 0.25, trained=8, late=1)],
        "useful": {"device_s": 90.0},
        "wasted": {"device_s": 1.0},
    }
    return summary | changed


def rounds(*reached: float) -> list[dict[str, Any]]:
    groups = [{"status": "trained", "tier": 0.5, "clients": 9}, {"status": "trained", "tier": 0.25, "clients": 8}]
    return [{"round": n, "accuracy": {"global": value}, "groups": groups} for n, value in enumerate(reached, 1)]


FLAT = rounds(0.5, 0.8, 0.9, 0.9, 0.9)
LATE = [{**line, "groups": [{"status": "late", "clients": 1, "tier": 1}]} for line in FLAT]


def test_a_run_says_what_was_asked_what_came_out_and_what_to_do() -> None:
    found = answer_of_run(summary_in(run()), rounds_in(FLAT))
    assert (
        found.asked
        == "How well does fedhm train cnn on digits in 10 rounds, if every device class of phone stays within its budgets?"
    )
    assert found.found == (
        "The global model reached 90.0 % accuracy after 6.50 s of simulated time and 2.00 MB sent; "
        "Flagship phone trained tier 0.5 and Low-end phone trained tier 0.25."
    )
    assert found.advice == (
        "Low-end phone can train tier 0.25 within the deadline of 600 ms; "
        "a deadline of 800 ms would let it train tier 0.5 for 1.3 points more."
    )


def test_the_deadline_that_a_larger_tier_needs_is_beside_that_of_the_class() -> None:
    found = answer_of_run(summary_in(run(deadline_s=None)), rounds_in(FLAT))
    assert found.advice.startswith("Low-end phone can train tier 0.25 within the deadline of 600 ms; a deadline of 800 ms")


def screened(**hostile: Any) -> list[dict[str, Any]]:
    """Return rounds in which client 1 attacks, and all updates were screened."""
    plain = {"norm_ratio": 1.0, "dropped": False}
    clients = [{"client": number, "screened": {**plain, **(hostile if number == 1 else {})}} for number in range(3)]
    return [{**line, "adversaries": [1], "clients": clients} for line in FLAT]


@pytest.mark.parametrize(
    ("changed", "lines", "advice"),
    [
        ({"tiers": [tier(0.5, 0.913, 200) | {"uncounted_ops": ["Erf"]}]}, FLAT, "Claim no budget"),
        ({"classes": [of_class("Board", None, (0.25, "memory_bytes", 2.0))]}, FLAT,
         "Add a tier below 0.25, or accept that it cannot train: Board fits no tier, because the memory of Board is too small"),
        ({"participation": [taking_part("Board", 0.5, late=4)]}, FLAT, "Include Board: none of its 4 sessions was used"),
        ({}, rounds(0.1, 0.2, 0.3, 0.4, 0.5), "Train longer: accuracy still rose by 10.0 points"),
        # The memory refuses the larger tier as well, so no deadline helps; and both tiers are alike.
        (
            {
                "tiers": [tier(0.5, 0.9, 200), tier(0.25, 0.9, 100)],
                "classes": [of_class("Low-end phone", 0.25, (0.5, "deadline_s", 0.8), (0.5, "memory_bytes", 2.0))],
            },
            FLAT,
            "Deploy tier 0.25: it is as accurate as tier 0.5 with 50.0 % fewer MACs",
        ),
        ({"classes": [], "wasted": {"device_s": 60.0}}, LATE,
         "Waste less: 40.0 % of the devices' time was of no use, mostly in sessions that ended as late"),
        ({"classes": []}, FLAT, "Use this setting"),
        # Whether another metric still rises is not judged.
        (
            {"classes": [], "metric": {"name": "r2", "share": False}},
            rounds(-2.0, -1.0),
            "Use this setting: every class took part and no budget asks for a change.",
        ),
        ({}, rounds(0.4), "Train for more rounds: one round does not show"),
        ({}, rounds(0.4, 0.5), "Train longer: accuracy still rose by 10.0 points in the last round."),
        ({"participation": [taking_part("Fast", 1, diverged=4), taking_part("Slow", 0.25, trained=1, diverged=15)]}, FLAT,
         "Lower the learning rate (--lr), or limit changes with --clip-norm: 19 of 20 sessions diverged"),
        ({"clients": 20, "attack": {"count": 2}}, FLAT, "Compare this run with an honest one and with --defence: 2 of 20 clients"),
        ({"clients": 3, "attack": {"count": 1}}, screened(norm_ratio=11.0),
         "Compare this run with one with --defence norm-filter: 1 of 3 clients attacked, and the filter would have left out 5 of 5 hostile "
         "updates and 0 of 10 others."),
        ({"clients": 3, "attack": {"count": 1}}, screened(norm_ratio=11.0, dropped=True),
         "Compare this run with an honest one: 1 of 3 clients attacked, and the defence left out 5 of 5 hostile updates and 0 of 10 "
         "others."),
    ],
)  # fmt: skip
def test_the_most_urgent_advice_is_given(changed: dict[str, Any], lines: list[dict[str, Any]], advice: str) -> None:
    assert answer_of_run(summary_in(run(**changed)), rounds_in(lines)).advice.startswith(advice)


def test_a_class_of_dynamic_devices_has_no_tier_and_one_without_updates_is_not_praised() -> None:
    assert "their tiers changing with their state" in answer_of_run(summary_in(run(dynamic_devices=True)), rounds_in(FLAT)).found
    rows = [taking_part("Fast", 1, trained=9), taking_part("Slow", 0.25, late=9)]
    named = [filled(Participation, {**row, "clients": 5, "share": 0.5, "accuracy": 0.9}) for row in rows]
    sentence = weakest_sentence(named)
    assert sentence.endswith("Its tier, 0.25, learned nothing from it.")
    assert "best" not in sentence


def test_training_loss_is_a_mean_weighted_by_samples_per_tier() -> None:
    def client(number: float, loss: float | None, samples: int, status: str = "trained") -> dict[str, Any]:
        return {"tier": number, "train_loss": loss, "samples": samples, "status": status}

    line = {"round": 1, "clients": [client(1, 1.0, 1), client(1, 2.0, 3), client(0.5, 3.0, 1), client(0.5, 9.0, 1, "late")]}
    chart = loss_chart(summary_in({"tiers": [{"tier": 1}, {"tier": 0.5}]}), rounds_in([line]))
    assert chart is not None
    assert chart.takeaway == "At the end, clients' mean loss on their own samples is 1.75 (tier 1), 3 (tier 0.5)."
    assert loss_chart(summary_in({}), rounds_in([{"round": 1, "clients": [client(1, None, 1)]}])) is None


def test_there_is_one_host_time() -> None:
    assert (
        host_seconds(summary_in({"host_s": 3.0, "host_stages": {"server": {"train": 4.0, "bundle": 5.0, "report": 9.0}}})) == 9.0
    )
    assert host_seconds(summary_in({"host_s": 3.0, "host_stages": {"server": {}}})) == 3.0


def even(last: tuple[float, ...], **costs: Any) -> list[Played]:
    """A run per seed whose accuracy rises to its value of ``last``."""
    return [played(seed, [0.5, value], **costs) for seed, value in enumerate(last)]


def test_methods_are_ranked_and_the_best_is_named_with_its_cheaper_rival() -> None:
    rows = [contender("quick", *even((0.9, 0.88, 0.89))), contender("cheap", *even((0.6, 0.61, 0.6), sent=10))]
    summary = comparison_of(rows, [0, 1, 2], (1.0, 0.5), rank_by="global").to_dict()
    assert [row["rank"] for row in summary["verdict"]["methods"]] == [1, 2]
    assert [row.label for row in best_first(of_json(summary))] == ["quick", "cheap"]
    found = answer_of_comparison(of_json(summary))
    assert found.found == "quick is the best: quick 89.0 %, cheap 60.3 %."
    assert found.advice == (
        "Take quick, or cheap to save bytes: it takes 90.0 % less for 28.7 points of accuracy. "
        "Train longer before you choose: quick still rose by 39.0 points in the last round."
    )


def test_methods_whose_accuracy_no_longer_rises_may_be_chosen() -> None:
    rows = [contender(label, *(played(seed, [0.5, last]) for seed in (0, 1))) for label, last in (("a", 0.505), ("b", 0.4))]
    found = answer_of_comparison(comparison_of(rows, [0, 1], (1.0,)))
    assert (
        found.advice
        == "Take a: no other method takes fewer bytes, less time or less energy. More --seeds would tell the best apart."
    )


def test_diverged_sessions_come_before_the_choice() -> None:
    wild, calm = played(0, [0.1]), played(0, [0.6])
    statuses = {"trained": 3, "diverged": 1, "late": 1}
    rows = tuple(replace(row, statuses=statuses) for row in wild.summary.participation)
    wild = with_summary(wild, participation=rows)
    summary = comparison_of([contender("wild", wild, wild), contender("calm", calm)], [0], (1.0,)).to_dict()
    assert summary["methods"][0]["statuses"] == {"trained": 6, "diverged": 2, "late": 2}
    assert answer_of_comparison(of_json(summary)).advice == (
        "Lower the learning rate (--lr), or limit changes with --clip-norm, and compare again: "
        "of sessions, 2 of 10 of wild diverged: their weights became NaN or huge."
    )
    assert "wild: 2 of 10 sessions diverged: their weights became NaN or huge" in compact_comparison(of_json(summary)).to_plain()
    table = compare_table(of_json(summary))
    figures = [dict(zip([column.title for column in table.columns], row, strict=True)) for row in table.rows]
    assert [(row["method"], row["sessions used"], row["sessions not used"]) for row in figures] == [
        ("calm", "100 %", "–"),
        ("wild", "60.0 %", "2 late, 2 diverged"),
    ]


def test_a_target_that_no_method_reaches_is_said_and_asks_for_more_rounds() -> None:
    found = answer_of_comparison(of_json(two(target_accuracy=0.99)))
    assert found.asked.endswith("given the same clients and rounds, and which reaches 99.0 %?")
    assert found.found.endswith("; 99.0 % was reached by none.")
    assert found.advice == "Give more --rounds, or a lower --target-accuracy than 99.0 %."
    assert "80.0 % was reached by quick" in answer_of_comparison(of_json(two(target_accuracy=0.8))).found


def test_a_target_that_some_seeds_reach_is_said() -> None:
    rows = [contender("a", played(0, [0.5, 0.9]), played(1, [0.5, 0.7]))]
    found = answer_of_comparison(comparison_of(rows, [0, 1], (1.0, 0.5), target_accuracy=0.8, rank_by="global"))
    assert found.found == "a is the best: a 80.0 %; 80.0 % was reached by a in 1 of 2 seeds."


def test_with_a_budget_the_answer_is_what_each_method_reaches_within_it() -> None:
    """At the end ``large`` is best; its first round takes 200 bytes of a client, and its second 400."""
    rows = [contender("large", played(0, [0.5, 0.9], sent=100)), contender("small", played(0, [0.4, 0.6], sent=10))]

    def answer(target: float | None = None, **budget: float) -> Any:
        return answer_of_comparison(comparison_of(rows, [0], (1.0, 0.5), RunBudget(**budget), target, "global"))

    found = answer(bytes=100)
    assert found.asked.endswith("has the best global accuracy on digits within 100 B a client?")
    assert found.found == "small is the best: small 60.0 %; the budget is too small for large."
    assert found.advice == "Take small."
    found = answer(bytes=200)
    assert found.found == "small has the best value of one seed: small 60.0 %, large 50.0 %."
    assert found.advice == (
        "Take any of small and large, as far as these seeds tell. One seed does not decide it: repeat with --seeds 0,1,2."
    )
    assert answer(bytes=400).found.startswith("large has the best value of one seed: large 90.0 %, small 60.0 %")
    found = answer(0.8, bytes=200)
    assert found.found.endswith("; 80.0 % was reached within it by none.")
    assert found.advice == "Give a larger budget, or a lower --target-accuracy than 80.0 %."
    assert answer(0.95, bytes=200).advice.startswith("Give more --rounds, or a lower")
    assert answer(0.6, bytes=200).found.endswith("; 60.0 % was reached within it by small.")
    found = answer(bytes=10)
    assert found.found == "No method has an evaluated round within the budget."
    assert found.advice.startswith("Give a larger budget: large: the first evaluated round ends after")


def test_a_rival_that_seeds_cannot_tell_apart_may_be_better() -> None:
    a = contender("a", played(0, [0.9], sent=10, step_s=9.0), played(1, [0.8], sent=10, step_s=9.0))
    b = contender("b", played(0, [0.85], sent=20, step_s=3.0), played(1, [0.87], sent=20, step_s=3.0))
    found = answer_of_comparison(comparison_of([a, b], [0, 1], (1.0, 0.5)))
    assert found.advice == (
        "Take a, or b to save time: it takes 66.7 % less, and its accuracy is 1.0 point better. More --seeds would tell the best apart."
    )


def test_one_seed_decides_nothing() -> None:
    rows = [contender("a", played(0, [0.5, 0.9])), contender("b", played(0, [0.5, 0.8]))]
    found = answer_of_comparison(comparison_of(rows, [0], (1.0,)))
    assert (
        found.advice
        == "Take a: no other method takes fewer bytes, less time or less energy. One seed does not decide it: repeat with --seeds 0,1,2. "
        "Train longer before you choose: a still rose by 40.0 points in the last round."
    )


def test_a_what_if_is_chosen_by_useful_updates_an_hour_and_by_its_weakest_class() -> None:
    def policy(label: str, round_s: float, inclusion: float, weakest: float) -> PolicyOutcome:
        figures = {"round_s": round_s, "inclusion": inclusion, "weakest_inclusion": weakest, "rounds_per_hour": 3600 / round_s}
        return outcome_with(label, weakest="slow", updates=int(20 * inclusion), **figures)

    def answer(*policies: PolicyOutcome) -> Answer:
        return answer_of_whatif(whatif_with(policies, rounds=2, titles={"slow": "Slow phone"}))

    found = answer(policy("short", 1.0, 0.5, 0.0), policy("long", 4.0, 1.0, 1.0))
    assert found.advice == (
        "Take “short” for speed: about 18.0 k useful updates an hour; take “long” to include Slow phone: 100 % of its sessions train."
    )
    assert answer(policy("never", 1.0, 0.0, 0.0)).found == "No client trained under any policy."
    alone = answer(policy("as configured", 1.0, 0.5, 0.25))
    assert alone.found == (
        "A round takes 1.00 s, and 50.0 % of sessions train; Slow phone takes part least: 25.0 % of its sessions train."
    )
    assert alone.advice == "Give other policies to choose from, by --deadlines, --tiers or --over-selections."


def test_updates_an_hour_are_those_that_a_step_uses_not_the_clients_at_work() -> None:
    """Ten steps of 5 updates each at 60 steps an hour, while 20 clients train."""
    policy = outcome_with(over_selection=2.0, inclusion=0.9, rounds_per_hour=60.0, updates=50)
    about = whatif_with([policy], per_round=20, clients=100, rounds=10)
    assert updates_per_hour(about, policy) == 300
    assert updates_per_hour(about, replace(policy, rounds_per_hour=None, updates=0)) == 0


def test_a_dry_run_names_the_assignment_that_serves_its_weakest_class() -> None:
    groups = [{"status": "trained", "clients": 3}, {"status": "late", "clients": 1}]
    policies = [{"policy": "auto", "inclusion": {"slow": 0.6}}, {"policy": "uniform", "inclusion": {"slow": 0.2, "fast": None}}]
    summary = {
        "method": "fedhm",
        "fleet": "phone",
        "policies": policies,
        "rounds": 40,
        "participation": [taking_part("Slow", 0.5, trained=1, late=1)],
    }
    summary["classes"] = [{"device": "slow", "title": "Slow"}]
    found = answer_of_dry(dry_in(summary), rounds_in([{"round": 1, "round_s": 2.0, "groups": groups}]))
    assert (
        found.found
        == "75.0 % of 4 sessions train, in a median round of 2.00 s; Slow takes part least: 50.0 % of its sessions train."
    )
    assert found.advice == (
        "Keep “auto”: Slow, the class that trains least, trains in 60.0 % of its sessions; under “uniform” the least is 20.0 %."
    )

    def advice(*rows: dict[str, Any]) -> str:
        return answer_of_dry(
            dry_in({**summary, "policies": rows}), rounds_in([{"round": 1, "round_s": 2.0, "groups": groups}])
        ).advice

    assert advice(*policies[::-1]) == (
        "Assign tiers as in “auto”: Slow, the class that trains least, then trains in 60.0 % of its sessions; "
        "under “uniform” the least is 20.0 %."
    )
    assert advice(policies[0]) == "Train this setting: there is no other assignment of tiers to compare it with."
    assert "in 60.0 % of its sessions in the first 30 of 40 rounds;" in advice(*({**row, "rounds": 30} for row in policies))


def test_a_page_of_costs_names_the_layer_to_save_in() -> None:
    def row(number: float, macs: int) -> ProfileRow:
        layers = [layer(name, "conv", 0, (of, 0, 0, 0), (0, 0)) for name, of in (("small", 1), ("large", macs))]
        return tier_row(number, layers, batch_size=1, micro_batch=1, macs_train_step=macs + 1, training_memory_bytes=2000)

    found = answer_of_costs([row(1, 99), row(0.5, 49)], [])
    assert found.found == "Tier 0.5 takes 50 MACs a step and 2.00 kB of memory, 50.0 % of the MACs of tier 1."
    assert found.advice == "Save in large first: it has 99.0 % of the MACs of tier 1."
