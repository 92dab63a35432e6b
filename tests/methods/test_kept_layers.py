"""Layers that no method may replace: shared, frozen and parametrized ones, and those with a forward or tensors of their own."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, weight_norm

from edgefl.errors import ConfigError
from edgefl.factor.adapter import PART
from edgefl.methods.create import create
from edgefl.methods.layer_rules import kept_layers
from edgefl.methods.networks import skeleton, upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.planning.inspect import inspect
from edgefl.planning.layer_facts import REASONS
from edgefl.planning.network import architecture_of
from edgefl.planning.profile import profile
from edgefl.records import Tier
from edgefl.run.prepare import begun

INPUT, CLASSES = (24,), 5


class Gain(nn.Linear):
    """A linear layer with a factor for every output."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.gain = nn.Parameter(torch.full((outputs,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


class Standardised(nn.Conv2d):
    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Padded(nn.Conv2d):
    """A convolution that only sets an argument, as libraries have it."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__(inputs, outputs, kernel, padding=kernel // 2)


class Noted(nn.Linear):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()), persistent=False)


def patched() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: F.linear(x, layer.weight)
    return layer


def hooked() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return layer


def without_bias_gradient() -> nn.Linear:
    layer = nn.Linear(4, 4)
    layer.bias.requires_grad_(False)
    return layer


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(4, 4, bias=False), ""),
        (lambda: Padded(4, 4, 3), ""),
        (lambda: nn.LSTM(4, 4, 2, bidirectional=True, proj_size=2), ""),
        (lambda: Gain(4, 4), "own forward"),
        (lambda: Standardised(4, 4, 3), "own forward"),
        (patched, "own forward"),
        (hooked, "own forward"),
        (lambda: weight_norm(nn.Linear(4, 4)), "own forward"),
        (lambda: weight_norm(nn.LSTM(4, 4), "weight_hh_l0"), "own forward"),
        (lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5), "own forward"),
        (lambda: Noted(4, 4), "own tensors"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "parametrized"),
        (lambda: parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)), "parametrized"),
        (lambda: nn.GRU(4, 4).requires_grad_(False), "frozen"),
        (without_bias_gradient, "frozen"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_layers_that_factors_cannot_replace(make, reason):
    assert kept_layers(nn.Sequential(make())) == ({"0": reason} if reason else {})
    assert not reason or reason in REASONS


class Mixed(nn.Module):
    """One layer of each kind; ``again`` is ``twice``, and ``first`` and ``second`` have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(24, 32)
        self.gain, self.frozen, self.twice = Gain(32, 32), nn.Linear(32, 32).requires_grad_(False), nn.Linear(32, 32)
        self.first, self.second, self.again = nn.Linear(32, 32), nn.Linear(32, 32), self.twice
        self.second.weight = self.first.weight
        self.plain, self.fc = nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("wide", "gain", "frozen", "twice", "first", "second", "again", "plain"):
            x = self.get_submodule(name)(x).relu()
        return self.fc(x)


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *((name, set()) for name in ("fedhm", "pufferfish", "prism", "orthdrop", "flanc", "lowrank", "fedpara", "pfedpara")),
        ("factorized-fl", {"fc"}),
        ("factorized-fl-beta", {"fc"}),
        ("flora", {"frozen"}),
    ],
)
def test_every_method_replaces_only_layers_that_factors_can_replace(method, more):
    architecture, options = architecture_of(Mixed, INPUT, CLASSES), {"flanc": {"composed": "all"}}.get(method)
    chosen = create(method, options, tiers=(0.25,))
    chosen = chosen.after_warmup() if method == "pufferfish" else chosen
    small, dense = skeleton(chosen, architecture, Tier(0.25)), architecture.skeleton()
    found = {name for name, layer in dense.named_modules() if type(small.get_submodule(name)) is not type(layer)}
    found |= {name for name, layer in small.named_modules() if hasattr(layer, PART)}
    assert found == {"wide", "plain"} | more
    assert small.again is small.twice
    assert small.second.weight is small.first.weight


def test_costs_of_shared_and_frozen_layers_by_hand():
    # At γ = 1/4, wide has rank 6 and plain 8. twice is again, and counts once; first and second have one weight and two biases.
    factors, classifier = 6 * (24 + 32) + 32 + 8 * (32 + 32) + 32, 32 * 5 + 5
    gain, frozen, twice, pair = 32 * 32 + 2 * 32, 32 * 32 + 32, 32 * 32 + 32, 32 * 32 + 2 * 32
    row = profile(Mixed, INPUT, CLASSES, method="fedhm", tiers=(0.25,))[0]
    assert row.params == factors + gain + frozen + twice + pair + classifier
    assert row.gradient_bytes == 4 * (row.params - frozen)


@pytest.mark.parametrize(
    "make", [Mixed, lambda: nn.Sequential(nn.Linear(24, 32), parametrizations.weight_norm(nn.Linear(32, 32)), nn.Linear(32, 5))]
)
@pytest.mark.parametrize("method", ["fedhm", "orthdrop"])
def test_a_tier_of_exact_factors_computes_what_the_network_computes(make, method):
    network = make()
    with torch.no_grad():
        for tensor in network.parameters():
            if tensor.dim() == 2 and tensor.shape[1] > 1:  # of rank 1, so that a truncation loses nothing
                tensor.copy_(torch.outer(torch.randn(tensor.shape[0]), torch.randn(tensor.shape[1])) / 6)
    architecture, tiers = architecture_of(network, INPUT, CLASSES), (Tier(1.0), Tier(0.25))
    chosen = create(method)
    state = begun(chosen, architecture, tiers, dict(network.state_dict()), 0)
    submodel = chosen.submodel(state, tiers[1], np.random.default_rng(0))
    small, x = submodel.build(), torch.randn(3, 24)
    small.load_state_dict(submodel.tensors)
    torch.testing.assert_close(small(x), network(x), atol=1e-5, rtol=1e-4)


def test_inspect_says_why_a_layer_is_kept():
    rows = inspect(Mixed, INPUT, CLASSES, method="fedhm", tiers=(0.25,)).layers
    reasons = {row.layer: (row.tiers[0].form, row.tiers[0].why) for row in rows}
    kept = {
        "gain": "own forward",
        "frozen": "frozen",
        "twice": "shared",
        "first": "shared",
        "second": "shared",
        "fc": "classifier",
    }
    assert reasons == {
        "wide": ("factorized", ""),
        "plain": ("factorized", ""),
        **{name: ("dense", why) for name, why in kept.items()},
    }
    normed = nn.Sequential(nn.Linear(24, 32), parametrizations.weight_norm(nn.Linear(32, 32)), nn.Linear(32, CLASSES))
    found = {row.layer: row.tiers[0].why for row in inspect(normed, INPUT, CLASSES, method="fedhm", tiers=(0.25,)).layers}
    assert found["1"] == "parametrized"
    with pytest.raises(ConfigError, match="'tw[*]': twice cannot be factorized: shared"):
        create("fedpara", {"factorize": "tw*"}).check(architecture_of(Mixed, INPUT, CLASSES), (Tier(0.25),), 2)


@pytest.mark.parametrize("name", ["factorized-fl", "factorized-fl-beta"])
def test_a_classifier_that_stays_dense_is_personal_too(name):
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), Gain(32, CLASSES))

    architecture, tier = architecture_of(make, INPUT, CLASSES), Tier(1.0)
    kept = create(name, {"personal_classifier": True})
    assert {key for key in upload_shapes(kept, architecture, tier) if key.startswith("4.")} == set()
    assert {"0.u", "2.u"} <= download_shapes(kept, architecture, tier).keys()
    assert "2.v" in upload_shapes(kept, architecture, tier)
