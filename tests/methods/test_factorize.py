"""The option ``factorize``: which layers methods factorize, and that layers of 1×1 kernels are factorized rightly."""

import numpy as np
import pytest
import torch
from mobile import MOBILE, MobileNet
from torch import nn

from edgefl.cli.param_types import MethodOption
from edgefl.client.training import Training
from edgefl.errors import ConfigError
from edgefl.factor.layers import composed_weight, factor_weights, low_rank
from edgefl.factor.svd import truncated, unroll
from edgefl.fleet.budget import Budget
from edgefl.methods.create import create
from edgefl.methods.ranks import _costs, dense_reasons, hybrid_ranks, rank_candidates, spectral_ranks
from edgefl.models.base import Architecture, weighted_layers
from edgefl.planning.plan import plan
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier

ONE = ["block.expand", "block.squeeze", "block.excite", "block.project", "head"]


def factorized(rules: str) -> list[str]:
    return list(rank_candidates(MOBILE.skeleton(), rules))


@pytest.mark.parametrize(
    ("rules", "layers"),
    [
        ("", ONE),  # nothing else can be factorized
        ("1x1", ONE),
        ("conv,linear,1x1", ONE),
        ("1x1,!head", ONE[:-1]),
        ("!head", ONE[:-1]),
        ("block.*,!block.[se]*", ["block.project"]),
        ("fc", ["fc"]),
        ("stem,1x1,!block.*", ["stem", "head"]),
        ("*,!1x1", ["stem", "fc"]),
    ],
)
def test_rules_choose_layers(rules, layers):
    assert factorized(rules) == layers


def test_reasons_of_dense_layers():
    assert dense_reasons(MOBILE.skeleton(), "head") == {
        "stem": "stem", "block.expand": "not chosen", "block.depth": "depthwise", "block.squeeze": "not chosen",
        "block.excite": "not chosen", "block.project": "not chosen", "head": "", "fc": "classifier",
    }  # fmt: skip


def test_networks_with_other_layers_keep_their_1x1_convolutions_dense():
    network = Architecture("resnet18", (3, 32, 32), 10).skeleton()
    reasons = dense_reasons(network)
    small = [name for name, layer in weighted_layers(network) if getattr(layer, "kernel_size", 0) == (1, 1)]
    assert small
    assert {reasons[name] for name in small} == {"not chosen"}
    assert reasons["layer1.0.conv1"] == "by design"
    assert rank_candidates(network, "layer1.0.conv1,1x1").keys() == {"layer1.0.conv1", *small}


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("blok.expand", "'blok.expand' is no kind (conv, 1x1, linear, recurrent), and no layer has such a name; did you mean 'block.e"),
        ("1x1,!heads", "'heads' is no kind"),
        ("zzz*", "no layer has such a name; layers are stem, block.expand, block.depth, block.squeeze, block.excite, …"),
        ("*.depth", "'*.depth': block.depth cannot be factorized: depthwise"),
        ("conv", "no layer can be factorized (1 stem, 5 not chosen, 1 depthwise, 1 classifier); name layers, such as"),
        ("1x1,!1x1", "no layer can be factorized"),
    ],
)  # fmt: skip
def test_wrong_rules_are_named(rules, message):
    with pytest.raises(ConfigError) as caught:
        factorized(rules)
    assert message in str(caught.value)
    with pytest.raises(ConfigError):
        create("fedhm", {"factorize": rules}).check(MOBILE, (Tier(1.0), Tier(0.5)), 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("conv,,fc", "has an empty rule"),
        ("!", "has an empty rule"),
        (3, "method_options.factorize"),
        ([1], "method_options.factorize"),
    ],
)
def test_malformed_rules_are_refused(value, message):
    with pytest.raises(ConfigError, match=message):
        create("pufferfish", {"factorize": value})


@pytest.mark.parametrize("text", ["conv,1x1,linear", "1x1", "blocks.*.conv_pw", "!fc"])
def test_rules_need_no_quotes_on_the_command_line(text):
    assert MethodOption().convert(f"factorize={text}", None, None) == ("factorize", text)


def test_a_list_of_rules_is_joined():
    assert create("fedhm", {"factorize": ["1x1", " !fc"]}).config.factorize == "1x1,!fc"


def test_the_kinds_of_methods_that_compose_weights():
    dense = create("lowrank").dense_reasons(MobileNet())
    assert (dense["block.depth"], dense["head"], dense["fc"]) == ("depthwise", "", "classifier")
    assert create("fedpara").dense_reasons(MobileNet())["block.depth"] == ""
    network = create("lowrank", {"factorize": "head", "match": "share"}).network(MOBILE, Tier(0.5))
    assert not isinstance(network.head, nn.Conv2d)
    assert isinstance(network.block.expand, nn.Conv2d)
    recurrent = nn.Sequential(nn.LSTM(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    assert create("fedpara", {"factorize": "linear"}).dense_reasons(recurrent) == {
        "0": "not chosen",
        "1": "",
        "2": "classifier",
    }


def test_layers_stay_dense_whose_factors_would_not_be_smaller():
    wide = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 24, 1), nn.Conv2d(24, 24, 1), nn.Linear(24, 2))
    # r < 8·24 / (8 + 24) = 6 of full rank 8, and r < 24·24 / 48 = 12 of 24; r = ⌊γ·24⌋, at most the full rank.
    assert hybrid_ranks(wide, 0.7, "1x1") == {"1": 5}
    assert hybrid_ranks(wide, 0.45, "1x1") == {"1": 3, "2": 10}
    assert hybrid_ranks(wide, 0.75, "1x1") == {}


WEIGHT = torch.tensor([[3.0, -1.0, 0.0], [-2.0, 4.0, 1.0]])  # 2 outputs, 3 inputs


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1, stride=2), nn.Linear(3, 2)], ids=["1x1", "strided", "linear"]
)
def test_factors_of_a_1x1_convolution_by_hand(layer):
    # WWᵀ = [[10, -10], [-10, 21]] has the trace 31 and the determinant 110, so σ² = (31 ± √521)/2 = 26.9127 and 4.0873.
    layer.requires_grad_(False)
    layer.weight.copy_(WEIGHT.reshape(layer.weight.shape))
    layer.bias.copy_(torch.tensor([0.5, -0.25]))
    factors = truncated(unroll(layer.weight), [1, 2])
    assert (factors.values**2).tolist() == pytest.approx([26.912712, 4.087288], rel=1e-5)
    values = [[1.0, -2.0, 0.5], [-3.0, 0.25, 2.0]]
    x = torch.tensor(values) if isinstance(layer, nn.Linear) else torch.tensor(values).T.reshape(1, 3, 1, 2).expand(1, 3, 5, 2)
    for rank, error in ((1, 4.087288), (2, 0.0)):
        u, v = factor_weights(*factors.leading(rank), tuple(layer.weight.shape))
        assert float(((composed_weight(u, v) - layer.weight) ** 2).sum()) == pytest.approx(error, abs=1e-4)
        small = low_rank(layer, rank)
        small.requires_grad_(False).load_state_dict({"u.weight": u, "v.weight": v, "v.bias": layer.bias})
        assert small(x).shape == layer(x).shape
        if rank == 2:
            torch.testing.assert_close(small(x), layer(x), atol=1e-5, rtol=1e-5)


def test_a_strided_1x1_convolution_computes_only_positions_of_its_output():
    architecture = type(MOBILE)(
        model="strided",
        factory=lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 1, 2), nn.Flatten(), nn.Linear(72, 4)),
        classes=4,
        inputs=MOBILE.inputs,
    )
    cost = tier_cost(create("fedhm"), architecture, Tier(0.25), Training(1, 32))
    assert {row.layer: row.macs_forward for row in cost.layers if row.layer.startswith("1.")} == {"1.u": 9 * 16, "1.v": 9 * 16}


@pytest.mark.parametrize(
    "dense",
    [
        nn.Conv1d(4, 6, 3, 2),
        nn.Conv2d(4, 6, (3, 2), (1, 2), (2, 0), (1, 2)),
        nn.Conv2d(4, 6, 1, 2),
        nn.Conv2d(4, 6, (3, 1), (2, 1), "valid"),
        nn.Conv3d(4, 6, (2, 3, 2), 2),
    ],
    ids=str,
)
def test_what_a_rank_costs_is_what_its_small_layers_compute(dense):
    layer, x = low_rank(dense, 1), torch.zeros(1, 4, *(9, 8, 7)[: dense.weight.dim() - 2])
    inner = layer.u(x)
    outer = layer.v(inner)
    macs = inner.numel() * layer.u.weight.numel() + outer[0, 0].numel() * layer.v.weight.numel()
    of_rank, of_dense = _costs(dense, tuple(x.shape[1:]), tuple(outer.shape[1:]))
    assert of_rank.tolist() == [macs, layer.u.weight.numel() + layer.v.weight.numel(), inner.numel()]
    assert of_dense.tolist() == [outer[0, 0].numel() * dense.weight.numel(), dense.weight.numel(), 0]


def test_spectral_ranks_of_1x1_layers_cost_no_more_than_uniform_ones():
    rng = np.random.default_rng(0)
    layers = rank_candidates(MOBILE.skeleton())
    values = {
        name: torch.from_numpy(np.sort(rng.random(min(layer.weight.shape[:2])))[::-1].copy()) for name, layer in layers.items()
    }
    ranks, uniform = spectral_ranks(MOBILE, 0.5, values), hybrid_ranks(MOBILE.skeleton(), 0.5)
    assert ranks.keys() <= layers.keys()

    def weights(of: dict[str, int]) -> int:
        return sum(of[n] * sum(x.weight.shape[:2]) if n in of else x.weight.numel() for n, x in layers.items())

    assert weights(ranks) <= weights(uniform)
    assert spectral_ranks(MOBILE, 0.5, {"head": values["head"]}, rules="head").keys() <= {"head"}


def test_plans_of_1x1_layers():
    found = plan(
        MobileNet, (1, 8, 8), method_options={"factorize": "head"}, budget=Budget(macs_forward=10_000), allocate="spectral"
    )
    assert all(set(row.ranks) == {"head"} for row in found)
