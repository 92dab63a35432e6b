"""FLANC: the rule for R₁ and R₂, composition, recurrent layers, costs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgefl.client.training import Training
from edgefl.errors import ConfigError
from edgefl.factor.basis import BasisRule, BasisSize, compose, composed_layers, first_basis, first_coefficients, orthogonality
from edgefl.methods.create import create
from edgefl.methods.networks import global_tier
from edgefl.models.base import Architecture, scaled
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator, torch_seeded

DIGITS = Architecture("cnn-digits", (1, 8, 8), 4)
TIERS = (Tier(1.0), Tier(0.5), Tier(0.25))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], hidden: int) -> None:
        super().__init__()
        self.rnn = kind(6, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, 3)

    def forward(self, x):
        return self.fc(self.rnn(x)[0].mean(1))


class RecurrentArchitecture(Architecture):
    """Sequences (5, 6); 16 hidden units at width 1; ``model`` is only a name that exists."""

    kind: type[nn.RNNBase] = nn.LSTM

    def build(self, width: float = 1.0) -> nn.Module:
        return Recurrent(self.kind, scaled(16, width))


class Elman(RecurrentArchitecture):
    kind = nn.RNN


def loaded(method, state, tier):
    submodel = method.submodel(state, tier, generator(0, "s"))
    module = submodel.build()
    module.load_state_dict(submodel.tensors)
    return module


@given(
    st.integers(1, 96), st.integers(1, 96), st.integers(1, 3), st.lists(st.sampled_from([0.125, 0.25, 0.5, 0.75]), max_size=3),
    st.floats(0.05, 1.0), st.floats(0.1, 4.0),
)  # fmt: skip
def test_r1_divides_every_width_and_r2_vectors_fit(inputs, outputs, kernel, widths, share, bases):
    shapes = [(scaled(outputs, w), scaled(inputs, w), kernel, kernel) for w in (1.0, *widths)]
    for whole in (False, True):
        size = BasisRule(share, bases).size(shapes, shapes[0], whole)
        assert all(shape[1] % size.channels == 0 for shape in shapes)
        assert 1 <= size.count <= kernel**2 * size.channels
        if not whole and inputs > 1:
            assert size.channels <= max(1, share * inputs + 1e-9)  # as the rule allows for rounding
            # Coefficients are fewer than the weights that they compose, unless a basis vector is a single number.
            assert size.count < kernel**2 * size.channels or kernel == size.channels == 1


@pytest.mark.parametrize(
    ("full", "scales", "expected"),
    [
        # An eighth of the inputs; a quarter of the outputs of a 3×3 kernel, more vectors if there are more outputs than inputs.
        ((64, 64, 3, 3), True, (8, 16)),
        ((128, 64, 3, 3), True, (8, 32)),
        ((128, 64, 3, 3), False, (8, 32)),
        # √(64·16) = 32 inputs count if there are few outputs; two thirds of 4 vectors for a kernel of 1.
        ((16, 64, 3, 3), True, (4, 8)),
        ((16, 64), True, (4, 2)),
        # Twice the outputs: 8/3·4 vectors are more than 15/16 of the largest basis, 7.5.
        ((128, 64), True, (8, 7)),
    ],
)
def test_the_rule_by_hand(full, scales, expected):
    shapes = [(full[0] * p // 4, full[1] * p // 4 if scales else full[1], *full[2:]) for p in (1, 2, 3, 4)]
    size = BasisRule().size(shapes, full)
    assert (size.channels, size.count) == expected


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 9))
def test_compose_is_the_sum_of_equation_2(outputs, fragments, r1, r2, kernel, seed):
    rng = np.random.default_rng(seed)
    basis, coefficients = rng.normal(size=(r2, r1, kernel, kernel)), rng.normal(size=(outputs, fragments, r2))
    weight = compose(torch.from_numpy(basis), torch.from_numpy(coefficients)).numpy()
    assert weight.shape == (outputs, fragments * r1, kernel, kernel)
    expected = np.einsum("rcij,tfr->tfcij", basis, coefficients).reshape(weight.shape)
    np.testing.assert_allclose(weight, expected, atol=1e-12)


def test_first_weights_have_orthonormal_bases_and_the_size_of_plain_ones():
    with torch_seeded(generator(0, "x")):
        basis = first_basis((16, 8, 3, 3))
        weight = compose(basis, first_coefficients((64, 4, 16), 3.0 * torch.randn(64, 32, 3, 3)))
    assert orthogonality(basis).item() < 1e-8
    assert weight.square().mean().item() == pytest.approx(9, rel=0.05)


def test_first_weights_may_have_the_variance_of_he():
    with torch_seeded(generator(0, "x")):
        weight = compose(first_basis((16, 8, 3, 3)), first_coefficients((64, 4, 16), torch.ones(64, 32, 3, 3), "he"))
    assert weight.var().item() == pytest.approx(2 / (9 * 32), rel=0.05)
    sizes = {}
    for init in ("plain", "he"):
        state = create("flanc", {"init": init}).init(Architecture("cnn-flanc", (1, 28, 28), 10), TIERS, generator(0, "init"))
        sizes[init] = state.tensors["conv2.coefficients@1"].square().mean().item()
    assert sizes["he"] / sizes["plain"] == pytest.approx(6, rel=0.02)


def test_every_tier_starts_as_large_as_its_plain_network():
    """The variance of torch's first weights is 1/(3·9·S), that of coefficients in the authors' code 1/(3·(S/R₁)·R₂)."""
    state = create("flanc").init(Architecture("cnn-flanc", (1, 28, 28), 10), TIERS, generator(0, "init"))
    for tier in TIERS:
        for layer, inputs, r1, r2 in (("conv2", 64, 8, 32), ("conv3", 128 * tier.ratio, 16, 32)):
            basis, coefficients = state.tensors[f"{layer}.basis"], state.tensors[f"{layer}.coefficients@{tier.label}"]
            assert basis.shape[:2] == (r2, r1)
            assert coefficients.square().mean().item() == pytest.approx(1 / (3 * inputs / r1 * r2), rel=0.06)
            assert compose(basis, coefficients).square().mean().item() == pytest.approx(1 / (27 * inputs), rel=0.06)


def test_the_stem_and_the_classifier_are_dense_and_one_per_tier():
    method = create("flanc", tiers=(1.0, 0.5, 0.25))
    state = method.init(Architecture("cnn-flanc", (1, 8, 8), 4), TIERS, generator(0, "init"))
    assert {n for n in state.tensors if "@" not in n} == {"conv2.basis", "conv3.basis"}
    for tier in TIERS:
        assert state.tensors[f"conv1.weight@{tier.label}"].shape == (64, 1, 3, 3)
        assert state.tensors[f"fc.weight@{tier.label}"].shape == (4, 128 * tier.ratio * 4)
    stems = [state.tensors[f"conv1.weight@{tier.label}"] for tier in TIERS]
    assert not torch.equal(stems[0], stems[1])


def test_a_state_starts_with_one_basis_for_all_and_coefficients_for_each_tier():
    method = create("flanc", {"composed": "all"}, tiers=(1.0, 0.5, 0.25))
    state = method.init(DIGITS, TIERS, generator(0, "init"))
    assert state.tensors["conv3.basis"].shape == (16, 8, 3, 3)
    shapes = {t.label: tuple(state.tensors[f"conv3.coefficients@{t.label}"].shape) for t in TIERS}
    assert shapes == {"1": (64, 8, 16), "0.5": (32, 4, 16), "0.25": (16, 2, 16)}
    # The stem sees every input channel at every width, the classifier gives every class.
    assert state.tensors["conv1.basis"].shape == (8, 1, 3, 3)
    assert {state.tensors[f"fc.coefficients@{t.label}"].shape[0] for t in TIERS} == {4}
    assert {n.split("@")[1] for n in state.tensors if n.startswith(("norm1.weight", "fc.bias"))} == {"1", "0.5", "0.25"}
    assert all(orthogonality(t).item() < 1e-8 for n, t in state.tensors.items() if n.endswith(".basis"))


@pytest.mark.parametrize("options", [{"composed": "all", "penalty": "sum", "orthogonality": 0.3}, {}])
def test_the_loss_adds_the_orthogonality_of_every_basis(options):
    method = create("flanc", options, tiers=(1.0, 0.5, 0.25))
    state = method.init(DIGITS, TIERS, generator(0, "init"))
    state = state.replace({n: t + 0.1 if "basis" in n else t for n, t in state.tensors.items()})
    module = loaded(method, state, TIERS[1])
    batch = Batch(torch.ones(2, 1, 8, 8), torch.tensor([1, 2]))
    penalty = 0.0
    for name, tensor in state.tensors.items():
        if name.endswith(".basis"):
            rows = tensor.double().numpy().reshape(len(tensor), -1)
            squares = (rows @ rows.T - np.eye(len(rows))) ** 2
            penalty += float(0.3 * np.sum(squares) if options else 10 * np.mean(squares))
    plain = nn.functional.cross_entropy(module(batch.x), batch.y)
    assert penalty > 0.3
    assert method.local_loss(module, batch).item() == pytest.approx(plain.item() + penalty, rel=1e-5)


@pytest.mark.parametrize("kind", [RecurrentArchitecture, Elman])
def test_recurrent_layers_are_composed_and_deployed_plain(kind):
    architecture = kind("cnn-digits", (5, 6), 3)
    method = create("flanc", {"share": 0.5}, tiers=(1.0, 0.5))
    tiers = (Tier(1.0), Tier(0.5))
    method.check(architecture, tiers, 2)
    state = method.init(architecture, tiers, generator(0, "init"))
    assert "rnn.basis_hh_l1_reverse" in state.tensors
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5, 6))).float()
    for tier in tiers:
        module, plain = loaded(method, state, tier), method.deploy(state, tier)
        assert isinstance(plain.rnn, architecture.kind)
        assert {n: t.shape for n, t in plain.state_dict().items()} == {
            n: t.shape for n, t in architecture.build(tier.ratio).state_dict().items()
        }
        torch.testing.assert_close(module(x), plain(x), rtol=1e-5, atol=1e-6)
        method.local_loss(module, Batch(x, torch.tensor([0, 1, 2]))).backward()
        assert all(p.grad is not None and bool(p.grad.any()) for n, p in module.named_parameters() if "bias" not in n)
    cost = tier_cost(method, architecture, tiers[1], Training(1, 32))
    assert cost.macs_compose > 0
    assert not cost.uncounted_ops


def test_costs_are_those_of_the_plain_width_and_composition_beside_them():
    method, training = create("flanc", tiers=(1.0, 0.5, 0.25)), Training(1, 32)
    for tier in TIERS:
        cost = tier_cost(method, DIGITS, tier, training)
        plain = tier_cost(create("fedavg", tiers=(tier.ratio,)), DIGITS, tier, training)
        assert cost.macs_forward == plain.macs_forward
        assert cost.macs_backward == plain.macs_backward
        assert plain.macs_compose == 0
        # W = V·U and its two gradients, and V·Vᵀ and its gradient twice over.
        products = grams = 0
        for layer in composed_layers(method.network(DIGITS, tier)).values():
            (outputs, fragments, r2), length = layer.coefficients.shape, layer.basis[0].numel()
            products += 3 * outputs * fragments * r2 * length
            grams += 3 * r2 * r2 * length
        assert cost.macs_compose == products + grams


def test_a_layer_whose_channels_have_no_common_divisor_may_have_bases_of_one_channel():
    tiers, arguments = (Tier(1.0), Tier(0.08)), {"tiers": (1.0, 0.08)}
    with pytest.raises(ConfigError, match=r'or accept R1 = 1: method_options\.basis_channels = \{"conv2" = 1\}'):
        create("flanc", **arguments).check(DIGITS, tiers, 3)
    create("flanc", {"basis_channels": {"conv2": 1, "conv3": 1}}, **arguments).check(DIGITS, tiers, 3)


@pytest.mark.parametrize(
    ("options", "tiers", "message"),
    [
        (
            {},
            (1.0, 0.08),
            "layer conv2: its 32, 3 input channels at the run's widths have no common divisor for R1; choose widths",
        ),
        (
            {"basis_channels": {"conv2": 16}},
            (1.0, 0.25),
            "layer conv2: R1 = 16 does not divide 8 input channels; 32, 8 are needed",
        ),
        (
            {"basis_count": {"conv2": 40}},
            (1.0, 0.25),
            "layer conv2: R2 = 40 bases of 9x4 numbers cannot be orthonormal; expected 1 to 36",
        ),
        (
            {"basis_count": {"conf2": 4}},
            (1.0,),
            "method_options.basis_count: there is no layer 'conf2'; did you mean 'conv2'? known",
        ),
        (
            {"basis_count": {"fc": 4}},
            (1.0,),
            "method_options.basis_count: there is no layer 'fc'; known: conv2, conv3",
        ),
        (
            {"share": 0.01, "bases": 0.1},
            (1.0, 0.25),
            "FLANC finds no layer with more than one basis vector: all are small, the stem, grouped, the classifier, or kept dense",
        ),
    ],
)
def test_what_cannot_be_composed_is_refused_before_training(options, tiers, message):
    method = create("flanc", options, tiers=tiers)
    with pytest.raises(ConfigError) as error:
        method.check(DIGITS, tuple(map(Tier, tiers)), 4)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("orthogonality", -1.0),
        ("share", 0.0),
        ("bases", 0.0),
        ("basis_channels", {"conv2": 0}),
        ("composed", "some"),
        ("penalty", "max"),
    ],
)
def test_options_out_of_range_are_named(key, value):
    with pytest.raises(ConfigError, match=f"method_options.{key}"):
        create("flanc", {key: value})


def test_a_tier_that_nobody_trained_keeps_all_that_is_its_own():
    method = create("flanc", tiers=(1.0, 0.5, 0.25))
    state = method.init(DIGITS, TIERS, generator(0, "init"))
    submodel = method.submodel(state, TIERS[1], generator(0, "s"))
    update = Update(0, TIERS[1], {n: t + 1 for n, t in submodel.tensors.items()}, submodel.places, 3)
    after = method.aggregate(state, [update]).tensors
    for name, before in state.tensors.items():
        own = name.endswith(".basis") or name.endswith("@0.5")
        assert torch.allclose(after[name], before + 1) if own else torch.equal(after[name], before), name


def test_costs_of_a_width_that_is_no_tier_can_be_asked_for():
    method = create("flanc", tiers=(0.5, 0.25))
    assert tier_cost(method, DIGITS, Tier(1.0), Training(1, 32)).params > 0
    state = method.init(DIGITS, TIERS[1:], generator(0, "init"))
    assert global_tier(method, state) == Tier(0.5)


def test_a_weight_of_one_basis_vector_stays_dense():
    """An embedding of 8 has R₁ = 1, and so no basis; a user may still ask for one."""
    architecture = Architecture("rnn-shakespeare", (80,), 80)
    sizes = create("flanc", tiers=(1.0, 0.25)).sizes(architecture, Tier(1.0))
    assert {name: list(of) for name, of in sizes.items()} == {"rnn": ["weight_hh_l0"]}
    asked = create("flanc", {"basis_channels": {"rnn.weight_ih_l0": 2}}, tiers=(1.0, 0.25)).sizes(architecture, Tier(1.0))
    assert sorted(asked["rnn"]) == ["weight_hh_l0", "weight_ih_l0"]


class Pointwise(nn.Module):
    """A stem, depthwise and 1×1 convolutions, and the classifier: all that a network for keywords has."""

    def __init__(self, between: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.stem, self.depth, self.point = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 32, 3, groups=32), nn.Conv2d(32, 32, 1)
        self.between = nn.Sequential(*(nn.Linear(size, 32) for size in between))
        self.fc = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.between(self.point(self.depth(self.stem(x)).relu()).relu().mean((2, 3))))


def of_points(*between: int) -> CustomArchitecture:
    return CustomArchitecture("points", classes=4, factory=lambda: Pointwise(between), inputs={"": InputSpec((1, 8, 8))})


def test_1x1_convolutions_are_composed_if_nothing_else_can_be():
    method, tiers = create("flanc", tiers=(1.0, 0.5)), TIERS[:2]
    method.check(of_points(), tiers, 2)
    assert method.sizes(of_points(), tiers[0]) == {"point": {"weight": BasisSize(4, 2)}}
    assert list(method.sizes(of_points(32), tiers[0])) == ["between.0"]
    state = method.init(of_points(), tiers, generator(0, "init"))
    for tier in tiers:
        trained, x = loaded(method, state, tier), torch.randn(2, 1, 8, 8)
        torch.testing.assert_close(method.deploy(state, tier)(x), trained(x))
        cost = tier_cost(method, of_points(), tier, Training(1, 32))
        assert cost.macs_compose
        assert cost.params == sum(p.numel() for p in trained.parameters())
    with pytest.raises(ConfigError, match=r"basis_count: there is no layer 'points'; did you mean 'point'"):
        create("flanc", {"basis_count": {"points": 2}}, tiers=(1.0, 0.5)).check(of_points(), tiers, 2)
