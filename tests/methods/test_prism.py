"""PriSM, OrthDrop and OrigDrop: drawing kernels, what they are cut from, recurrent layers, and bad input."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from edgefl.client.training import Training
from edgefl.errors import ConfigError
from edgefl.factor.kernels import (
    KernelConv2d,
    KernelLayer,
    KernelLinear,
    draw,
    effective_rank,
    importance,
    kept_kernels,
    kernel_layer,
    kernels_of,
)
from edgefl.factor.layers import LowRank, frobenius_sq, low_rank_layers
from edgefl.factor.svd import factorize
from edgefl.methods.create import create
from edgefl.models.base import Architecture, scaled
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator

CNN = Architecture("cnn-digits", (1, 8, 8), 4)
TRAINING = Training(epochs=1, batch_size=8, lr=0.05, momentum=0.9, weight_decay=1e-4)


def weights(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


class Recurrent(nn.Module):
    """Tokens to an embedding, two LSTM layers and a classifier: Table 8 in small."""

    def __init__(self, width: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, scaled(6, width))
        self.lstm = nn.LSTM(scaled(6, width), scaled(10, width), num_layers=2, batch_first=True)
        self.fc = nn.Linear(scaled(10, width), 3)

    def forward(self, x):
        return self.fc(self.lstm(self.embedding(x))[0][:, -1])


@dataclass(frozen=True)
class RecurrentArchitecture(Architecture):
    def build(self, width: float = 1.0) -> nn.Module:
        return Recurrent(width)

    def samples(self, count: int):
        return torch.zeros(count, *self.input_shape, dtype=torch.int64)


TEXT = RecurrentArchitecture("mlp", (7,), 3)


def first_state(method, architecture, *keeps):
    return method.init(architecture, tuple(map(Tier, keeps)), generator(0, "init"))


def loaded(submodel):
    module = submodel.build()
    module.load_state_dict(submodel.tensors)
    return module


def moved(method, state, keep, client, by=0.1):
    """A client's update: what it was sent, every entry scaled by its own factor."""
    sent = method.submodel(state, Tier(keep), generator(client, "submodel"), client)
    rng = np.random.default_rng(client)
    tensors = {n: t * torch.from_numpy(1 + by * rng.standard_normal(tuple(t.shape))).float() for n, t in sent.tensors.items()}
    return Update(client, Tier(keep), tensors, sent.places, 5)


# Drawing.


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


# Layers.


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_two_small_convolutions_compute_the_sum_of_their_kernels(stride, bias):
    dense = nn.Conv2d(3, 5, 3, stride, 1, bias=bias)
    small = KernelConv2d(dense, 4)
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
    decayed = set(method.decayed(module))
    left = {name for name, p in module.named_parameters() if p not in decayed}
    assert left == {f"conv{i}.{f}.weight" for i in (2, 3) for f in "uv"}


# Sub-models and the server.


@pytest.mark.parametrize("architecture", [CNN, TEXT], ids=["cnn", "lstm"])
@pytest.mark.parametrize("keep", [0.2, 0.4, 0.7])
def test_a_submodel_with_all_of_its_kernels_is_the_leading_slice_of_the_network(architecture, keep):
    """The factors are cut from the full decomposition: at rank N they multiply out to the slice of the weights itself."""
    method = create("prism")
    state = first_state(method, architecture, keep)
    tier = Tier(keep)
    narrow = architecture.skeleton(keep).state_dict()
    for layer in method._kernel_layers(state, tier):
        block = state.tensors[layer.target][layer.span]
        expected = block[layer.rows][:, layer.columns]
        found = layer.composed(method._factors(state, layer), torch.arange(kernels_of(layer.shape)))
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
        assert len(layer.rows) * (len(narrow[layer.target]) // len(layer.rows)) == len(narrow[layer.target])
        assert layer.rows.tolist() == list(range(len(layer.rows))), "the first channels, of every gate"
        assert layer.count == int(np.ceil(keep * kernels_of(layer.shape) - 1e-9))


@pytest.mark.parametrize("architecture", [CNN, TEXT], ids=["cnn", "lstm"])
@pytest.mark.parametrize("keeps", [(1.0,), (1.0, 0.4), (0.4, 0.2)])
def test_unchanged_clients_give_back_the_very_weights(architecture, keeps):
    method = create("prism")
    state = first_state(method, architecture, *keeps)
    after = method.aggregate(state, [moved(method, state, keep, client, by=0.0) for client, keep in enumerate(keeps * 3)])
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in state.tensors.items())


@pytest.mark.parametrize("architecture", [CNN, TEXT], ids=["cnn", "lstm"])
def test_one_client_with_all_kernels_alone_wins_outright(architecture):
    method = create("prism")
    state = first_state(method, architecture, 1.0)
    update = moved(method, state, 1.0, 3)
    module = method.network(architecture, Tier(1.0)).eval()
    module.load_state_dict(update.tensors)
    after = method.deploy(method.aggregate(state, [update]), Tier(1.0))
    x = weights(5, 1, 8, 8) if architecture is CNN else torch.arange(35).view(5, 7) % 11
    with torch.no_grad():
        torch.testing.assert_close(after(x), module(x), atol=1e-5, rtol=1e-4)


def test_kernels_that_nobody_drew_stay_and_the_drawn_ones_are_averaged_by_their_own_count():
    method = create("prism", {"sampling": "uniform"})
    state = first_state(method, CNN, 0.2)
    updates = [moved(method, state, 0.2, client) for client in range(3)]
    after = method.aggregate(state, updates)
    (layer, *_) = method._kernel_layers(state, Tier(0.2))
    factors = method._factors(state, layer)
    before = layer.right(factors).double()
    total = torch.zeros(64, before[0].numel(), dtype=torch.float64)
    drawn = [update.places[layer.u].index[0].flatten().tolist() for update in updates]
    assert len({i for of in drawn for i in of}) < len(before), "some kernel must be nobody's"
    for i in range(len(before)):
        u, v = factors.left[:, i].double().clone(), before[i].clone()
        of = [(update, kernels.index(i)) for update, kernels in zip(updates, drawn, strict=True) if i in kernels]
        if of:
            u[layer.rows] = sum(update.tensors[layer.u][:, at, 0, 0].double() for update, at in of) / len(of)
            v[layer.columns] = sum(update.tensors[layer.v][at].double() for update, at in of) / len(of)
        total += torch.outer(u, v.flatten())
    torch.testing.assert_close(after.tensors[layer.target].double().flatten(1), total, atol=2e-6, rtol=1e-5)


def test_the_round_is_described_by_ranks_and_draws():
    method = create("prism")
    state = first_state(method, CNN, 0.4, 0.2)
    sent = [method.submodel(state, Tier(keep), generator(c), c) for c, keep in enumerate((0.4, 0.2, 0.2))]
    observed = json.loads(json.dumps(method.observe(state, sent)))["kernels"]
    assert set(observed) == {"conv2.weight", "conv3.weight"}
    for name, facts in observed.items():
        sigma = factorize(state.tensors[name].flatten(1), 64).values
        assert facts["effective_rank"] == pytest.approx(effective_rank(sigma), abs=1e-3)
        assert len(facts["draws"]) == 64
        assert sum(facts["draws"]) == 26 + 13 + 13
        assert max(facts["draws"]) <= 3
    assert method.observe(state, [])["kernels"]["conv2.weight"]["draws"] == [0] * 64


def test_clients_and_rounds_draw_anew():
    method = create("prism")
    state = first_state(method, CNN, 0.4)

    def kernels(*key):
        return method.submodel(state, Tier(0.4), generator(0, *key), 0).places["conv2.u.weight"].index[0].flatten().tolist()

    assert kernels(1, 1) == kernels(1, 1)
    assert len({tuple(kernels(round_, client)) for round_ in range(3) for client in range(3)}) == 9


def test_a_warm_up_sends_the_first_kernels_to_everyone_and_ends():
    method = create("prism", {"warmup_rounds": 2, "sampling": "uniform"})
    state = first_state(method, CNN, 0.4)

    def kernels(method, round_, client):
        sent = method.submodel(state, Tier(0.4), generator(0, round_, client), client)
        return sent.places["conv2.u.weight"].index[0].flatten().tolist()

    warming, same = method.advance(state, 1)
    assert same is state
    assert warming.config.model_dump() == {**method.config.model_dump(), "warming_up": True}
    assert all(kernels(warming, round_, client) == list(range(26)) for round_ in (1, 2) for client in range(3))
    assert warming.advance(state, 2) == (warming, state)
    # A resumed run creates the method from the options of the checkpoint, here that of round 2.
    after, _ = create("prism", warming.config.model_dump()).advance(state, 3)
    assert after == method
    assert after.advance(state, 4) == (after, state)
    assert kernels(after, 3, 0) == kernels(create("prism", {"sampling": "uniform"}), 3, 0) != list(range(26))


def test_outputs_are_those_of_convolutions_below_keep_ratio_1():
    method = create("prism", {"outputs": 0.4})
    whole, small = (method.shapes(CNN, Tier(keep)) for keep in (1.0, 0.2))
    assert whole == create("prism").shapes(CNN, Tier(1.0))
    assert small["conv3.first.u.weight"] == (26, 13, 1, 1)
    assert small["conv3.first.v.weight"] == (13, 64, 3, 3)
    assert (small["conv1.weight"], small["norm3.bias"]) == (whole["conv1.weight"], whole["norm3.bias"])
    assert create("prism", {"outputs": 1.0}).shapes(CNN, Tier(0.2)) == create("orthdrop").shapes(CNN, Tier(0.2))
    text = first_state(method, TEXT, 0.5)
    sent = method.submodel(text, Tier(0.5), generator(0), 0)
    assert sent.tensors["lstm.weight_hh_l0.3.u"].shape == (10, 5), "a recurrent layer computes all outputs"
    assert sent.tensors["lstm.weight_hh_l0.3.v"].shape == (5, 10)


# Recurrent layers.


def test_a_recurrent_layer_has_its_own_kernels_for_every_gate():
    method, state = create("prism"), first_state(create("prism"), TEXT, 0.5)
    sent = method.submodel(state, Tier(0.5), generator(0), 0)
    module = loaded(sent)
    assert module(torch.zeros(2, 7, dtype=torch.int64)).shape == (2, 3)
    # 10 hidden units and 6 inputs: 6 kernels of a gate's first matrix and 10 of the others, half of each; the first 5 units of every gate.
    for name, inputs, count in (("weight_ih_l0", 3, 3), ("weight_hh_l0", 5, 5), ("weight_ih_l1", 5, 5)):
        for gate in range(4):
            assert sent.tensors[f"lstm.{name}.{gate}.u"].shape == (5, count)
            assert sent.tensors[f"lstm.{name}.{gate}.v"].shape == (count, inputs)
    drawn = {tuple(sent.places[f"lstm.weight_hh_l0.{gate}.u"].index[0].flatten().tolist()) for gate in range(4)}
    assert len(drawn) > 1
    units = [g * 10 + i for g in range(4) for i in range(5)]
    assert torch.equal(sent.tensors["lstm.bias_ih_l0"], state.tensors["lstm.bias_ih_l0"][units])


def test_a_recurrent_tier_runs_on_its_own_small_hidden_state_and_learns():
    method = create("prism")
    costs = [tier_cost(method, TEXT, Tier(keep), TRAINING) for keep in (0.8, 0.4, 0.2)]
    for larger, smaller in pairwise(costs):
        assert larger.macs_forward > smaller.macs_forward
        assert larger.peak_activation_bytes_training > smaller.peak_activation_bytes_training
        assert larger.params > smaller.params
    assert not any(cost.uncounted_ops for cost in costs)
    state = first_state(method, TEXT, 0.5)
    module = loaded(method.submodel(state, Tier(0.5), generator(0), 0)).train()
    x, y = torch.arange(84).view(12, 7) % 11, torch.arange(12) % 3
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = method.local_loss(module, Batch(x, y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in module.parameters())


def test_a_recurrent_tier_deploys_as_the_plain_network_of_its_width():
    method = create("prism")
    state = first_state(method, TEXT, 0.4)
    network = method.deploy(state, Tier(0.4))
    assert type(network.lstm) is nn.LSTM
    assert network.lstm.hidden_size == 4
    weight = state.tensors["lstm.weight_hh_l0"]
    for gate in range(4):
        u, s, vh = np.linalg.svd(weight[10 * gate : 10 * gate + 10].double().numpy())
        expected = ((u[:, :4] * s[:4]) @ vh[:4])[:4, :4]
        found = network.lstm.weight_hh_l0[4 * gate : 4 * gate + 4].detach().numpy()
        np.testing.assert_allclose(found, expected, atol=1e-5)


# The rivals.


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
    assert method.global_tier(state) == Tier(0.4)
    assert {n: tuple(t.shape) for n, t in state.tensors.items()} == method.shapes(CNN, Tier(0.4))


# Bad input.


def test_more_kernels_than_there_are_or_none_are_refused_with_layer_and_numbers():
    p = importance(torch.ones(4), "uniform", 1.0)
    for count in (0, 5, -1):
        with pytest.raises(ConfigError, match=rf"layer conv2: {count} kernels were to be drawn of 4; expected 1 to 4"):
            draw("conv2", p, count, np.random.default_rng(0))
    for keep, count in ((1.5, 6), (0.0, 0), (-0.5, -2), (float("nan"), -1)):
        with pytest.raises(ConfigError, match=rf"layer conv2: keep ratio {keep:g} of 4 principal kernels is {count} of them"):
            kept_kernels("conv2", keep, 4)


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
