"""Factorized-FL: its weights, the penalty, who is matched with whom, what travels, and what the server remembers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from edgefl.client.training import Training
from edgefl.errors import ConfigError, EdgeflError
from edgefl.factor.rank1 import (
    RankOneConv,
    RankOneLinear,
    compose,
    cosines,
    factor_sizes,
    fill,
    first_factors,
    matching_weights,
    prune,
    rank_one,
)
from edgefl.methods.capabilities import misfit
from edgefl.methods.create import create
from edgefl.methods.losses import cross_entropy
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator, torch_seeded
from edgefl.wire.payload import encode

CNN = Architecture("cnn-digits", (1, 8, 8), 4)
MLP = Architecture("mlp", (1, 8, 8), 4)
TIER = Tier(1.0)
NAMES = ("factorized-fl", "factorized-fl-beta")


def random(shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).float()


@pytest.mark.parametrize(
    "dense",
    [
        nn.Linear(5, 3),
        nn.Conv2d(4, 6, 3, stride=2, padding=1, bias=False),
        nn.Conv2d(4, 6, (1, 3), padding="same"),
        nn.Conv2d(4, 6, 3, dilation=2, groups=2),
        nn.Conv2d(4, 6, (3, 4), padding=(2, 1), padding_mode="reflect"),
        nn.Conv2d(4, 6, (3, 4), padding="same", padding_mode="circular"),
        nn.Conv2d(4, 6, 1),
    ],
)
def test_a_layer_computes_what_the_dense_layer_of_its_composed_weight_computes(dense):
    layer = rank_one(dense)
    for number, name in enumerate(("u", "v", "mu")):
        parameter = getattr(layer, name)
        parameter.data = random(tuple(parameter.shape), number)
    u, v, mu = layer.u.detach(), layer.v.detach(), layer.mu.detach()
    dense.weight.data = compose(u, v, mu)
    x = random((2, 5) if isinstance(dense, nn.Linear) else (2, 4, 9, 9), 7)
    torch.testing.assert_close(layer(x), dense(x))
    kernel = math.prod(dense.weight.shape[2:])
    for index in np.ndindex(tuple(mu.shape)):
        channel = index[0] * mu.shape[1] + index[1]
        rest = int(np.ravel_multi_index(index[2:], mu.shape[2:])) if len(index) > 2 else 0
        product = u[rest] * v[channel] if kernel > 1 else u[index[1]] * v[index[0]]
        assert float(dense.weight.detach()[index]) == pytest.approx(float(product + mu[index]), rel=1e-5, abs=1e-6)


@given(st.sampled_from([(3, 2, 3, 3), (5, 7), (4, 4, 1, 1), (2, 3, 1, 5), (1, 1, 3, 3), (6, 1)]), st.integers(0, 100))
def test_first_factors_keep_the_size_of_the_dense_weight_and_are_balanced(shape, seed):
    weight = random(shape, seed)
    u, v = first_factors(weight, "dense")
    assert (u.numel(), v.numel()) == factor_sizes(shape)
    size = float(weight.norm())
    assert float(u.norm()) == pytest.approx(size**0.5, rel=1e-4)
    assert float(v.norm()) == pytest.approx(size**0.5, rel=1e-4)
    composed = compose(u, v, torch.zeros(shape))
    # In the direction of the leading pair, the product with the weight is the largest singular value.
    matrix = weight.reshape(v.numel(), u.numel()).double()
    assert float((composed.double() * weight.double()).sum()) / size == pytest.approx(
        float(torch.linalg.matrix_norm(matrix, 2)), rel=1e-3
    )


@pytest.mark.parametrize("dense", [nn.Conv2d(4, 6, 3), nn.Conv2d(2, 4, (1, 3), groups=2), nn.Conv2d(4, 6, 1), nn.Linear(5, 3)])
def test_a_flat_layer_has_the_values_of_the_product_row_after_row(dense):
    layer = rank_one(dense, flat=True)
    for number, name in enumerate(("u", "v", "mu")):
        getattr(layer, name).data = random(tuple(getattr(layer, name).shape), number)
    u, v, mu = (getattr(layer, name).detach().numpy() for name in ("u", "v", "mu"))
    product = np.outer(u, v).ravel().reshape(mu.shape) if dense.weight[0, 0].numel() > 1 else np.outer(v, u).reshape(mu.shape)
    np.testing.assert_allclose(layer.weight().detach().numpy(), product + mu, rtol=1e-5, atol=1e-6)
    # Its first factors are the leading pair of the same matrix.
    u, v = first_factors(product := torch.from_numpy(product), "dense", layer.flat)
    torch.testing.assert_close(compose(u, v, torch.zeros_like(product), layer.flat), product, rtol=1e-3, atol=1e-4)


def test_filters_of_a_flat_layer_differ_in_shape():
    """One input channel: by the text every filter is a multiple of u; flat ones span all nine dimensions."""
    ranks = []
    for flat in (False, True):
        layer = rank_one(nn.Conv2d(1, 32, 3), flat)
        with torch_seeded(np.random.default_rng(0)):
            fill(layer, layer.mu, "xavier")
        ranks.append(int(torch.linalg.matrix_rank(layer.weight().detach().view(32, 9))))
    assert ranks == [1, 9]


def test_a_weight_of_zeros_has_factors_of_zeros():
    assert all(not part.any() for part in first_factors(torch.zeros(3, 2, 3, 3), "dense"))


@given(st.sampled_from([(64, 32, 3, 3), (40, 60), (8, 4, 1, 1), (6, 3, 5, 5)]), st.integers(0, 100))
def test_xavier_factors_are_within_its_bounds_whatever_the_weight(shape, seed):
    """±√(6 / (fan in + fan out)) for u as (a, 1) and v as (1, b)."""
    with torch_seeded(np.random.default_rng(seed)):
        u, v = first_factors(torch.zeros(shape), "xavier")
    assert (u.numel(), v.numel()) == factor_sizes(shape)
    for part in (u, v):
        bound = math.sqrt(6 / (1 + part.numel()))
        assert bool((part.abs() <= bound).all())
        assert part.numel() < 40 or part.min() < -0.5 * bound < 0.5 * bound < part.max()
    with torch_seeded(np.random.default_rng(seed)):
        again = first_factors(torch.ones(shape), "xavier")
    assert torch.equal(u, again[0])
    assert torch.equal(v, again[1])


@pytest.mark.parametrize(("init", "size"), [("xavier", 1.9), ("dense", math.sqrt(2 * 64))])
def test_the_size_of_the_first_weights(init, size):
    """‖u vᵀ‖ of a convolution from 64 to 64 channels: ≈ 1.9 by Xavier, and the norm of the dense weight, √(2n) ≈ 11, by He's."""
    weight = nn.init.kaiming_normal_(torch.empty(64, 64, 3, 3), nonlinearity="relu", generator=torch.Generator().manual_seed(1))
    norms = []
    for seed in range(40):
        with torch_seeded(np.random.default_rng(seed)):
            u, v = first_factors(weight, init)
        norms.append(float(u.norm() * v.norm()))
    assert np.mean(norms) == pytest.approx(size, rel=0.03)


@pytest.mark.parametrize("init", ["xavier", "dense"])
def test_filling_leaves_mu_at_zero(init):
    dense = nn.Conv2d(3, 4, 3)
    layer = rank_one(dense)
    fill(layer, dense.weight, init)
    assert not layer.mu.any()
    assert layer.u.any()
    assert torch.equal(layer.bias, dense.bias)


def test_clients_below_the_threshold_are_left_out_and_the_own_similarity_is_one():
    sigma = torch.tensor([0.3, 1.0, 0.5, -0.9], dtype=torch.float64)
    weights = matching_weights(sigma, 1, 0.5, 4.0)
    expected = np.array([0, math.exp(4), math.exp(2), 0])
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum())
    # Whoever resembles nobody, itself included, is still its own.
    assert matching_weights(torch.zeros(3), 2, 0.5, 1.0).tolist() == [0, 0, 1]
    with pytest.raises(EdgeflError, match="position 3 of 3 similarities; expected 0 to 2"):
        matching_weights(torch.zeros(3), 3, 0.5, 1.0)


def test_a_similarity_exactly_at_the_threshold_counts():
    """Eq. 4: σ ≥ τ."""
    assert matching_weights(torch.tensor([1.0, 0.5]), 0, 0.5, 0.0).tolist() == [0.5, 0.5]


def test_as_many_clients_as_asked_are_averaged_the_most_similar_ones():
    sigma = torch.tensor([0.3, 1.0, -0.2, 0.5, -0.9, 0.5], dtype=torch.float64)
    counted = [np.flatnonzero(matching_weights(sigma, 1, 0.4, 1.0, least)).tolist() for least in range(7)]
    # Beyond the three at or above τ: 0.3, then −0.2, then −0.9.
    assert counted == [[1, 3, 5]] * 4 + [[0, 1, 3, 5], [0, 1, 2, 3, 5], [0, 1, 2, 3, 4, 5]]
    weights = matching_weights(sigma, 1, 0.4, 2.0, 4)
    expected = np.array([math.exp(0.6), math.exp(2), 0, math.exp(1), 0, math.exp(1)])
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum())
    # Of two that are equally similar the first counts; the client itself always does.
    assert np.flatnonzero(matching_weights(sigma, 4, 2.0, 1.0, 3)).tolist() == [1, 3, 4]


@pytest.mark.parametrize(
    ("scenario", "tau", "epsilon", "least"), [("alike", 0, 1, 20), ("permuted", 0, 1, 10), ("domains", 0.95, 20, 4)]
)
def test_matching_of_the_authors_by_scenario(scenario, tau, epsilon, least):
    """Their code's tau, alpha and minimum_aggr for 20 clients, all of which take part in every round."""
    method = create("factorized-fl", scenario=scenario)
    rng = np.random.default_rng(1)
    common = 0.4 * rng.standard_normal(4096)
    state = method.init(CNN, (TIER,), generator(0, "init"))
    updates = []
    for client in range(20):
        tensors = {name: random(shape, client) for name, shape in upload_shapes(method, CNN, TIER).items()}
        v = (1 if client < 7 else -1) * common + rng.standard_normal(4096)
        updates.append(Update(client, TIER, {**tensors, "conv3.v": torch.from_numpy(v).float()}, {}, 1))
    after = method.aggregate(state, updates)
    vs = [update.tensors["conv3.v"].double().numpy() for update in updates]
    for client in (0, 12):
        sigma = np.array([v @ vs[client] / np.sqrt((v @ v) * (vs[client] @ vs[client])) for v in vs])
        order = np.argsort(-sigma)
        chosen = order[: max(int((sigma >= tau).sum()), least)]
        weights = np.exp(epsilon * sigma[chosen])
        expected = sum(
            w / weights.sum() * updates[c].tensors["conv1.u"].double().numpy() for w, c in zip(weights, chosen, strict=True)
        )
        found = method.submodel(after, TIER, generator(0), client).tensors["conv1.u"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-6)
    counts = {"alike": 20, "permuted": (7 * 10 + 13 * 13) / 20, "domains": 4}
    assert method.observe(after, [])["matched_clients"] == pytest.approx(counts[scenario])


def test_options_of_ones_own_replace_those_of_the_scenario_and_a_threshold_alone_is_equation_4():
    matching = create("factorized-fl", {"threshold": 0.3}, scenario="alike").config.matching()
    assert (matching.threshold, matching.scale, matching.least_share) == (0.3, 1.0, 0.0)
    matching = create("factorized-fl", {"scale": 5.0, "least_share": 0.1}, scenario="domains").config.matching()
    assert (matching.threshold, matching.scale, matching.least_share) == (0.95, 5.0, 0.1)
    stored = create("factorized-fl", create("factorized-fl", scenario="permuted").config.model_dump(mode="json"))
    assert stored.config.scenario == "permuted"


def test_cosines_of_parallel_opposite_and_zero_vectors():
    found = cosines(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found.numpy(), [[1, 1, -1, 0], [1, 1, -1, 0], [-1, -1, 1, 0], [0, 0, 0, 1]], atol=1e-12)


def test_the_penalty_has_a_gradient():
    """λ·sign(μ) on top of the loss's own, in every layer; none where μ is zero."""
    method, plain = create("factorized-fl", {"penalty": 0.3}), create("factorized-fl", {"penalty": 0.0})
    module = method.network(CNN, TIER)
    for number, parameter in enumerate(module.parameters()):
        parameter.data = random(tuple(parameter.shape), number)
    module.conv2.mu.data[0] = 0
    batch = Batch(random((3, 1, 8, 8), 50), torch.tensor([0, 3, 1]))
    found = {}
    for which in (method, plain):
        module.zero_grad()
        which.local_loss(module, batch).backward()
        found[which] = {name: p.grad.clone() for name, p in module.named_parameters()}
    for name, parameter in module.named_parameters():
        expected = 0.3 * torch.sign(parameter) if name.endswith(".mu") else torch.zeros_like(parameter)
        torch.testing.assert_close(found[method][name] - found[plain][name], expected.detach(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_by_default_mu_is_pruned_and_no_penalty_is_trained(name):
    """As in the authors' code: the penalty comes from detached tensors, and small entries are dropped when a network is evaluated."""
    method = create(name, {"sparsity": 0.5})
    module = method.network(CNN, TIER)
    module.conv2.mu.data = random(tuple(module.conv2.mu.shape))
    batch = Batch(random((3, 1, 8, 8), 50), torch.tensor([0, 3, 1]))
    assert list(method.penalties(module)) == []
    assert torch.equal(method.local_loss(module, batch), cross_entropy(module(batch.x), batch))
    state = method.init(CNN, (TIER,), generator(0, "init"))
    network = method.factored(state, TIER, {"conv2.mu": module.conv2.mu.data}, 0)
    assert torch.equal(network.conv2.mu, prune(module.conv2.mu.data, 0.5))
    assert network.conv2.flat, "the code fills a kernel's weight row after row"


def answered(method, architecture=CNN, clients=(0, 1, 2), seed=0):
    """A state after a round in which each client answered with numbers of its own."""
    state = method.init(architecture, (TIER,), generator(seed, "init"))
    shapes = upload_shapes(method, architecture, TIER)
    updates = []
    for client in clients:
        tensors = {name: random(shape, 31 * client + i) for i, (name, shape) in enumerate(shapes.items())}
        updates.append(Update(client, TIER, tensors, method.submodel(state, TIER, generator(0), client).places, 3 + client))
    return state, method.aggregate(state, updates), updates


@pytest.mark.parametrize("name", NAMES)
def test_serving_a_client_changes_nothing_and_the_order_of_clients_does_not_matter(name):
    method = create(name, {"threshold": -1.0, "scale": 2.0})
    _, state, _ = answered(method)
    before = {n: t.clone() for n, t in state.tensors.items()}
    forth = {c: method.submodel(state, TIER, generator(0), c).tensors for c in (0, 1, 2)}
    state = state.replace(state.tensors)
    back = {c: method.submodel(state, TIER, generator(1), c).tensors for c in (2, 1, 0)}
    for client in forth:
        for n, tensor in forth[client].items():
            assert torch.equal(tensor, back[client][n])
            tensor.zero_()
    assert all(torch.equal(state.tensors[n], tensor) for n, tensor in before.items())
    assert not torch.equal(back[0]["conv1.u"], back[1]["conv1.u"])


@pytest.mark.parametrize("name", NAMES)
def test_everyone_begins_with_the_same_factors_and_a_newcomer_has_the_mean(name):
    method = create(name)
    first, state, updates = answered(method)
    for client in (0, 5, None):
        sent = method.submodel(first, TIER, generator(0), client).tensors
        assert all(torch.equal(tensor, first.tensors[n]) for n, tensor in sent.items())
    mean = method.submodel(state, TIER, generator(0), 77).tensors
    for n, tensor in mean.items():
        expected = sum((3 + u.client) * u.tensors[n].double() for u in updates) / sum(3 + u.client for u in updates)
        torch.testing.assert_close(tensor.double(), expected, rtol=1e-5, atol=1e-6)
    personal = method.first_personal(CNN, TIER, generator(0, "init"))
    assert personal.keys() == method.personal(method.network(CNN, TIER))
    assert all(torch.equal(tensor, first.tensors[n]) for n, tensor in personal.items())


def test_what_travels():
    own = {"personal_classifier": True}
    plain, beta = create("factorized-fl", own), create("factorized-fl-beta", own)
    assert download_shapes(plain, CNN, TIER) == {"conv1.u": (9,), "conv2.u": (9,), "conv3.u": (9,)}
    assert upload_shapes(plain, CNN, TIER) == {**download_shapes(plain, CNN, TIER), "conv3.v": (64 * 64,)}
    whole = create("factorized-fl")
    assert download_shapes(whole, CNN, TIER) == {**download_shapes(plain, CNN, TIER), "fc.u": (1024,)}
    travels = download_shapes(beta, CNN, TIER)
    assert travels == upload_shapes(beta, CNN, TIER)
    assert beta.personal(beta.network(CNN, TIER)) == {"fc.u", "fc.v", "fc.mu", "fc.bias"}
    assert {"conv2.mu", "conv2.v", "norm2.weight"} <= travels.keys()
    for method in (plain, beta):
        module = method.network(CNN, TIER)
        assert method.upload(module).keys() == upload_shapes(method, CNN, TIER).keys()
        assert method.keep(module).keys() == method.personal(module)


def test_beta_sends_mu_pruned_which_the_sparse_codec_shortens():
    method = create("factorized-fl-beta", {"sparsity": 0.5})
    module = method.network(CNN, TIER)
    module.conv2.mu.data = random(tuple(module.conv2.mu.shape))
    sent = method.upload(module)
    assert torch.equal(sent["conv2.mu"], prune(module.conv2.mu.data, 0.5))
    assert 0.3 < float((sent["conv2.mu"] == 0).float().mean()) < 0.45
    assert module.conv2.mu.abs().min().item() < 0.5, "the client's own μ is not pruned while it trains"
    assert len(encode(sent, "sparse")) < len(encode(sent))


def test_similar_clients_are_averaged_and_others_left_out():
    method = create("factorized-fl", {"threshold": 0.9, "scale": 0.0})
    state = method.init(CNN, (TIER,), generator(0, "init"))
    direction, updates = random((4096,)), []
    for client, v in enumerate((direction, 2 * direction, -direction)):
        tensors = {name: torch.full(shape, float(client)) for name, shape in download_shapes(method, CNN, TIER).items()}
        updates.append(Update(client, TIER, {**tensors, "conv3.v": v}, {}, 1))
    after = method.aggregate(state, updates)
    found = [float(method.submodel(after, TIER, generator(0), client).tensors["conv1.u"][0]) for client in range(3)]
    assert found == [0.5, 0.5, 2.0]
    assert method.observe(after, []) == {"known_clients": 3, "matched_clients": pytest.approx(5 / 3)}
    assert method.observe(state, []) == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_stored_state_fits_or_says_why_not(name):
    method = create(name)
    first, state, _ = answered(method, clients=(3, 12))
    assert misfit(method, first, first) == ""
    assert misfit(method, first, state) == ""
    twelfth = {n: t for n, t in state.clients[12].items() if n != "conv1.u"}
    short = state.replace(state.tensors, clients={**state.clients, 12: twelfth})
    assert "client 12 is of another model (conv1.u is missing" in misfit(method, first, short)
    wrong = state.replace(state.tensors, clients={**state.clients, 3: {**state.clients[3], "conv1.u": torch.zeros(4)}})
    assert "client 3 is of another model (conv1.u has shape (4,), expected (9,))" in misfit(method, first, wrong)
    with pytest.raises(ValueError, match="^'client x' is no part of a server's state$"):
        first.of_parts({**state.parts(), "client x": {"conv1.u": torch.zeros(9)}})
    assert "another model" in misfit(method, first, answered(method, MLP)[1])


def test_a_deployed_client_has_its_own_tensors_and_mu_without_small_entries():
    method = create("factorized-fl", {"sparsity": 0.5})
    _, state, _ = answered(method)
    personal = {n: random(tuple(t.shape), 90) for n, t in method.first_personal(CNN, TIER, generator(0, "init")).items()}
    network = method.deploy(state, TIER, personal, 1)
    u = method.submodel(state, TIER, generator(0), 1).tensors["conv2.u"]
    expected = compose(u, personal["conv2.v"], prune(personal["conv2.mu"], 0.5), flat=True)
    assert torch.equal(network.conv2.weight, expected)
    assert torch.equal(network.fc.bias, personal["fc.bias"])
    assert not network.training
    assert not any(isinstance(layer, (RankOneConv, RankOneLinear)) for layer in network.modules())


@pytest.mark.parametrize("name", NAMES)
def test_one_client_alone_and_a_network_of_one_layer_are_refused(name):
    method = create(name)
    method.check(CNN, (TIER,), 2)
    with pytest.raises(ConfigError, match="one client alone for similarity matching: clients is 1"):
        method.check(CNN, (TIER,), 1)

    class OneLayer(Architecture):
        def build(self, width=1.0):
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 4))

    with pytest.raises(ConfigError, match="before the classifier that it factorizes; the network has none before 1"):
        method.check(OneLayer("mlp", (1, 8, 8), 4), (TIER,), 2)


def test_composition_and_its_gradients_are_counted_apart_from_the_samples():
    """One MAC a weight forward; backward one a weight for u and one for v."""
    training = Training(1, 16, 0.05, 0.9, 1e-4)
    cost, dense = (tier_cost(create(name), CNN, TIER, training) for name in ("factorized-fl", "fedavg"))
    weights = 9 * (32 + 32 * 64 + 64 * 64) + 1024 * 4
    assert cost.macs_compose == 3 * weights
    assert (cost.macs_forward, cost.macs_backward) == (dense.macs_forward, dense.macs_backward)
    assert not cost.uncounted_ops


@pytest.mark.parametrize(
    "option",
    [
        {"sparsity": -1},
        {"penalty": -1},
        {"threshold": 1.5},
        {"scale": float("inf")},
        {"least_share": 1.5},
        {"init": "zeros"},
        {"reshape": "rows"},
    ],
)
def test_options_out_of_range_are_named(option):
    with pytest.raises(ConfigError, match=f"method_options.{next(iter(option))}"):
        create("factorized-fl", option)
