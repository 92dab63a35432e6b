"""The last evaluation of a run: its counts against another way of counting, its charts, and its map of costs."""

from pathlib import Path

import pytest
from made_pages import evaluated_summary
from made_records import summary_in
from pages import drawn, rows, series

from edgefl.config import RunConfig
from edgefl.report.cost_map import cost_maps
from edgefl.report.evaluation import evaluation_charts
from edgefl.run.simulate import simulate


def test_classes_clients_and_confusions_are_drawn_and_named() -> None:
    summary = summary_in(evaluated_summary())
    by_class, confusion, by_client = evaluation_charts(summary.evaluation, summary.titles)
    assert by_class.takeaway == "The weakest label is T-shirt/top, 75.0 %; the best is trouser, 100 %."
    assert confusion.takeaway == "A row per true label. Most often confused: T-shirt/top taken for trouser: 10 of 40, 25.0 %."
    assert [row["share"] for row in rows(confusion.spec, "rect")] == [0.75, 0.25, 1.0]
    assert by_client.takeaway == (
        "The median of 11 clients has 90.0 %, the worst tenth 50.0 % on average, and the worst client (0, Low-end phone) 50.0 %."
    )
    assert [(row["from"], row["clients"]) for row in rows(by_client.spec, "bar")] == [(0.5, 1), (0.9, 10)]
    assert all(drawn(chart.spec) for chart in (by_class, confusion, by_client))
    assert evaluation_charts(None, {}) == ()


def test_a_map_of_costs_sums_the_factors_of_a_layer() -> None:
    macs, sizes = cost_maps(summary_in(evaluated_summary()))
    assert macs.takeaway == "conv2 takes most of tier 1: 2.00 k MACs of a step, 66.7 %."
    shown = [{**row, "series": row["tier"]} for row in rows(macs.spec, "rect")]
    assert series(shown, "value") == {"tier 1": [1000, 2000], "tier 0.5": [1000, 5000], "tier 0.25": [1000, 5000]}
    assert drawn(sizes.spec)
    assert cost_maps(summary_in({"tiers": [{"tier": 1}]})) == ()


@pytest.mark.parametrize("method", ["heterofl", "fedper"])
def test_the_counts_of_a_run_give_its_accuracies_again(method: str, tmp_path: Path) -> None:
    config = RunConfig(method=method, rounds=1, clients=4, local_epochs=1, model="mlp", data_share=0.3)
    summary = simulate(config, tmp_path / "run").summary
    found = summary["evaluation"]
    assert [sum(row) for row in found["confusion"]] == list(found["samples"])
    assert [row[n] for n, row in enumerate(found["confusion"])] == list(found["right"])
    if method == "heterofl":
        assert sum(found["right"]) / sum(found["samples"]) == pytest.approx(summary["global_accuracy"])
    else:
        assert sum(found["samples"]) == sum(client["samples"] for client in found["clients"])
        mean = sum(client["accuracy"] for client in found["clients"]) / len(found["clients"])
        assert mean == pytest.approx(summary["global_accuracy"])
    assert all(row["layers"] for row in summary["tiers"])


def test_a_run_with_a_loss_of_its_own_has_no_classes_to_count(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def loss(outputs, targets):\n    return (outputs ** 2).mean()\n")
    config = RunConfig(
        method="fedavg", rounds=1, clients=2, local_epochs=1, model="mlp", data_share=0.2, loss=f"{tmp_path / 'mine.py'}:loss"
    )
    assert "evaluation" not in simulate(config, tmp_path / "run").summary
