"""A round of FLANC against the derivation in flanc_by_hand.py."""

import flanc_by_hand as hand
import numpy as np
import pytest
import torch
from small_conv import assert_tensors, state_of, trained
from small_conv_by_hand import data, logits

from edgefl.methods.create import create
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
PENALTY = {"all": "sum", "hidden": "mean"}


def method_of(composed):
    sizes = {layer: hand.SIZES[composed][layer] for layer in ("conv2", "fc") if layer in hand.SIZES[composed]}
    options = {
        "orthogonality": hand.LAMBDA[composed],
        "basis_channels": {layer: r1 for layer, (r1, _) in sizes.items()},
        "basis_count": {layer: r2 for layer, (_, r2) in sizes.items()},
    }
    if composed != "hidden":  # the default, with its penalty
        options |= {"composed": composed, "penalty": PENALTY[composed]}
    return create("flanc", options, tiers=(1.0, 0.5))


@pytest.mark.parametrize("composed", ["all", "hidden"])
@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_is_that_of_equations_3_and_4(clients, composed):
    method, before = method_of(composed), hand.start(composed)
    state = state_of(method, TIERS, before)
    updates = []
    for number, name in enumerate(clients):
        tier, samples, begin = hand.CLIENTS[name]
        updates.append(trained(method, state, number, Tier(float(tier)), begin, samples, hand.LR))
    after = method.aggregate(state, updates).tensors
    expected = hand.round_of(before, clients, composed)
    assert_tensors(after, expected)
    moved = {name for name in before if not np.allclose(expected[name], before[name], atol=1e-4)}
    everyone = {f"{layer}.basis" for layer in hand.SIZES[composed]}
    assert everyone <= moved, "the derivation itself must move every basis"
    untouched = {f"@{hand.CLIENTS[c][0]}" for c in set("AB") - set(clients)}
    assert not any(name.endswith(tuple(untouched)) for name in moved if untouched)


@pytest.mark.parametrize("composed", ["all", "hidden"])
@pytest.mark.parametrize("tier", ["1", "0.5"])
def test_a_deployed_tier_is_the_composed_plain_network(tier, composed):
    before = hand.start(composed)
    network = method_of(composed).deploy(state_of(method_of(composed), TIERS, before), Tier(float(tier)))
    plain = hand.plain(hand.download(before, tier))
    assert {n: tuple(t.shape) for n, t in network.state_dict().items()} == {n: w.shape for n, w in plain.items()}
    assert_tensors(network.state_dict(), plain)
    x, _ = data(4, 1.0)
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x).float()).numpy(), logits(plain, x), rtol=1e-4, atol=1e-5)
