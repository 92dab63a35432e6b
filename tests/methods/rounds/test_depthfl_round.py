"""A round of DepthFL against the derivation in depthfl_by_hand.py."""

import depthfl_by_hand as hand
import numpy as np
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors, state_of, trained
from small_conv_by_hand import data

from edgefl.methods.create import create
from edgefl.methods.depthfl import DepthFL
from edgefl.records import Tier

RNG = np.random.default_rng(0)
TIERS = (Tier(1.0), Tier(0.5))


@pytest.mark.parametrize("distill", [1.0, 0.0, 0.4])
def test_a_round_trains_all_exits_and_averages_over_the_holders(distill):
    method = create("depthfl", {"distill": distill, "ramp_rounds": 0}, tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    steps = (None, None)
    updates = [
        trained(method, state, 0, Tier(1.0), 0.4, 3, hand.LR, steps),
        trained(method, state, 1, Tier(0.5), 2.0, 5, hand.LR, steps),
    ]
    expected = hand.average(before, {client: hand.local(before, client, distill) for client in "AB"})
    assert_tensors(method.aggregate(state, updates).tensors, expected)
    assert all(np.abs(expected[name] - tensor).max() > 1e-3 for name, tensor in before.items())


def test_layers_that_only_the_absent_deep_client_has_keep_their_value():
    method = create("depthfl", tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    update = trained(method, state, 1, Tier(0.5), 2.0, 5, hand.LR, (None, None))
    assert set(update.tensors) == {"body.conv1.weight", "exits.1.weight", "exits.1.bias"}
    expected = hand.average(before, {"B": hand.local(before, "B", 1.0)})
    assert_tensors(method.aggregate(state, [update]).tensors, expected)


@pytest.mark.parametrize("ensemble", [False, True])
def test_a_device_runs_the_deepest_exit_of_its_tier_or_the_mean_of_all(ensemble):
    method = create("depthfl", {"ensemble": ensemble}, tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    x, _ = data(6, 1.3)
    first, last = hand.first_exit(before, x), hand.last_exit(before, x)
    for tier, expected in zip(TIERS, ((first + last) / 2 if ensemble else last, first), strict=True):
        network = method.deploy(state, tier)
        with torch.no_grad():
            found = network(torch.from_numpy(x).float()).numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
        assert sum(p.numel() for p in network.parameters()) == sum(
            p.numel() for p in method.device_network(ARCHITECTURE, tier).parameters()
        )
    assert len(list(method.deploy(state, TIERS[1]).parameters())) == 3


def test_distillation_rises_in_ten_steps():
    method = create("depthfl", {"distill": 0.5, "ramp_rounds": 20}, tiers=(1.0, 0.5))
    state = state_of(method, TIERS, hand.start())
    weights = {}
    for round_ in (1, 2, 3, 11, 20, 21, 500):
        method, state = method.advance(state, round_, RNG)
        weights[round_] = method.weight
    after = {1: 0, 2: 0, 3: 0.1, 11: 0.5, 20: 0.9, 21: 1, 500: 1}
    assert weights == pytest.approx({round_: 0.5 * np.exp(-5 * (1 - share) ** 2) for round_, share in after.items()})
    before = hand.start()
    first = create("depthfl", {"ramp_rounds": 20}, tiers=(1.0, 0.5))
    update = trained(first, state_of(first, TIERS, before), 0, Tier(1.0), 0.4, 3, hand.LR)
    assert_tensors(update.tensors, hand.local(before, "A", float(np.exp(-5)), steps=1))


def test_a_subclass_keeps_its_class_while_the_ramp_rises():
    class Own(DepthFL):
        pass

    method = Own(create("depthfl", {"ramp_rounds": 10}).config)
    state = method.init(ARCHITECTURE, TIERS, np.random.default_rng(0))
    later, same = method.advance(state, 2, RNG)
    assert (type(later), later.config.ramp_step, same is state) == (Own, 1, True)
