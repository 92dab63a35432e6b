"""Layers of PriSM, OrthDrop and OrigDrop: factors of convolutions and linear layers, and options that are refused."""

from __future__ import annotations

import pytest
import torch
from prism_networks import CNN, first_state, loaded, weights
from torch import nn

from edgefl.errors import ConfigError
from edgefl.factor.kernels import KernelConv, KernelLinear, kernel_layer
from edgefl.factor.layers import LowRank, frobenius_sq, low_rank_layers
from edgefl.factor.svd import factorize
from edgefl.methods.create import create
from edgefl.methods.networks import global_tier
from edgefl.methods.penalties import decayed
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Batch, Tier
from edgefl.rng import generator


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_two_small_convolutions_compute_the_sum_of_their_kernels(stride, bias):
    dense = nn.Conv2d(3, 5, 3, stride, 1, bias=bias)
    small = KernelConv(dense, 4)
    u, v = small.factors()
    assert isinstance(small, LowRank)
    assert sum(p.numel() for p in small.parameters()) == 4 * (27 + 5) + (5 if bias else 0)
    if bias:
        small.u.bias.data.copy_(dense.bias.data)
    dense.weight.data.copy_((u @ v).view(5, 3, 3, 3))
    x = weights(2, 3, 6, 6)
    torch.testing.assert_close(small(x), dense(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(frobenius_sq(small), dense.weight.square().sum(), rtol=1e-4, atol=0)


def test_a_linear_layer_is_two_without_an_area():
    dense = nn.Linear(6, 5)
    small = KernelLinear(dense, 3)
    u, v = small.factors()
    dense.weight.data.copy_(u @ v)
    dense.bias.data.copy_(small.u.bias.data)
    x = weights(2, 4, 6)
    torch.testing.assert_close(small(x), dense(x), atol=1e-6, rtol=1e-5)
    with pytest.raises(ConfigError, match="only plain convolutions have principal kernels"):
        kernel_layer(nn.Conv2d(4, 4, 3, groups=2), {"weight": (2,)})


def test_the_loss_has_equation_6_and_plain_decay_leaves_the_factors_alone():
    method, x = create("prism", {"frobenius_decay": 0.3}), weights(4, 1, 8, 8)
    y = torch.tensor([0, 1, 2, 3])
    sent = method.submodel(first_state(method, CNN, 0.4), Tier(0.4), generator(0), 0)
    module = loaded(sent)
    weight = sum(((u := layer.factors())[0] @ u[1]).square().sum() for layer in low_rank_layers(module))
    expected = nn.functional.cross_entropy(module(x), y) + 0.15 * weight
    torch.testing.assert_close(method.local_loss(module, Batch(x, y)), expected)
    those = set(decayed(method, module))
    left = {name for name, p in module.named_parameters() if p not in those}
    assert left == {f"conv{i}.{f}.weight" for i in (2, 3) for f in "uv"}


def test_orthdrop_gives_everyone_the_same_kernels_at_all_channels():
    method = create("orthdrop")
    state = first_state(method, CNN, 0.4)
    one, other = (method.submodel(state, Tier(0.4), generator(c), c) for c in range(2))
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert not method.per_client
    left, right = factorize(state.tensors["conv2.weight"].flatten(1), 64).leading(26)
    torch.testing.assert_close(one.tensors["conv2.u.weight"].flatten(1) @ one.tensors["conv2.v.weight"].flatten(1), left @ right)
    assert one.tensors["fc.weight"].shape == state.tensors["fc.weight"].shape


def test_origdrop_holds_no_more_than_its_largest_tier():
    method = create("origdrop")
    state = first_state(method, CNN, 0.2, 0.4)
    assert global_tier(method, state) == Tier(0.4)
    assert {n: tuple(t.shape) for n, t in state.tensors.items()} == download_shapes(method, CNN, Tier(0.4))


@pytest.mark.parametrize("name", ["prism", "orthdrop"])
def test_keep_ratios_and_networks_are_checked_before_training(name):
    method = create(name)
    for keep in (0.0, -0.2):
        with pytest.raises(ConfigError, match=rf"layer conv2: keep ratio {keep:g} of 64 principal kernels"):
            method.check(CNN, (Tier(keep),), 4)
    method.check(CNN, (Tier(1.0), Tier(0.01)), 4)

    class Bare(Architecture):
        def build(self, width: float = 1.0) -> nn.Module:
            return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2))

    with pytest.raises(ConfigError, match="finds no layer with principal kernels"):
        method.check(Bare("mlp", (1, 8, 8), 2), (Tier(0.5),), 4)


def test_prism_refuses_more_than_all():
    with pytest.raises(ConfigError, match="layer conv2: keep ratio 1.5 of 64 principal kernels is 96 of them"):
        create("prism").check(CNN, (Tier(1.5),), 4)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kappa": -1.0}, "method_options.kappa"),
        ({"kappa": float("nan")}, "method_options.kappa"),
        ({"sampling": "greedy"}, "method_options.sampling must be 'power', 'uniform' or 'softmax'"),
        ({"frobenius_decay": -1e-4}, "method_options.frobenius_decay"),
        ({"outputs": 0.0}, "method_options.outputs"),
        ({"outputs": 1.1}, "method_options.outputs"),
        ({"warmup_rounds": -1}, "method_options.warmup_rounds"),
        ({"kapa": 2.0}, "did you mean 'kappa'"),
        ({"kappa": 2.0, "sampling": "uniform"}, "method_options.kappa: got 2, expected none: sampling=uniform does not use it"),
    ],
)
def test_wrong_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        create("prism", options)
