"""Runs with adversaries: resumed, on onnxruntime, their records, what they claim, and whether the attack succeeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after

from edgefl import RunConfig, simulate
from edgefl.client.job import Job
from edgefl.contrib.attacks.adversary import Adversaries
from edgefl.engine.inline import InlineEngine
from edgefl.rng import generator
from edgefl.run.prepare import prepare
from edgefl.run.run import Run
from edgefl.run.trained import Trained, judgements
from edgefl.server.client_store import ClientStore
from edgefl.util.compute import one_thread
from edgefl.wire.payload import encode, stored_tensors

SMALL: dict[str, Any] = {
    "profile": "lab", "conditions": "ideal", "rounds": 3, "clients": 8, "per_round": 5, "local_epochs": 1, "data_share": 0.2,
    "model": "mlp", "method": "heterofl", "eval_every": 3, "tier_assignment": "uniform",
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "backdoor, codec": {"adversary": "backdoor:0.25(scale=4)", "codec": "int8"},
    "free-rider, async": {"adversary": "free-rider:0.25", "mode": "async", "buffer": 2},
    "sign-flip, scaffold": {
        **{"adversary": "sign-flip:0.25(scale=2)", "objective": "scaffold", "optimizer": "sgd", "weight_decay": 0.0},
        "method": "fedavg",
    },
}


@pytest.mark.parametrize("what", RUNS)
def test_a_stopped_run_resumes_to_the_same_bits_over_workers(what: str, tmp_path: Path) -> None:
    config = RunConfig.of({**SMALL, **RUNS[what]})
    whole = stopped_after(config, tmp_path / "whole", 3)
    again = stopped_after(config, tmp_path / "stopped", 1)
    workers = config.model_copy(update={"workers": 2, "engine": "pool"})
    again = stopped_after(workers, again, 3, resume=True)
    assert lines_of(whole) == lines_of(again)
    assert checkpoint_of(whole, 3).read_bytes() == checkpoint_of(again, 3).read_bytes()


def test_onnxruntime_trains_the_same_poisoned_samples(tmp_path: Path) -> None:
    found = []
    for runtime in ("torch", "onnx"):
        config = RunConfig.of({**SMALL, "rounds": 1, "method": "fedavg", "adversary": "label-flip:0.25", "runtime": runtime})
        found.append(lines_of(stopped_after(config, tmp_path / runtime, 1))[0])
    for one, other in zip(found[0]["clients"], found[1]["clients"], strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)


def test_records_summary_and_report_name_the_adversaries(tmp_path: Path) -> None:
    config = RunConfig.of({**SMALL, "method": "fedavg", "rounds": 1, "eval_every": 1, "adversary": "backdoor:0.25(target=3)"})
    result = simulate(config, tmp_path / "run")
    bad = Adversaries.of("backdoor:0.25", 8, 0).listed
    assert result.summary["attack"] == {"adversary": "backdoor:0.25(target=3)", "count": 2, "clients": bad}
    (line,) = lines_of(result.folder)
    assert line["adversaries"] == [client["client"] for client in line["clients"] if client["client"] in bad]
    assert line["observed"]["attack_success"].keys() == line["accuracy"].keys()
    page = (result.folder / "report.html").read_text(encoding="utf-8")
    assert f"backdoor:0.25(target=3), 2 of 8 clients: {bad[0]}, {bad[1]}" in page
    assert "Success of the attack, by tier" in page


def test_a_run_without_an_attack_says_nothing_of_one(tmp_path: Path) -> None:
    (line,) = lines_of(stopped_after(RunConfig.of({**SMALL, "rounds": 1, "eval_every": 1}), tmp_path / "run", 1))
    assert "adversaries" not in line
    assert "observed" not in line


def rounds_of(run: Run, folder: Path) -> tuple[Any, Any]:
    """Return the state and the record after the run's first round."""
    with one_thread(), ClientStore(folder) as store, InlineEngine(run.clients) as engine:
        return run.round(run.start(), engine, store)


def test_a_free_rider_spends_no_macs_and_claims_count_in_the_average(tmp_path: Path) -> None:
    honest = prepare(RunConfig.of({**SMALL, "method": "fedavg", "per_round": 8}))
    rides = prepare(RunConfig.of({**SMALL, "method": "fedavg", "per_round": 8, "adversary": "free-rider:0.25(noise=0)"}))
    (_, before), (_, after) = rounds_of(honest, tmp_path / "a"), rounds_of(rides, tmp_path / "b")
    bad = Adversaries.of("free-rider:0.25", 8, 0).listed
    for one, other in zip(before.clients, after.clients, strict=True):
        idle = other.client in bad
        assert one.expected.timing.total_s == other.expected.timing.total_s
        assert (other.expected.macs == 0) == idle
        assert (other.expected.timing.compute_j < one.expected.timing.compute_j) == idle
        assert other.expected.upload_bytes == one.expected.upload_bytes


def test_inflated_samples_pull_the_average(tmp_path: Path) -> None:
    """With a million times its samples, the only adversary's update is the aggregate, up to a millionth."""
    config = RunConfig.of(
        {**SMALL, "method": "fedavg", "per_round": 8, "adversary": "inflated:0.1(times=1_000_000)", "sample_cap": "off"}
    )
    run = prepare(config)
    (bad,) = Adversaries.of("inflated:0.1", 8, 0).listed
    state, _ = rounds_of(run, tmp_path)
    alone = prepare(config.model_copy(update={"adversary": None}))
    (tier,) = alone.tiers
    submodel = alone.method.submodel(alone.start().model, tier, generator(0, 1, "submodel"))
    with one_thread():
        outcome = alone.clients.run(Job(1, bad, alone.method, tier, encode(dict(submodel.tensors))))
    for name, tensor in stored_tensors(outcome.payload, "the adversary").items():
        assert torch.allclose(state.model.tensors[name], tensor, atol=1e-4), name


def test_claims_are_capped_at_three_times_the_median_of_the_round(tmp_path: Path) -> None:
    bad = Adversaries.of("inflated:0.25", 8, 0).listed
    for method in ("fedavg", "flanc"):  # workers add up the updates of the first, the server reads those of the second
        config = RunConfig.of(
            {**SMALL, "method": method, "per_round": 8, "partition": "iid", "adversary": "inflated:0.25(times=50)"}
        )
        _, record = rounds_of(prepare(config), tmp_path / method)
        samples = {client.client: client.expected.samples for client in record.clients}
        claims = sorted(50 * of if client in bad else of for client, of in samples.items())
        counted = {of.client: of.screened.counted_samples for of in record.clients if of.screened is not None}
        assert counted == dict.fromkeys(bad, 3 * claims[3])


def test_success_is_the_share_that_gets_the_wanted_label(tmp_path: Path) -> None:
    """The network that answers 0 always gives every triggered image the label of the attack, and no other label."""
    for target, expected in ((0, 1.0), (4, 0.0)):
        run = prepare(RunConfig.of({**SMALL, "method": "fedavg", "adversary": f"backdoor:0.2(target={target})"}))
        state = run.start()
        tensors = {name: torch.zeros_like(tensor) for name, tensor in state.model.tensors.items()}
        (bias,) = [name for name, tensor in tensors.items() if tensor.shape == (10,)]
        tensors[bias][0] = 1.0
        blank = replace(state, model=state.model.replace(tensors))
        success = judgements(Trained(run, blank, ClientStore(tmp_path)))["attack_success"]
        assert set(success.values()) == {expected}
