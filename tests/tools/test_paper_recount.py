"""What clients of stored runs need is counted again with today's code; the lines in tools/results/ have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paper_entries import entry_of
from tool_modules import on_the_path, tool_of  # noqa: F401 - a fixture is used by its name

pytestmark = pytest.mark.usefixtures("on_the_path")
RESULTS = Path(__file__).parents[2] / "tools" / "results"
TABLES = ("prism", "flanc", "fedpara", "pfedpara", "factorized", "fedhm", "flanc-net")


def run_of(seed: int, **options: Any) -> Any:
    settings = {
        "method": "fedhm",
        "model": "mlp",
        "dataset": "digits",
        "clients": 4,
        "rounds": 1,
        "per_round": 2,
        "local_epochs": 1,
    }
    tiers = {"tiers": (1.0, 0.5), "profile": "laptop", "method_options": options}
    return tool_of("papers.runs").Run("FedHM", "IID", {**settings, **tiers, "seed": seed})


def costs_of(settings: dict[str, Any], local: bool = False) -> dict[str, Any]:
    training = tool_of("papers.training")
    costs: dict[str, Any] = training.costs_of(training.prepared(settings, local))
    return costs


def with_costs(run: Any, costs: dict[str, Any], **others: Any) -> dict[str, Any]:
    entry = entry_of(run)
    return {**entry, **others, "figures": {**entry["figures"], "tiers": costs}}


def other(costs: dict[str, Any], **changes: int) -> dict[str, Any]:
    return {**costs, "0.5": {**costs["0.5"], **changes}}


def test_other_memory_is_stored_and_other_macs_have_to_be_trained_again(tmp_path):
    store, path, said = tool_of("papers.store"), tmp_path / "fedhm.jsonl", []
    costs = costs_of(run_of(0).settings)
    lines = [
        with_costs(run_of(0), costs),
        with_costs(run_of(1), other(costs, peak_activation_bytes_training=7)),
        with_costs(run_of(2), other(costs, macs_round=7, peak_activation_bytes_training=7)),
        with_costs(run_of(3), other(costs, peak_activation_bytes_training=7), inputs="0" * 16),
        with_costs(run_of(4, allocate="spectral"), other(costs, macs_round=7)),
    ]
    store.save(path, {"full": lines})
    assert not tool_of("papers.recount").recount(path, said.append)
    assert said == [
        "fedhm/FedHM/IID/2 (full): its clients need other bytes or MACs now; train it again",
        "fedhm: 1 runs need other memory than stored; their lines have it now",
    ]
    found = sorted(store.load(path)["full"], key=lambda line: line["seed"])
    assert [line["figures"]["tiers"] == costs for line in found] == [True, True, False, False, False]
    assert found[1] == {**json.loads(json.dumps(lines[1])), "figures": {**lines[1]["figures"], "tiers": costs}}
    assert found[2:] == json.loads(json.dumps(lines[2:]))
    store.save(path, {"full": found[:2]})
    assert tool_of("papers.recount").recount(path, said.append)
    assert len(said) == 2


@pytest.mark.parametrize("name", TABLES)
def test_stored_costs_are_those_that_are_counted_today(name):
    """Of one run of each method at full scale. Where this fails: ``tools/paper_tables.py --recount --table NAME --write``."""
    lines = tool_of("papers.store").load(RESULTS / f"{name}.jsonl")["full"]
    of_method = {line["settings"]["method"]: line for line in lines if line["kind"] == "run"}
    assert of_method
    for line in of_method.values():
        assert costs_of(line["settings"], line["local"]) == line["figures"]["tiers"], line["row"]
