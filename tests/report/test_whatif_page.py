"""The page and the table of a what-if: which policies no other beats."""

import re
from dataclasses import replace

from made_fleet import whatif
from made_whatif import whatif_with
from pages import Page, charts_of, drawn, printed, rows, series

from edgefl.report import whatif_page
from edgefl.report.results import Results


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
    assert "The best compromises between short rounds and many trained sessions: “strict”; “middling”; “patient”." in page.text
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
    assert "No client trained" in whatif_page.whatif_table(whatif_with([])).to_plain()


def test_a_what_if_in_which_nobody_trained_has_a_page() -> None:
    result = whatif()
    gone = dict.fromkeys(("round_s", "weakest", "weakest_inclusion", "energy_j", "rounds_per_hour"))
    result = replace(
        result, rows=Results([replace(result.rows[0], inclusion=0.0, wasted_share=0.0, inclusion_by_class={}, **gone)])
    )
    text = Page(whatif_page.render(result)).text
    assert "there is nothing to draw" in text
    assert printed(whatif_page.compact_whatif(result), 80)


def test_policies_that_are_equal_are_named_and_marked_together() -> None:
    result = whatif()
    result = replace(result, rows=Results([*result.rows, replace(result.rows[1], label="same")]))
    note = whatif_page.footnote(result)
    assert note.endswith("many trained sessions: “strict” and “same” (equal in both); “middling”; “patient”.")
    assert re.search(r"\* +same", printed(whatif_page.compact_whatif(result), 120))
    rendered = whatif_page.render(result)
    assert series(rows(charts_of(rendered)["whatif"], "point"), "label")["beaten by none"] == [
        "patient",
        "strict",
        "middling",
        "same",
    ]
    assert note in Page(rendered).text
    result = replace(result, rows=Results([result.rows[1], result.rows[4]]))
    assert whatif_page.whatif_chart(result).takeaway.endswith("and 50.0 % of sessions train: no policy includes more.")


def test_a_policy_under_which_nobody_trains_is_not_the_fastest() -> None:
    result = whatif()
    first, second, third, last = result.rows
    result = replace(result, rows=Results([first, second, replace(third, round_s=0.0, inclusion=0.0), last]))
    chart = whatif_page.whatif_chart(result)
    assert set(series(rows(chart.spec, "point"), "label")) == {"beaten by none"}
    assert chart.takeaway.startswith("“strict” has the shortest rounds")
    assert chart.takeaway.endswith("Not drawn, because no client trains: poor.")
    assert whatif_page.front(result.rows) == [1, 3, 0]


def test_a_long_table_scrolls_in_itself_on_a_phone():
    result = whatif()
    assert "scroll long" not in whatif_page.render(result)
    many = replace(result, rows=Results(replace(result.rows[0], label=f"patient {copy}") for copy in range(13)))
    assert whatif_page.render(many).count('<div class="scroll long"') == 1
