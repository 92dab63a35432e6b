"""A round of PriSM against the derivation in prism_by_hand.py."""

import numpy as np
import prism_by_hand as hand
import pytest
import torch
from small_conv import assert_tensors, state_of, trained
from small_conv_by_hand import logits

from edgefl.factor.compose import composed_network
from edgefl.methods.create import create
from edgefl.records import Tier

TIERS = (Tier(0.5), Tier(0.25))
METHOD = create("prism", {"frobenius_decay": hand.DECAY})
WIDE = create("prism", {"frobenius_decay": hand.DECAY, "outputs": 0.5})


class Scripted:
    """Waits that make the named kernels come first."""

    def __init__(self, kernels):
        self.kernels = kernels

    def exponential(self, size):
        waits = np.full(size, 1e9)
        waits[list(self.kernels)] = 1e-9
        return waits


def updates_of(state, clients, method=METHOD):
    updates = []
    for number, name in enumerate(clients):
        keep, samples, begin = hand.CLIENTS[name]
        draw = Scripted(hand.DRAWS[name])
        updates.append(trained(method, state, number, Tier(keep), begin, samples, hand.LR, rng=draw))
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


# The option ``outputs``: two of the four outputs of conv2, at full width.


@pytest.mark.parametrize("clients", ["AB", "A", "B"])
def test_a_round_with_half_of_the_outputs_at_full_width(clients):
    before = hand.start()
    expected = hand.round_of(before, clients, outputs=2)
    found = WIDE.aggregate(state_of(WIDE, TIERS, before), updates_of(state_of(WIDE, TIERS, before), clients, WIDE))
    assert_tensors(found.tensors, expected)
    assert all(not np.allclose(expected[name], before[name], atol=1e-3) for name in before), "the derivation must move everything"
    narrow = hand.round_of(before, clients)
    assert all(not np.allclose(expected[name], narrow[name], atol=1e-3) for name in before)


def test_outputs_without_kernels_contain_the_bias():
    state = state_of(WIDE, TIERS, hand.start())
    x, _ = hand.data(3, 0.4)
    for name, (keep, _, _) in hand.CLIENTS.items():
        sent = WIDE.submodel(state, Tier(keep), Scripted(hand.DRAWS[name]), 0)
        network = sent.build()
        network.load_state_dict(sent.tensors)
        expected = hand.download(hand.start(), name, outputs=2)
        assert sent.tensors["conv2.first.u.weight"].shape == (2, len(hand.DRAWS[name]), 1, 1)
        plain = {n: t for n, t in expected.items() if n[0] not in "uv"} | {"conv2.weight": hand.product(expected)}
        with torch.no_grad():
            np.testing.assert_allclose(network(torch.from_numpy(x).float()).numpy(), logits(plain, x), atol=1e-5)
            maps = network.conv2(torch.randn(2, 4, 3, 3))
        for channel in (2, 3):
            assert torch.equal(maps[:, channel], state.tensors["conv2.bias"][channel].expand(2, 2, 2))


@pytest.mark.parametrize("keep", [0.5, 0.25])
def test_a_deployed_tier_with_half_of_the_outputs_computes_its_first_kernels(keep):
    network = WIDE.deploy(state_of(WIDE, TIERS, hand.start()), Tier(keep))
    x, _ = hand.data(3, 0.4)
    plain = composed_network(network)
    assert plain.conv2.first.weight.shape == (2, 4, 2, 2)
    for form in (network, plain):
        with torch.no_grad():
            found = form(torch.from_numpy(x).float()).numpy()
        np.testing.assert_allclose(found, logits(hand.deployed(hand.start(), keep, outputs=2), x), atol=1e-5)
