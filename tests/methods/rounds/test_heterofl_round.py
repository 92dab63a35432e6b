"""A round of HeteroFL with its default clipping against the derivation in heterofl_by_hand.py."""

import heterofl_by_hand as hand
import numpy as np
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors, state_of

from edgefl.client.loop import LocalTraining, optimizer_of, train
from edgefl.client.loss import loss_of
from edgefl.client.objectives import PLAIN
from edgefl.client.training import Training
from edgefl.methods.create import create
from edgefl.methods.personal import received
from edgefl.records import Tier, Update

TIERS = (Tier(1.0), Tier(0.25))
METHOD = create("heterofl")


def trained(state, number, name, clip):
    width, y, *_ = hand.CLIENTS[name]
    x, labels = (torch.from_numpy(part) for part in hand.data(name))
    submodel = METHOD.submodel(state, Tier(width), np.random.default_rng(0))
    module = METHOD.network(ARCHITECTURE, Tier(width))
    received(METHOD, module, submodel.tensors, {}, (x.float(), labels))
    training = Training(hand.STEPS, len(y), hand.LR, hand.MOMENTUM, hand.DECAY, clip_gradient=clip)
    present = torch.from_numpy(np.isin(np.arange(3), y))
    local = LocalTraining(module, loss_of(METHOD, PLAIN), x.float(), labels, present, training, np.random.default_rng(0))
    train(local, optimizer_of(METHOD, module, training))
    return Update(number, Tier(width), METHOD.upload(module), submodel.places, len(y), labels=tuple(sorted({*y.tolist()})))


@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_clips_scales_masks_and_averages(clients):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    updates = [trained(state, number, name, METHOD.clip_gradient) for number, name in enumerate(clients)]
    expected = hand.round_of(before, clients)
    assert_tensors(METHOD.aggregate(state, updates).tensors, expected)
    if clients == "A":
        assert (expected["fc.weight"][1] == before["fc.weight"][1]).all(), "nobody has samples of label 1"


def test_one_client_is_clipped_and_the_other_is_not():
    norms = {name: hand.local(hand.start(), name)[1] for name in hand.CLIENTS}
    assert max(norms["A"]) < hand.BOUND < min(norms["B"])
    state = state_of(METHOD, TIERS, hand.start())
    free, bounded = (trained(state, 0, "B", clip).tensors for clip in (None, 1.0))
    assert not torch.allclose(free["conv2.weight"], bounded["conv2.weight"], atol=0.01)
