"""A round of Split-Mix against the derivation in splitmix_by_hand.py."""

import numpy as np
import pytest
import splitmix_by_hand as hand
import torch
from small_conv import assert_tensors, state_of, trained
from small_conv_by_hand import data

from edgefl.methods.create import create
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
METHOD = create("splitmix", {}, tiers=(1.0, 0.5))
# NumPy's generators of these seeds first draw base 1 and base 0 of two.
STARTS = {int(np.random.default_rng(seed).integers(2)): seed for seed in range(10)}


@pytest.mark.parametrize("start_of_a", [0, 1])
@pytest.mark.parametrize("base_of_b", [0, 1])
@pytest.mark.parametrize("clients", ["AB", "BA", "B"])
def test_each_base_is_averaged_over_its_trainers(clients, start_of_a, base_of_b):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    parts = {"A": (Tier(1.0), start_of_a), "B": (Tier(0.5), base_of_b)}
    updates = []
    for number, name in enumerate(clients):
        (tier, first), (samples, begin) = parts[name], hand.CLIENTS[name]
        rng = np.random.default_rng(STARTS[first])
        update = trained(METHOD, state, number, tier, begin, samples, hand.LR, rng=rng)
        assert update.places["base0.fc.bias"].target == f"base{0 if name == 'A' else first}.fc.bias"
        updates.append(update)
    trains = {"A": (0, 1), "B": (base_of_b,)}
    expected = hand.round_of(before, {name: trains[name] for name in clients})
    after = METHOD.aggregate(state, updates).tensors
    assert_tensors(after, expected)
    if clients == "B":
        kept = [name for name in before if name.startswith(f"base{1 - base_of_b}.")]
        assert kept
        assert all(torch.equal(after[name], state.tensors[name]) for name in kept)


@pytest.mark.parametrize(("tier", "count"), [(1.0, 2), (0.5, 1)])
def test_a_deployed_tier_is_the_mean_of_the_first_bases(tier, count):
    before = hand.start()
    network = METHOD.deploy(state_of(METHOD, TIERS, before), Tier(tier))
    x, _ = data(4, 1.0)
    with torch.no_grad():
        found = network(torch.from_numpy(x).float()).numpy()
    np.testing.assert_allclose(found, hand.ensemble(before, count, x), rtol=1e-4, atol=1e-5)
