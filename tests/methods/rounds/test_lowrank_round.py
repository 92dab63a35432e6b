"""A round of plain low-rank training against lowrank_by_hand."""

import lowrank_by_hand as hand
from rounds_of import assert_same, first_state, play

from edgefl.methods.create import create
from edgefl.records import Tier


def test_small_layers_learn_what_the_factors_of_the_composed_weight_learn():
    method, tier = create("lowrank"), Tier(hand.SHARE)
    state = first_state(method, tier, hand.start())
    _, after, _ = play(method, state, tier)
    assert_same(after.tensors, hand.after())
