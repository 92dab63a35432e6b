"""PriSM draws kernels as often as its paper says, and refuses counts that cannot be drawn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prism_networks import weights

from edgefl.errors import ConfigError
from edgefl.factor.kernels import KernelLayer, draw, effective_rank, importance, kept_kernels
from edgefl.methods.create import create
from edgefl.records import Tier


def inclusion(p, count):
    """Chances that each item is among ``count`` drawn one after the other: the sum over all ordered draws that have it."""
    chances = np.zeros(len(p))

    def follow(taken, chance):
        if len(taken) == count:
            chances[list(taken)] += chance
            return
        left = 1 - sum(p[i] for i in taken)
        for i in set(range(len(p))) - set(taken):
            follow((*taken, i), chance * p[i] / left)

    follow((), 1.0)
    return chances


@pytest.mark.parametrize(("sampling", "kappa"), [("power", 2.5), ("power", 4.0), ("softmax", 0.0), ("uniform", 0.0)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_kernels_are_drawn_as_often_as_equation_2_says(sampling, kappa, count):
    sigma = np.array([2.0, 1.5, 1.0, 0.7, 0.3])
    weight = {"power": sigma**kappa, "softmax": np.exp(sigma), "uniform": np.ones(5)}[sampling]
    expected = inclusion(weight / weight.sum(), count)
    p = importance(torch.from_numpy(sigma), sampling, kappa)
    np.testing.assert_allclose(p.numpy(), weight / weight.sum(), rtol=1e-12)
    rng, draws = np.random.default_rng(5), 20000
    counts = np.zeros(5)
    for _ in range(draws):
        counts[draw("conv", p, count, rng).numpy()] += 1
    np.testing.assert_allclose(counts / draws, expected, atol=4 * np.sqrt(0.25 / draws))


def test_the_mean_of_all_submodels_weighs_each_kernel_by_its_chance():
    """A sub-model is no unbiased estimate of W: a kernel counts as often as it is drawn, the larger ones nearly always."""
    weight = weights(4, 3, 2, 2)
    layer = KernelLayer("w", "w", (4, 3, 2, 2), 0, "u", "v", torch.arange(4), torch.arange(3), 2)
    factors = layer.decompose(weight)
    p = importance(factors.values, "power", 2.5)
    chances = inclusion(p.numpy(), 2)
    rng, draws = np.random.default_rng(0), 4000
    mean = sum(layer.composed(factors, draw("w", p, 2, rng)) for _ in range(draws)) / draws
    expected = sum(float(chances[i]) * layer.composed(factors, torch.tensor([i])) for i in range(4))
    torch.testing.assert_close(mean, expected, atol=0.05, rtol=0)
    torch.testing.assert_close(layer.composed(factors, torch.arange(4)), weight, atol=1e-6, rtol=1e-6)
    assert chances[0] > chances[-1]
    assert chances.sum() == pytest.approx(2)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_a_draw_has_the_asked_number_of_different_kernels(total, data):
    values = torch.tensor(data.draw(st.lists(st.floats(0, 1e6, width=32), min_size=total, max_size=total)))
    count = data.draw(st.integers(1, total))
    p = importance(values, data.draw(st.sampled_from(["power", "uniform"])), 2.5)
    assert float(p.sum()) == pytest.approx(1)
    drawn = draw("conv", p, count, np.random.default_rng(0))
    assert drawn.dtype == torch.int64
    assert len(set(drawn.tolist())) == len(drawn) == count
    assert drawn.tolist() == sorted(drawn.tolist())
    assert int(drawn.min()) >= 0
    assert int(drawn.max()) < total
    certain = int((p > 0).sum())
    assert sum(float(p[i]) > 0 for i in drawn.tolist()) == min(count, certain), "kernels without a chance come last"


def test_the_smooth_factor_is_the_papers_unless_one_is_given():
    """Table 10: 4 for the 0.2 sub-model, 2.5 above."""
    layer = KernelLayer("w", "w", (3, 3), 0, "u", "v", torch.arange(3), torch.arange(3), 1)
    values, draws = torch.tensor([1.0, 0.8, 0.5], dtype=torch.float64), 5000
    for method, keep, kappa in (
        (create("prism"), 0.2, 4.0),
        (create("prism"), 0.1, 4.0),
        (create("prism"), 0.3, 2.5),
        (create("prism", {"kappa": 1.0}), 0.2, 1.0),
        (create("prism", {"sampling": "uniform"}), 0.2, 0.0),
    ):
        rng = np.random.default_rng(1)
        found = np.bincount([int(method.chosen(layer, values, Tier(keep), rng)[0]) for _ in range(draws)], minlength=3) / draws
        expected = values.numpy() ** kappa / (values.numpy() ** kappa).sum()
        np.testing.assert_allclose(found, expected, atol=0.02)


def test_effective_rank_is_two_to_the_entropy():
    sigma = torch.tensor([4.0, 2.0, 1.0, 1.0])
    assert effective_rank(sigma) == pytest.approx(2**1.75)  # shares 1/2, 1/4, 1/8, 1/8
    assert effective_rank(torch.zeros(3)) == 0


def test_more_kernels_than_there_are_or_none_are_refused_with_layer_and_numbers():
    p = importance(torch.ones(4), "uniform", 1.0)
    for count in (0, 5, -1):
        with pytest.raises(ConfigError, match=rf"layer conv2: {count} kernels were to be drawn of 4; expected 1 to 4"):
            draw("conv2", p, count, np.random.default_rng(0))
    for keep, count in ((1.5, 6), (0.0, 0), (-0.5, -2), (float("nan"), -1)):
        with pytest.raises(ConfigError, match=rf"layer conv2: keep ratio {keep:g} of 4 principal kernels is {count} of them"):
            kept_kernels("conv2", keep, 4)
