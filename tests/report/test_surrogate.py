"""Accuracies of policies that are read off a real run: by hand, where the run ends, and held against runs that were really made."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_fleet import dry as dry_run
from made_pages import judged_whatif
from made_records import rounds_in, summary_in
from made_run import make_summary
from made_whatif import outcome_with, whatif_with
from pages import Page, printed

from edgefl.errors import InputError
from edgefl.report import whatif_page
from edgefl.report.learned import advice_by_accuracy, learned_chart
from edgefl.report.policies import EXPONENT, FACTOR, PolicyOutcome
from edgefl.report.surrogate import Taught, curve_of, judged, learned, with_accuracy

VALIDATED = Path(__file__).parents[2] / "tools" / "results" / "surrogate.json"


def line(used: int, accuracy: float | None) -> dict[str, Any]:
    groups = [{"status": "trained", "clients": used, "tier": 1, "device": "board"}, {"status": "late", "clients": 5}]
    return {"groups": groups, "accuracy": {} if accuracy is None else {"global": accuracy}}


# Four updates a round are 2 of progress: 2, 4, 6, 8, 10. The third round was not evaluated, and the fourth fell back.
LINES = rounds_in([line(4, 0.2), line(4, 0.5), line(4, None), line(4, 0.4), line(4, 0.9)])


BOTH = Taught(frozenset((1.0, 0.5)), 1.0)


def policy(updates: int, **changed: Any) -> PolicyOutcome:
    return outcome_with(**{"tiers": [1, 0.5], "updates": updates, "rounds_per_hour": 3600.0, "energy_j": 2.0, **changed})


def test_a_policy_has_the_accuracy_that_the_run_had_at_the_same_progress() -> None:
    curve = curve_of(LINES)
    assert curve.points == ((2.0, 0.2), (4.0, 0.5), (8.0, 0.5), (10.0, 0.9))
    # Four rounds with one update each are 4 of progress, and between 2 and 8 with a factor of 2.
    found = learned(curve, policy(4), 4, 0.7, BOTH)
    assert (found.accuracy, found.low, found.high, found.beyond) == (0.5, 0.2, 0.5, False)
    # 9 of progress are nine rounds of a second and two joules.
    assert (found.rounds, found.target_s, found.target_j) == pytest.approx((9.0, 9.0, 18.0))


def test_what_the_run_does_not_know_is_not_made_up() -> None:
    curve = curve_of(LINES)
    far = learned(curve, policy(400), 100, 0.95, BOTH)
    assert (far.accuracy, far.beyond, far.rounds, far.target_s) == (0.9, True, None, None)
    assert learned(curve, policy(1), 1, 0.7, BOTH).accuracy is None
    assert learned(curve, policy(0), 4, 0.7, BOTH).why == "no update is used"
    assert learned(curve, policy(4, tiers=[1]), 4, 0.7, BOTH).why == "other tiers than the run's"
    assert learned(curve, policy(4, noise_multiplier=1.5), 4, 0.7, replace(BOTH, noise=1.0)).why == "other noise than the run's"
    assert learned(curve, policy(4, noise_multiplier=1.5), 4, 0.7, replace(BOTH, noise=1.5)).accuracy == 0.5
    use = {"clients": 1, "sessions": 3, "download_bytes": 0, "upload_bytes": 0, "energy_j": None, "device_s": 1.0}
    uses = {"board": use | {"updates": 3}, "meter": use | {"updates": 0}}
    taught = Taught.of(summary_in({"tiers": [{"tier": 1.0}, {"tier": 0.5}]}), LINES)
    assert taught == Taught(frozenset((1.0, 0.5)), 1.0, frozenset(("board",)))
    assert learned(curve, policy(4, largest_trained=0.5), 4, 0.7, taught).why == "nobody trains tier 1, as in the run"
    assert learned(curve, policy(4, largest_trained=1.0, uses=uses), 4, 0.7, taught).accuracy == 0.5
    both = replace(taught, devices=frozenset(uses))
    assert (
        learned(curve, policy(4, largest_trained=1.0, uses=uses), 4, 0.7, both).why == "no update of meter is used, as in the run"
    )
    with pytest.raises(InputError, match="no evaluated round in which an update was used"):
        curve_of(rounds_in([line(0, 0.1), line(4, None)]))
    summary = summary_in({"tiers": [{"tier": 1.0}, {"tier": 0.5}]})
    assert judged("run", summary, LINES, [policy(4, rounds=4)], None).target == pytest.approx(0.89)


def test_a_run_without_an_accuracy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(make_summary()))
    assert with_accuracy(tmp_path).global_accuracy == 0.968
    dry, _ = dry_run()
    for summary in (dry | {"dry_run": True}, make_summary() | {"metric": {"name": "mse", "better": "lower", "share": False}}):
        path.write_text(json.dumps(summary))
        with pytest.raises(InputError, match=f"{tmp_path}: expected a run that trained and has an accuracy"):
            with_accuracy(tmp_path)


def test_the_page_says_what_is_assumed_and_which_policy_to_take() -> None:
    text = Page(whatif_page.render(judged_whatif())).text
    assert "No policy was trained. Accuracies are read off the curve of the run 0001-fedhm-digits" in text
    assert "“strict” should reach 80.0 % accuracy first, after 1 min 40 s of simulated time, within a factor of 2" in text
    assert "other tiers than the run's" in text
    assert "80.0 % (70.0–90.0)" in printed(whatif_page.compact_whatif(judged_whatif()), 200)
    assert advice_by_accuracy(whatif_with([])) is None
    assert learned_chart(whatif_with([])) is None


def test_a_target_below_the_first_accuracy_of_the_run_gains_no_points() -> None:
    result = judged_whatif()
    assert result.surrogate is not None
    low = replace(result, surrogate=replace(result.surrogate, target=0.1))
    table = whatif_page.whatif_table(low)
    places = [at for at, column in enumerate(table.columns) if column.group == "points"]
    assert [table.rows[0][at] for at in places] == ["0", "0"]
    assert "until 10.0 %" in Page(whatif_page.render(low)).text


def test_the_stated_range_holds_nine_of_ten_evaluations_of_runs_that_were_held_out() -> None:
    found = json.loads(VALIDATED.read_text(encoding="utf-8"))
    assert (found["exponent"], found["factor"]) == (EXPONENT, FACTOR)
    assert found["pairs"] >= 30
    assert found["within"] >= 0.9
    assert found["final_within"] >= 0.9 * found["pairs"]
