"""A round of last blocks against the derivation in last_blocks_by_hand.py."""

import last_blocks_by_hand as hand
import pytest
from small_conv import ARCHITECTURE, assert_tensors, state_of, trained

from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.records import Tier

TIERS = (Tier(1.0), Tier(0.5))
STEPS = (None, None)
LAST = {"conv2.weight", "conv2.bias", "fc.weight", "fc.bias"}


def test_a_round_averages_each_tensor_over_the_clients_that_train_it():
    method = create("last-blocks", tiers=(1.0, 0.5))
    before = hand.start()
    state = state_of(method, TIERS, before)
    updates = [
        trained(method, state, 0, Tier(1.0), 0.4, 3, hand.LR, STEPS),
        trained(method, state, 1, Tier(0.5), 2.0, 5, hand.LR, STEPS),
    ]
    assert set(updates[1].tensors) == LAST
    expected = hand.average(before, {client: hand.local(before, client) for client in "AB"})
    assert_tensors(method.aggregate(state, updates).tensors, expected)


@pytest.mark.parametrize("tiers", [(1.0, 0.5), (0.5,)])
def test_the_frozen_block_travels_down_only_if_another_tier_trains_it(tiers):
    method = create("last-blocks", tiers=tiers)
    before = hand.start()
    state = state_of(method, tuple(map(Tier, tiers)), before)
    submodel = method.submodel(state, Tier(0.5), None, 1)
    assert set(submodel.tensors) == LAST | ({"conv1.weight"} if 1.0 in tiers else set())
    assert set(upload_shapes(method, ARCHITECTURE, Tier(0.5))) == LAST
    module = submodel.build()
    assert set(method.personal(module)) == {"conv1.weight"} - submodel.tensors.keys()
    assert [name for name, p in module.named_parameters() if not p.requires_grad] == ["conv1.weight"]
