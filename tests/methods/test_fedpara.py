"""FedPara's composition, ranks, initialisation and layers, beyond the published counts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from descent import descended
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from edgefl.client.training import Training
from edgefl.errors import ConfigError
from edgefl.factor.hadamard import factor_shapes, inner_weight, jacobian_gap, parameters_of_rank, rank_of, rank_range
from edgefl.factor.hadamard_layers import ComposedRecurrent, HadamardWeight, composed
from edgefl.methods.create import create
from edgefl.methods.factored_weights import candidates
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.onnxgrad.stateless import called
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator, torch_seeded

SHAPES = st.tuples(st.integers(1, 80), st.integers(1, 80), st.sampled_from([(), (1, 1), (3, 3), (1, 7), (5, 5)])).map(
    lambda s: (s[0], s[1], *s[2])
)


@dataclass(frozen=True)
class Built(Architecture):
    """A network that a test makes."""

    make: object = None

    def build(self, width: float = 1.0) -> nn.Module:
        return self.make()


def of(make, inputs=(3, 8, 8)):
    return Built("mlp", inputs, 4, make=make)


@given(SHAPES)
def test_r_max_is_the_last_rank_that_is_no_larger_and_r_min_squared_covers_the_shorter_side(shape):
    least, most = rank_range(shape)
    size = int(np.prod(shape))
    assert parameters_of_rank(shape, most) <= size < parameters_of_rank(shape, most + 1)
    short = min(shape[:2])
    assert least**2 >= short > (least - 1) ** 2


@given(SHAPES, st.floats(0, 1), st.floats(0, 1))
def test_ranks_grow_with_gamma_and_never_make_a_layer_larger(shape, one, other):
    small, large = (rank_of(shape, gamma) for gamma in sorted((one, other)))
    assert small <= large
    assert parameters_of_rank(shape, large) <= np.prod(shape)


@given(SHAPES, st.integers(1, 5))
def test_an_inner_weight_is_the_sum_over_both_ranks(shape, rank):
    rng = np.random.default_rng(rank)
    parts = {name: rng.normal(size=size) for name, size in factor_shapes(shape, rank).items()}
    got = inner_weight(*(torch.from_numpy(part) for part in parts.values())).numpy()
    if "t" in parts:
        expected = np.einsum("na,mb,abkl->nmkl", parts["x"], parts["y"], parts["t"])
    else:
        expected = np.einsum("na,ma->nm", parts["x"], parts["y"])
    np.testing.assert_allclose(got, expected, atol=1e-10)


class Outputs(TorchDispatchMode):
    """Counts results that own at least ``least`` values."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.large, self.macs = least, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.macs += out.numel() * args[0].shape[1]
        owned = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(out, torch.Tensor) and out.numel() >= self.least and out.untyped_storage().data_ptr() not in owned:
            self.large += 1
        return out


@pytest.mark.parametrize(
    ("plus_one", "shape"), [(False, (64, 48, 3, 3)), (True, (64, 48, 3, 3)), (False, (48, 64)), (True, (48, 64))]
)
def test_composing_makes_the_weight_and_one_inner_weight_and_its_derivative_two_products(plus_one, shape):
    weight = HadamardWeight(shape, 7, plus_one=plus_one)
    with Outputs(int(np.prod(shape))) as seen:
        composed = weight()
    assert seen.large == 2
    q = shape[2] * shape[3] if len(shape) > 2 else 0
    half = 7 * 7 * shape[1] * q
    assert seen.macs == 2 * (7 * np.prod(shape) + half)
    gradient = torch.ones(shape)
    with Outputs(int(np.prod(shape))) as seen:
        composed.backward(gradient)
    assert seen.large == 2
    assert seen.macs == 2 * (3 * 7 * np.prod(shape) + 2 * half)


@pytest.mark.parametrize("plus_one", [False, True])
@given(SHAPES, st.integers(1, 6))
def test_the_weight_and_its_derivatives_are_those_of_the_plain_operators(plus_one, shape, rank):
    weight = HadamardWeight(shape, rank, plus_one=plus_one).double()
    factors, direction = list(weight.parameters()), torch.randn(shape, dtype=torch.float64)
    plain = weight.compose(factors)
    torch.testing.assert_close(weight(), plain, rtol=1e-12, atol=1e-15)
    found, expected = (torch.autograd.grad(w, factors, direction) for w in (weight(), plain))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", [(4, 3, 3, 1), (3, 5), (1, 1)])
def test_second_derivatives_of_the_weight(plus_one, shape):
    weight = HadamardWeight(shape, 2, plus_one=plus_one).double()
    names = [name for name, _ in weight.named_parameters()]

    def composed_of(*factors):
        return called(weight, dict(zip(names, factors, strict=True)), ())

    assert torch.autograd.gradcheck(composed_of, tuple(weight.parameters()))
    assert torch.autograd.gradgradcheck(composed_of, tuple(weight.parameters()))


def test_the_weight_under_transforms_and_without_values():
    weight = HadamardWeight((4, 3, 3, 3), 2)
    factors = dict(weight.named_parameters())

    def square(factors):
        return called(weight, factors, ()).square().sum()

    expected = torch.autograd.grad(square(factors), list(factors.values()))
    for found, other in zip(torch.func.grad(square)(factors).values(), expected, strict=True):
        torch.testing.assert_close(found, other)
    traced = make_fx(lambda *values: torch.autograd.grad(square(dict(zip(factors, values, strict=True))), values))
    for found, other in zip(traced(*factors.values())(*factors.values()), expected, strict=True):
        torch.testing.assert_close(found, other)
    with torch.device("meta"):
        assert HadamardWeight((4, 3, 3, 3), 2)().shape == (4, 3, 3, 3)
    kept = weight().square().sum()
    kept.backward(retain_graph=True)
    first = [factor.grad.clone() for factor in weight.parameters()]
    kept.backward()  # the factors that were kept are still what they were
    for factor, once in zip(weight.parameters(), first, strict=True):
        torch.testing.assert_close(factor.grad, 2 * once)


@pytest.mark.parametrize("shape", [(64, 64, 3, 3), (256, 48), (10, 1024), (32, 1, 3, 3), (96, 24, 1, 1)])
@pytest.mark.parametrize("plus_one", [False, True])
def test_composed_weights_start_with_the_variance_of_he(shape, plus_one):
    rank = max(1, rank_of(shape, 0.4))
    with torch_seeded(np.random.default_rng(0)):
        draws = torch.stack([HadamardWeight(shape, rank, plus_one=plus_one)().detach() for _ in range(60)]).double()
    q = int(np.prod(shape[2:]))
    target = 2 / (max(shape[:2]) * q)
    assert float(draws.square().mean()) == pytest.approx(target, rel=0.2)
    assert abs(float(draws.mean())) < 0.05 * target**0.5


@pytest.mark.parametrize(("shape", "rank", "smaller"), [((120, 64, 3, 3), 12, 31), ((512, 512, 3, 3), 52, 116)])
def test_composed_weights_of_the_authors_first_factors_are_far_smaller(shape, rank, smaller):
    """Their notebook draws every factor by its own fan-in: a standard deviation of 8R/(n·m·k²), .0014 for .043 of He, .0002 for .021."""
    with torch_seeded(np.random.default_rng(0)):
        he, authors = (HadamardWeight(shape, rank, init=init)().detach().double().std() for init in ("he", "authors"))
    assert float(authors) == pytest.approx(8 * rank / (shape[0] * shape[1] * 9), rel=0.1)
    assert float(he / authors) == pytest.approx(smaller, rel=0.1)


def test_tanh_bounds_both_inner_weights():
    weight = HadamardWeight((6, 5, 3, 3), 2, tanh=True)
    with torch.no_grad():
        for factor in weight.parameters():
            factor.mul_(50)
    first, second = (inner_weight(*list(weight.parameters())[i : i + 3]).tanh() for i in (0, 3))
    assert torch.equal(weight(), first * second)
    assert bool((weight().abs() <= 1).all())


CONVOLUTIONS = [
    {"padding": 1},
    {"stride": 2, "padding": (1, 0), "bias": False},
    {"dilation": 2, "padding": "same"},
    {"groups": 2, "padding": 1},
    {"stride": 2, "padding": (2, 1), "padding_mode": "reflect"},
    {"dilation": (1, 2), "padding": "same", "padding_mode": "circular"},
    {"padding": "valid", "padding_mode": "replicate"},
]


@pytest.mark.parametrize("options", CONVOLUTIONS)
def test_a_composed_convolution_computes_what_the_dense_one_with_its_weight_does(options):
    dense = nn.Conv2d(16, 32, 3, **options)
    weight = HadamardWeight(tuple(dense.weight.shape), 3)
    layer = composed(dense, {"weight": weight})
    dense.weight.data = weight().data
    x = torch.randn(2, 16, 9, 9)
    torch.testing.assert_close(layer(x), dense(x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_composed_recurrent_layer_computes_and_learns_like_the_dense_one(kind):
    dense = kind(12, 16, 2, batch_first=True, bidirectional=True)
    reference = kind(12, 16, 2, batch_first=True, bidirectional=True)
    shapes = {name: tuple(p.shape) for name, p in dense.named_parameters() if name.startswith("weight")}
    layer = composed(dense, {name: HadamardWeight(shape, 3) for name, shape in shapes.items()})
    assert isinstance(layer, ComposedRecurrent)
    weights = {name: getattr(layer, name)() if name in shapes else p for name, p in reference.named_parameters()}
    for name, value in weights.items():
        (reference.get_parameter(name) if name in shapes else getattr(layer, name)).data = value.detach().clone()
    x = torch.randn(3, 5, 12)
    ours, theirs = layer(x)[0], reference(x)[0]
    torch.testing.assert_close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    name = "weight_hh_l1"
    inner = getattr(layer, name)
    expected = torch.autograd.grad(inner(), list(inner.parameters()), reference.get_parameter(name).grad)
    for factor, slope in zip(inner.parameters(), expected, strict=True):
        torch.testing.assert_close(factor.grad, slope, rtol=1e-4, atol=1e-5)
    # Names are the dense layer's, and no composed weight outlives its pass.
    assert {n.partition(".")[0] for n in layer.state_dict()} == set(dict(reference.named_parameters()))
    assert all(getattr(layer.cell[0], name) is None for name in shapes)


def test_the_shakespeare_network_is_factorized_traced_and_deployed_as_an_lstm():
    architecture = Architecture("lstm-shakespeare", (80,), 80)
    method, tier = create("fedpara"), Tier(0.1)
    shapes = download_shapes(method, architecture, tier)
    assert {name.rpartition(".")[0] for name in shapes if name.endswith("x1")} == {
        f"rnn.weight_{kind}_l{i}" for kind in ("ih", "hh") for i in (0, 1)
    }
    cost = tier_cost(method, architecture, tier, Training(1, 4, 0.05, 0.0, 0.0))
    assert cost.macs_compose > 0
    assert not cost.uncounted_ops
    state = method.init(architecture, (tier,), generator(0, "init"))
    x = torch.randint(80, (2, 80))
    network = method.network(architecture, tier)
    network.load_state_dict(state.tensors)
    deployed = method.deploy(state, tier)
    assert type(deployed.rnn) is nn.LSTM
    with torch.no_grad():
        torch.testing.assert_close(deployed(x), network(x))


def test_which_layers_are_factorized():
    def mixed():
        return nn.Sequential(nn.Conv2d(3, 32, 3), nn.Flatten(), nn.Linear(32 * 36, 40), nn.ReLU(), nn.Linear(40, 4))

    def wide():
        return nn.Sequential(nn.Conv2d(3, 256, 3), nn.Conv2d(256, 256, 3), nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 4))

    assert list(candidates(mixed(), None)) == ["0.weight", "2.weight"]  # the linear layer holds most
    assert list(candidates(mixed(), False)) == ["0.weight"]
    assert list(candidates(wide(), None)) == ["0.weight", "1.weight"]
    assert list(candidates(wide(), True, classifier=True)) == ["0.weight", "1.weight", "3.weight", "4.weight"]
    frozen = wide()
    frozen[1].weight.requires_grad_(False)
    assert list(candidates(frozen, None)) == ["0.weight"]


def test_a_network_without_a_layer_to_factorize_is_refused_by_name_and_numbers():
    small = of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Linear(4, 4)))
    message = r"fedpara finds no layer that is smaller in factors: 1\.weight 4x192 needs rank 2, at most 1 is smaller"
    with pytest.raises(ConfigError, match=message):
        create("fedpara").check(small, (Tier(0.5),), 3)
    only = of(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)))
    with pytest.raises(ConfigError, match="there is none besides the classifier"):
        create("fedpara").check(only, (Tier(0.5),), 3)


def test_the_jacobian_correction_vanishes_where_factors_step_like_the_weight():
    """One factor that is a multiple of the identity's row: W = x·1, whose step on x is the step on W."""
    x = torch.randn(5, 1, requires_grad=True)
    gap = jacobian_gap(lambda f: f[0] @ torch.ones(1, 1), [x], torch.randn(5, 1), 0.3)
    assert gap.item() == pytest.approx(0.0, abs=1e-6)
    gap.backward()
    assert bool(torch.isfinite(x.grad).all())


@pytest.mark.parametrize("tanh", [False, True])
def test_the_jacobian_correction_is_trained_and_gives_the_weights_back(tanh):
    method, tier = create("fedpara", {"jacobian": 1.0, "tanh": tanh}), Tier(0.4)
    architecture = Architecture("cnn-digits", (1, 8, 8), 4)
    module = method.network(architecture, tier)
    batch = Batch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]))
    plain = create("fedpara", {"tanh": tanh}).local_loss(module, batch)
    loss = method.local_loss(module, batch)
    assert loss.item() > plain.item()
    loss.backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in module.parameters())
    assert all(part.given is None for part in module.modules() if isinstance(part, HadamardWeight))
    costs = [tier_cost(m, architecture, tier, Training(1, 4, 0.05, 0.0, 0.0)) for m in (create("fedpara"), method)]
    assert costs[1].macs_compose > 2 * costs[0].macs_compose


def test_training_converges_where_the_dense_network_does():
    """Ten full-batch steps on separable samples: the loss falls below a tenth for convolutions and linear layers alike."""
    rng = torch.Generator().manual_seed(1)
    y = torch.arange(40) % 4
    x = 0.3 * torch.randn(40, 1, 8, 8, generator=rng)
    for label in range(4):
        x[y == label, 0, 4 * (label // 2) : 4 * (label // 2) + 4, 4 * (label % 2) : 4 * (label % 2) + 4] += 2
    for model in ("cnn-digits", "mlp"):
        method, tier, architecture = create("fedpara"), Tier(0.4), Architecture(model, (1, 8, 8), 4)
        module = method.network(architecture, tier)
        module.load_state_dict(method.init(architecture, (tier,), generator(0, "init")).tensors)
        losses = descended(method, module, Batch(x, y), lr=0.05, steps=25)
        assert losses[-1] < 0.1 * losses[0], (model, losses)
