"""Plain low rank and Pufferfish: ranks within a budget, small layers, and the switch after the warm-up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from edgefl.errors import ConfigError
from edgefl.factor import hadamard, tucker
from edgefl.factor.layers import SquaredNorm
from edgefl.factor.tucker import small_layers
from edgefl.methods.axes import refused
from edgefl.methods.capabilities import misfit
from edgefl.methods.create import create
from edgefl.methods.factored_weights import candidates
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator, torch_seeded

RNG = np.random.default_rng(0)
DIGITS = Architecture("cnn-digits", (1, 8, 8), 4)
SHAPES = st.tuples(st.integers(1, 64), st.integers(1, 64), st.sampled_from([(), (1, 1), (3, 3), (1, 5)])).map(
    lambda s: (s[0], s[1], *s[2])
)


def product_of(layers, shape):
    """Return the dense weight of small layers."""
    weights = [p.detach() for n, p in layers.named_parameters() if n.endswith("weight")]
    if len(weights) == 3:
        return tucker.composed_weight(*weights)
    return (weights[1].flatten(1) @ weights[0].flatten(1)).view(shape)


@given(SHAPES, st.integers(0, 200_000))
def test_the_rank_within_a_budget_is_the_last_that_fits(shape, budget):
    rank = tucker.rank_within(shape, budget)
    assert rank == 0 or tucker.parameters_of_rank(shape, rank) <= budget
    assert rank == max(shape[:2]) or tucker.parameters_of_rank(shape, rank + 1) > budget


@pytest.mark.parametrize(
    "dense",
    [
        nn.Conv2d(6, 10, 3, padding=1),
        nn.Conv2d(6, 10, (3, 5), stride=(2, 1), padding=(1, 2), bias=False),
        nn.Conv2d(6, 10, 3, dilation=2, padding="same"),
        nn.Conv2d(6, 10, 3, padding=(2, 1), padding_mode="circular"),
        nn.Conv2d(2, 10, 3),
        nn.Conv2d(6, 10, 1, stride=2),
        nn.Linear(6, 10),
        nn.Linear(6, 10, bias=False),
    ],
    ids=str,
)
def test_small_layers_compute_what_their_product_does(dense):
    layers = small_layers(dense, 4)
    shape = tuple(dense.weight.shape)
    biases = 0 if dense.bias is None else 10
    assert sum(p.numel() for p in layers.parameters()) == tucker.parameters_of_rank(shape, 4) + biases
    dense.weight.data = product_of(layers, shape)
    x = torch.randn(3, shape[1]) if dense.weight.dim() == 2 else torch.randn(3, shape[1], 9, 9)
    torch.testing.assert_close(layers(x), dense(x))


@pytest.mark.parametrize("dense", [nn.Conv2d(48, 64, 3), nn.Conv2d(2, 64, 3), nn.Conv2d(64, 32, 1), nn.Linear(512, 20)], ids=str)
def test_products_start_with_the_variance_of_he(dense):
    shape = tuple(dense.weight.shape)
    with torch_seeded(np.random.default_rng(0)):
        squares = [float(product_of(small_layers(dense, 8), shape).square().mean()) for _ in range(60)]
    assert np.mean(squares) == pytest.approx(2 / (max(shape[:2]) * math.prod(shape[2:])), rel=0.25)


@pytest.mark.parametrize("gamma", [0.1, 0.4, 0.9])
def test_matched_layers_hold_at_most_what_fedpara_holds_and_the_next_rank_would_not(gamma):
    low, para = create("lowrank", {"match": "fedpara"}), create("fedpara")
    shapes, theirs = download_shapes(low, DIGITS, Tier(gamma)), download_shapes(para, DIGITS, Tier(gamma))

    def held(of, layer):
        return sum(math.prod(s) for n, s in of.items() if n.startswith(f"{layer}.") and not n.endswith("bias"))

    for name, shape in candidates(DIGITS.skeleton(), None).items():
        layer = name.removesuffix(".weight")
        budget = hadamard.parameters_of_rank(shape, hadamard.rank_of(shape, gamma))
        assert held(theirs, layer) == budget
        assert held(shapes, layer) <= budget < tucker.parameters_of_rank(shape, tucker.rank_within(shape, budget) + 1)


def test_a_share_bounds_every_layer_and_one_is_dense():
    dense = download_shapes(create("fedavg"), DIGITS, Tier(1.0))
    assert download_shapes(create("lowrank"), DIGITS, Tier(1.0)) == dense
    shapes = download_shapes(create("lowrank"), DIGITS, Tier(0.25))
    for layer in ("conv2", "conv3"):
        held = sum(math.prod(s) for n, s in shapes.items() if n.startswith(f"{layer}."))
        whole = math.prod(dense[f"{layer}.weight"])
        assert 0.2 * whole < held <= 0.25 * whole
    assert shapes["fc.weight"] == dense["fc.weight"]


def test_recurrent_weights_are_products_and_deployed_composed():
    architecture, method, tier = Architecture("lstm-shakespeare", (80,), 80), create("lowrank"), Tier(0.2)
    state = method.init(architecture, (tier,), generator(0, "init"))
    network = method.network(architecture, tier)
    network.load_state_dict(state.tensors)
    deployed = method.deploy(state, tier)
    assert type(deployed.rnn) is nn.LSTM
    x = torch.randint(80, (2, 80))
    with torch.no_grad():
        torch.testing.assert_close(deployed(x), network(x))


@dataclass(frozen=True)
class Grouped(Architecture):
    """Two convolutions, one of them in groups."""

    def build(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 8, 3, groups=4), nn.Conv2d(8, 32, 3), nn.Flatten(), nn.Linear(32 * 16, 4))


@dataclass(frozen=True)
class Nothing(Architecture):
    """A classifier alone."""

    def build(self, width: float = 1.0) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))


def test_grouped_convolutions_stay_dense_and_a_lone_classifier_is_refused():
    shapes = download_shapes(create("lowrank", {"linear": False}), Grouped("mlp", (8, 8, 8), 4), Tier(0.5))
    assert shapes["0.weight"] == (8, 2, 3, 3)
    assert "1.core.weight" in shapes
    with pytest.raises(ConfigError, match="lowrank finds no layer that is smaller in factors: there is none but the classifier"):
        create("lowrank").check(Nothing("mlp", (1, 8, 8), 4), (Tier(0.5),), 3)


def test_pufferfish_switches_once_and_says_so_in_its_options():
    method, tier = create("pufferfish", {"warmup_rounds": 2}), Tier(0.5)
    state = method.init(DIGITS, (tier,), generator(0, "init"))
    for round_ in (1, 2):
        assert method.advance(state, round_, RNG) == (method, state)
    switched, factors = method.advance(state, 3, RNG)
    assert switched.config.model_dump() == {"factorize": "", "warmup_rounds": 2, "phase": "lowrank"}
    assert switched.advance(factors, 4, RNG) == (switched, factors)
    assert {n: tuple(t.shape) for n, t in factors.tensors.items()} == download_shapes(switched, DIGITS, tier)
    assert list(factors.tensors) == list(download_shapes(switched, DIGITS, tier))
    # A run that is resumed makes the method again from its options, and finds its own first state to fit.
    again = create("pufferfish", switched.config.model_dump())
    first = again.init(DIGITS, (tier,), generator(0, "init"))
    assert misfit(again, first, factors) == ""
    assert misfit(again, first, state)


def test_pufferfish_keeps_what_the_rank_can_hold():
    """At the switch, the network changes by no more than the truncation: at full rank not at all."""
    tier = Tier(0.999)
    method = create("pufferfish", {"warmup_rounds": 0})
    architecture = Architecture("mlp", (1, 8, 8), 4)
    state = method.init(architecture, (tier,), generator(0, "init"))
    switched, factors = method.advance(state, 1, RNG)
    x = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        before, after = method.deploy(state, tier)(x), switched.deploy(factors, tier)(x)
    torch.testing.assert_close(after, before, atol=0.05, rtol=0.05)


def test_pufferfish_refuses_what_remembers_coordinates():
    assert set(refused(create("pufferfish").lacks)) == {"dyn", "scaffold", "avgm", "adam", "yogi", "async"}


def test_the_squared_norm_has_the_product_s_derivatives_the_second_included():
    generator = torch.Generator().manual_seed(5)
    left, right = (torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in ((5, 3), (3, 4)))

    def norm(left, right):
        return SquaredNorm.apply(left, right)[0]

    torch.testing.assert_close(norm(left, right), (left @ right).square().sum())
    assert torch.autograd.gradcheck(norm, (left, right))
    assert torch.autograd.gradgradcheck(norm, (left, right))


def test_the_squared_norm_s_derivatives_take_one_product_each():
    left, right = torch.randn(8, 3, requires_grad=True), torch.randn(3, 6, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        SquaredNorm.apply(left, right)[0].backward()
    assert counter.get_total_flops() == 2 * (2 * 3 * 3 * (8 + 6))
