"""A round of OrigDrop against the derivation in origdrop_by_hand.py."""

import numpy as np
import origdrop_by_hand as hand
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors, state_of, trained

from edgefl.methods.create import create
from edgefl.methods.networks import global_tier
from edgefl.records import Tier

TIERS = (Tier(0.5), Tier(0.25))
METHOD = create("origdrop")


@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_averages_leading_slices_and_leaves_the_rest(clients):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    updates = []
    for number, name in enumerate(clients):
        width, samples, begin = hand.CLIENTS[name]
        updates.append(trained(METHOD, state, number, Tier(width), begin, samples, hand.LR))
    expected = hand.round_of(before, clients)
    assert_tensors(METHOD.aggregate(state, updates).tensors, expected)
    assert all(not np.allclose(expected[name], before[name], atol=1e-3) for name in before), "the derivation must move everything"
    if clients == "B":
        assert (expected["conv1.weight"][1:] == before["conv1.weight"][1:]).all()


def test_the_global_model_is_that_of_the_largest_trained_tier():
    state = state_of(METHOD, TIERS, hand.start())
    network = METHOD.deploy(state, global_tier(METHOD, state))
    assert_tensors(network.state_dict(), hand.scaled(hand.start(), 0.5))


def test_a_run_is_that_of_heterofl_at_the_same_tiers():
    other = create("heterofl")
    one = METHOD.init(ARCHITECTURE, TIERS, np.random.default_rng(1))
    full = other.init(ARCHITECTURE, TIERS, np.random.default_rng(1))
    for tier in TIERS:
        mine, theirs = (m.submodel(s, tier, np.random.default_rng(0)).tensors for m, s in ((METHOD, one), (other, full)))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
