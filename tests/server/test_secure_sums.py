"""Sums of masked updates are those of plain rounds, with clipping, noise and weights of rows inside."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from runs import checkpoint_of, lines_of, stopped_after
from small_fleet import play, small

from edgefl import RunConfig, simulate
from edgefl.client.job import Job
from edgefl.client.messages import Setups as JobSetups
from edgefl.client.messages import read_jobs, write_jobs
from edgefl.contrib.secagg.masking import Masking
from edgefl.contrib.secagg.stage import SecureGroups
from edgefl.contrib.secagg.vector import Coding, unpacked
from edgefl.methods.create import create
from edgefl.records import Tier


@pytest.mark.parametrize(
    ("method", "spec"), [("heterofl", "secagg"), ("fedavg", "secagg+:neighbours=4"), ("fedper", "secagg:bits=24")]
)
def test_masked_rounds_give_the_bits_of_unmasked_sums_and_nearly_those_of_plain_rounds(two_links, method, spec):
    keys = {"method": method, "per_round": 12}
    if method == "heterofl":
        keys |= {"tiers": (1.0, 0.5), "tier_assignment": "uniform", "partition": "classes:3"}
    texts = [f"{spec}{',' if ':' in spec else ':'}masks={how}" for how in ("real", "costed")]
    real, costed = (small(two_links, secure_aggregation=text, **keys) for text in texts)
    plain = small(two_links, **keys)
    found = {}
    for name, run in {"real": real, "costed": costed, "plain": plain}.items():
        state, record = play(run)
        found[name] = state.model.tensors
        assert record.useful.clients == 12
    (groups,) = (stage for stage in real.chain.stages if isinstance(stage, SecureGroups))
    step = groups.grouping.coding(12, groups.most if real.method.weighs_samples else 1).step
    start = plain.start().model.tensors
    for name, tensor in found["plain"].items():
        assert torch.equal(found["real"][name], found["costed"][name])
        # The mean of 12 clients with at least one sample each: at most a step per client.
        assert (found["real"][name] - tensor).abs().max() <= 12 * step + 1e-6
    assert any(not torch.equal(found["real"][name], start[name]) for name in start)


def test_a_masked_run_that_was_stopped_resumes_to_the_same_bits_and_records(tmp_path):
    """Masks are drawn anew in the round that was lost; their sum is zero, and the seed gives the groups. Ten processor seconds."""
    keys = {
        "method": "fedavg",
        "model": "mlp",
        "tiers": (1.0,),
        "rounds": 2,
        "clients": 6,
        "per_round": 5,
        "local_epochs": 1,
        "seed": 3,
    }
    config = RunConfig.of({**keys, "data_share": 0.1, "conditions": "ideal", "secure_aggregation": "secagg"})
    whole = simulate(config, tmp_path / "whole").folder
    resumed = simulate(config, stopped_after(config, tmp_path / "resumed", 1), resume=True).folder
    assert lines_of(resumed) == lines_of(whole)
    assert checkpoint_of(resumed, 2).name == checkpoint_of(whole, 2).name
    assert [group["summed"] for line in lines_of(whole) for group in line["observed"]["secure_aggregation"]] == [True, True]


def test_the_weights_of_rows_are_inside_the_vector():
    coding = Coding(32, 3, 1.0, 50)
    masking = Masking(coding, 20, ("fc.bias",), 3)
    update, sent = {"fc.bias": torch.tensor([1.0, 0.5, 0.25])}, {"fc.bias": torch.tensor([0.5, 0.5, -0.5])}
    payload, clipped = masking.masked(update, sent, (0, 2), np.random.default_rng(0))
    values = unpacked(payload, 7, 32)
    assert coding.decoded(values[:3]).tolist() == pytest.approx([10.0, 0.0, 15.0], abs=2 * coding.step)
    assert values[3:].tolist() == [20, 20, 0, 20]
    assert clipped == 0
    assert len(payload) == 28


def test_a_masked_job_travels_between_processes():
    masking = Masking(Coding(24, 5, 0.5, 7), 3, ("fc.bias",), 10, bytes(range(33)))
    job = Job(1, 2, create("fedavg"), Tier(1.0), b"payload", handed={"masked": masking.row()})
    (read,) = read_jobs(write_jobs([job], JobSetups()))
    assert Masking.of(read.handed["masked"]) == masking
    assert json.dumps(masking.row())


def test_a_fixed_clipping_norm_is_kept_by_clients(two_links):
    run = small(two_links, per_round=12, clip_norm=0.01, secure_aggregation="secagg:bound=0.1")
    state = run.start()
    after, _ = play(run, state)
    change = torch.cat([(after.model.tensors[n] - t).flatten() for n, t in state.model.tensors.items()])
    assert 0 < float(change.norm()) <= 0.01 * (1 + 1e-3)


def test_noise_of_clients_is_inside_the_masked_update(two_links):
    noisy = {"privacy": "local", "privacy_clip": 0.5, "noise_multiplier": 0.01}
    keys = {"per_round": 12, "secure_aggregation": "secagg"}
    quiet, _ = play(small(two_links, clip_norm=0.5, **keys))
    after, record = play(small(two_links, **keys, **noisy))
    assert record.useful.clients == 12
    assert any(not torch.equal(t, quiet.model.tensors[n]) for n, t in after.model.tensors.items())
