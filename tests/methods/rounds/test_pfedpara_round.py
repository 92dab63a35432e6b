"""Two rounds of pFedPara against pfedpara_by_hand."""

import fedpara_by_hand
import numpy as np
import pfedpara_by_hand as hand
from rounds_of import ARCHITECTURE, assert_same, first_state, play, tensors

from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.records import Tier

TIER = Tier(fedpara_by_hand.GAMMA)


def test_first_factors_are_averaged_and_second_ones_stay():
    method = create("pfedpara")
    first = fedpara_by_hand.start()
    state = first_state(method, TIER, first)
    personal = {name: value for name, value in tensors(first).items() if name.endswith("2")}
    _, after, kept = play(method, state, TIER, {0: personal, 1: personal}, rounds=2)
    shared, own = hand.after(rounds=2)
    assert_same({name: after.tensors[name] for name in shared}, shared)
    for client in own:
        assert_same(kept[client], own[client])
    # What nobody in particular has is what all began with.
    assert_same({name: after.tensors[name] for name in personal}, personal)


def test_each_client_deploys_its_own_weights():
    method = create("pfedpara")
    state = first_state(method, TIER, fedpara_by_hand.start())
    shared, own = hand.after(rounds=1)
    after = state.replace({**state.tensors, **tensors(shared)})
    networks = [method.deploy(after, TIER, tensors(own[client]), client).state_dict() for client in (0, 1)]
    for client, network in enumerate(networks):
        assert_same(network, fedpara_by_hand.compose({**shared, **own[client]}, one=1.0))
    assert not np.allclose(networks[0]["conv2.weight"], networks[1]["conv2.weight"], atol=1e-4)
    assert download_shapes(method, ARCHITECTURE, TIER).keys() == shared.keys()
