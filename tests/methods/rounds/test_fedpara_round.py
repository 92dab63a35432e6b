"""A round of FedPara against fedpara_by_hand."""

import fedpara_by_hand as hand
import numpy as np
import torch
from conv_net_by_hand import CLIENTS, samples, slopes
from rounds_of import ARCHITECTURE, assert_same, first_state, play

from edgefl.methods.create import create
from edgefl.records import Batch, Tier

TIER = Tier(hand.GAMMA)


def test_factors_after_one_step_are_averaged_by_samples():
    method = create("fedpara")
    state = first_state(method, TIER, hand.start())
    _, after, _ = play(method, state, TIER)
    assert_same(after.tensors, hand.after())
    moved = [float((after.tensors[n] - state.tensors[n]).abs().max()) for n in state.tensors]
    assert min(moved) > 1e-6  # every tensor was trained


def test_the_deployed_network_has_the_composed_weights():
    method = create("fedpara")
    state = first_state(method, TIER, hand.start())
    dense = method.deploy(state, TIER)
    assert_same(dense.state_dict(), hand.compose(hand.start()))
    assert type(dense) is type(ARCHITECTURE.build())


def test_the_jacobian_correction_is_the_distance_of_the_two_steps():
    """Eq. 7 to 9, with a step of each factor written out: W′ − (W − ηJ_W)."""
    rate, strength = 0.3, 4.0
    w = hand.start()
    x, y = samples(*CLIENTS[1])
    by_dense = slopes(hand.compose(w), x, y)
    d = hand.factor_slopes(w, by_dense)
    moved = hand.compose({name: w[name] - rate * d[name] for name in w})
    gaps = [np.linalg.norm(moved[n] - hand.compose(w)[n] + rate * by_dense[n]) for n in hand.LAYERS]
    losses = []
    for options in ({}, {"jacobian": strength, "jacobian_step": rate}):
        method = create("fedpara", options)
        state = first_state(method, TIER, w)
        module = method.network(ARCHITECTURE, TIER)
        module.load_state_dict(state.tensors)
        batch = Batch(torch.from_numpy(x).float(), torch.from_numpy(y))
        losses.append(method.local_loss(module, batch).item())
    np.testing.assert_allclose(losses[1] - losses[0], strength / 2 * sum(gaps), rtol=1e-4)


def test_the_first_factors_of_the_authors_are_those_of_their_notebook():
    """Kaiming's rule on T (R, R, k, k), O (R, n) and I (R, m), each with its own fan-in; the composed weight is that much smaller."""
    method = create("fedpara", {"init": "authors"})
    state = method.init(ARCHITECTURE, (TIER,), np.random.default_rng(0))
    for name, (n, m, r) in hand.LAYERS.items():
        expected = {"x": np.sqrt(2 / n), "y": np.sqrt(2 / m), "t": np.sqrt(2 / (9 * r))}
        for factor, size in expected.items():
            for i in "12":
                found = state.tensors[f"{name}.{factor}{i}"].double().square().mean().sqrt()
                np.testing.assert_allclose(found, size, rtol=1e-5)
    # A round from there is the same round: only the first weights differ.
    _, after, _ = play(method, first_state(method, TIER, hand.start()), TIER)
    assert_same(after.tensors, hand.after())
