"""A round of OrthDrop against the derivation in orthdrop_by_hand.py."""

import numpy as np
import orthdrop_by_hand as hand
import pytest
import torch
from small_conv import assert_tensors, state_of, trained

from edgefl.methods.create import create
from edgefl.methods.networks import global_tier
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
METHOD = create("orthdrop", {"frobenius_decay": hand.DECAY})


@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_averages_the_products(clients):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    updates = []
    for number, name in enumerate(clients):
        keep, samples, begin = hand.CLIENTS[name]
        updates.append(trained(METHOD, state, number, Tier(keep), begin, samples, hand.LR))
    expected = hand.round_of(before, clients)
    assert_tensors(METHOD.aggregate(state, updates).tensors, expected)
    assert all(not np.allclose(expected[name], before[name], atol=1e-3) for name in before), "the derivation must move everything"
    if clients == "B":
        assert np.linalg.matrix_rank(expected["conv2.weight"].reshape(4, 16)) == 2, "the kernels that nobody has are given up"


def test_a_deployed_tier_is_the_network_of_the_first_kernels():
    state = state_of(METHOD, TIERS, hand.start())
    small = METHOD.deploy(state, Tier(0.5)).state_dict()
    submodel = METHOD.submodel(state, Tier(0.5), np.random.default_rng(0))
    assert all(torch.equal(small[name], tensor) for name, tensor in submodel.tensors.items())
    assert_tensors(METHOD.deploy(state, global_tier(METHOD, state)).state_dict(), hand.start())


def test_energy_is_recorded_per_band_of_kernels():
    state = state_of(METHOD, TIERS, hand.start())
    observed = METHOD.observe(state, [METHOD.submodel(state, Tier(0.5), np.random.default_rng(0))])
    weight = hand.start()["conv2.weight"].reshape(4, 16)
    squares = np.linalg.svd(weight, compute_uv=False) ** 2
    shares = squares[:2].sum() / squares.sum(), squares[2:].sum() / squares.sum()
    names = [f"energy first held by tier {tier}" for tier in ("0.5", "1")]
    assert list(observed["energy_by_layer"]["conv2.weight"]) == names
    assert list(observed["energy_by_layer"]["conv2.weight"].values()) == pytest.approx(shares, abs=1e-5)
    assert sum(observed["energy"].values()) == pytest.approx(1, abs=1e-5)
    assert METHOD.energy_bands(state_of(METHOD, TIERS[:1], hand.start())) == {}
