"""Pufferfish around its switch, against dense_by_hand."""

import dense_by_hand as hand
from rounds_of import assert_same, first_state, play

from edgefl.methods.create import create
from edgefl.records import Tier


def test_a_dense_round_the_decomposition_and_a_round_of_factors():
    method, tier = create("pufferfish", {"warmup_rounds": 1}), Tier(0.5)
    state = first_state(method, tier, hand.start())
    dense, after_warmup, _ = play(method, state, tier)
    assert dense.config.phase == "dense"
    assert_same(after_warmup.tensors, hand.mean([hand.step(hand.start(), *client) for client in hand.CLIENTS], hand.SHAPES))
    switched, after, _ = play(method, state, tier, rounds=2)
    assert switched.config.phase == "lowrank"
    assert_same(after.tensors, hand.pufferfish(), atol=1e-5)
