"""A round of FLANC against the derivation in flanc_by_hand.py."""

import flanc_by_hand as hand
import numpy as np
import pytest
import torch
from small_conv import assert_tensors, state_of, trained
from small_conv_by_hand import data, logits

from edgefl.methods.base import create
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
METHOD = create(
    "flanc",
    {"orthogonality": hand.LAMBDA, "basis_channels": {"conv2": 2, "fc": 4}, "basis_count": {"conv2": 3, "fc": 3}},
    tiers=(1.0, 0.5),
)


@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_is_that_of_equations_3_and_4(clients):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    updates = []
    for number, name in enumerate(clients):
        tier, samples, begin = hand.CLIENTS[name]
        updates.append(trained(METHOD, state, number, Tier(float(tier)), begin, samples, hand.LR))
    after = METHOD.aggregate(state, updates).tensors
    expected = hand.round_of(before, clients)
    assert_tensors(after, expected)
    moved = {name for name in before if not np.allclose(expected[name], before[name], atol=1e-4)}
    everyone = {f"{layer}.basis" for layer in hand.SIZES}
    assert everyone <= moved, "the derivation itself must move every basis"
    untouched = {f"@{hand.CLIENTS[c][0]}" for c in set("AB") - set(clients)}
    assert not any(name.endswith(tuple(untouched)) for name in moved if untouched)


@pytest.mark.parametrize("tier", ["1", "0.5"])
def test_a_deployed_tier_is_the_composed_plain_network(tier):
    before = hand.start()
    network = METHOD.deploy(state_of(METHOD, TIERS, before), Tier(float(tier)))
    plain = hand.plain(hand.download(before, tier))
    assert {n: tuple(t.shape) for n, t in network.state_dict().items()} == {n: w.shape for n, w in plain.items()}
    assert_tensors(network.state_dict(), plain)
    x, _ = data(4, 1.0)
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x).float()).numpy(), logits(plain, x), rtol=1e-4, atol=1e-5)
