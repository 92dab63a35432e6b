"""A round of PriSM against the derivation in prism_by_hand.py."""

import numpy as np
import prism_by_hand as hand
import pytest
import torch
from small_conv import assert_tensors, state_of, trained

from edgefl.methods.base import create
from edgefl.records import Tier

TIERS = (Tier(0.5), Tier(0.25))
METHOD = create("prism", {"frobenius_decay": hand.DECAY})


class Scripted:
    """Waits that make the named kernels come first."""

    def __init__(self, kernels):
        self.kernels = kernels

    def exponential(self, size):
        waits = np.full(size, 1e9)
        waits[list(self.kernels)] = 1e-9
        return waits


def updates_of(state, clients):
    updates = []
    for number, name in enumerate(clients):
        keep, samples, begin = hand.CLIENTS[name]
        draw = Scripted(hand.DRAWS[name])
        updates.append(trained(METHOD, state, number, Tier(keep), begin, samples, hand.LR, rng=draw))
    return updates


@pytest.mark.parametrize("clients", ["AB", "BA", "A", "B"])
def test_a_round_is_that_of_equation_5(clients):
    before = hand.start()
    state = state_of(METHOD, TIERS, before)
    expected = hand.round_of(before, clients)
    assert_tensors(METHOD.aggregate(state, updates_of(state, clients)).tensors, expected)
    assert all(not np.allclose(expected[name], before[name], atol=1e-3) for name in before), "the derivation must move everything"


def test_a_client_receives_its_kernels_at_the_first_channels():
    state = state_of(METHOD, TIERS, hand.start())
    for name, (keep, _, _) in hand.CLIENTS.items():
        sent = METHOD.submodel(state, Tier(keep), Scripted(hand.DRAWS[name]), 0)
        expected = hand.download(hand.start(), name)
        composed = torch.tensordot(sent.tensors["conv2.u.weight"].flatten(1), sent.tensors["conv2.v.weight"], 1)
        np.testing.assert_allclose(composed.numpy(), hand.product(expected), rtol=1e-5, atol=1e-6)
        for tensor in ("conv1.weight", "fc.weight", "fc.bias"):
            np.testing.assert_allclose(sent.tensors[tensor].numpy(), expected[tensor], rtol=1e-6)
        np.testing.assert_allclose(sent.tensors["conv2.u.bias"].numpy(), expected["conv2.bias"], rtol=1e-6)
        assert sent.places["conv2.u.weight"].index[0].flatten().tolist() == list(hand.DRAWS[name])


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_a_deployed_tier_is_the_plain_network_of_the_first_kernels(keep):
    network = METHOD.deploy(state_of(METHOD, TIERS, hand.start()), Tier(keep))
    assert_tensors(network.state_dict(), hand.deployed(hand.start(), keep))


def test_the_next_round_draws_from_a_new_decomposition():
    state = state_of(METHOD, TIERS, hand.start())
    after = METHOD.aggregate(state, updates_of(state, "AB"))
    sigma = np.linalg.svd(hand.round_of(hand.start(), "AB")["conv2.weight"].reshape(4, 16), compute_uv=False)
    sent = METHOD.submodel(after, Tier(0.5), Scripted((1, 3)), 0)
    norms = sent.tensors["conv2.v.weight"].flatten(1)
    assert (norms.norm(dim=1) ** 2 < torch.tensor([sigma[1], sigma[3]]) * (1 + 1e-5)).all()
    whole = METHOD.submodel(after, Tier(1.0), Scripted(()), 0).tensors["conv2.v.weight"].flatten(1)
    np.testing.assert_allclose((whole.norm(dim=1) ** 2).numpy(), sigma, rtol=1e-4)
    np.testing.assert_allclose((whole @ whole.T).numpy(), np.diag(sigma), atol=1e-5)
