"""Two rounds of FedPer against dense_by_hand."""

import dense_by_hand as hand
import pytest
from rounds_of import assert_same, first_state, play, tensors

from edgefl.methods.create import create
from edgefl.records import Tier


@pytest.mark.parametrize(("layers", "personal"), [(1, ("fc",)), (2, ("fc", "conv2"))])
def test_the_last_layers_stay_and_the_others_are_averaged(layers, personal):
    method, tier = create("fedper", {"layers": layers}), Tier(1.0)
    state = first_state(method, tier, hand.start())
    first = {name: value for name, value in tensors(hand.start()).items() if name.startswith(personal)}
    _, after, kept = play(method, state, tier, {0: first, 1: first}, rounds=2)
    shared, own = hand.partly_personal(personal, rounds=2)
    assert_same({name: after.tensors[name] for name in shared}, shared)
    for client in own:
        assert_same(kept[client], own[client])
    assert_same({name: after.tensors[name] for name in first}, first)
    assert_same(method.deploy(after, tier, kept[1], 1).state_dict(), {**shared, **own[1]})
