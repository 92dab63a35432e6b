"""Two rounds of stand-alone training against dense_by_hand, where everything is personal."""

import dense_by_hand as hand
import numpy as np
import torch
from rounds_of import ARCHITECTURE, assert_same, play, tensors

from edgefl.methods.create import create
from edgefl.records import Tier


def test_clients_train_alone_and_the_server_learns_nothing():
    method, tier = create("standalone"), Tier(1.0)
    state = method.init(ARCHITECTURE, (tier, Tier(0.5)), np.random.default_rng(0))
    first = tensors(hand.start())
    _, after, kept = play(method, state, tier, {0: first, 1: first}, rounds=2)
    assert all(torch.equal(after.tensors[name], state.tensors[name]) for name in state.tensors)
    shared, own = hand.partly_personal("", rounds=2)
    assert not shared
    for client in own:
        assert_same(kept[client], own[client])
        assert_same(method.deploy(after, tier, kept[client], client).state_dict(), own[client])
