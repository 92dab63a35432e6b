"""LoRA adapters: which layers have them, what the servers of FlexLoRA, HetLoRA and FLoRA make of them, and what travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from edgefl.bundle.tier_graphs import tier_graphs
from edgefl.client.objectives import PLAIN
from edgefl.errors import ConfigError
from edgefl.factor.adapter import adapted, names_of
from edgefl.methods.capabilities import misfit
from edgefl.methods.create import create
from edgefl.methods.networks import skeleton, upload_shapes
from edgefl.methods.personal import download_shapes, received, trained_network
from edgefl.models.base import Architecture, named_tensors
from edgefl.onnxgrad.roles import StepRule
from edgefl.onnxgrad.stepper import Stepper
from edgefl.planning.inspect import inspect
from edgefl.planning.network import architecture_of
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator
from edgefl.wire.payload import header_bytes

RNG = np.random.default_rng(0)
U, V = names_of("0")
TIERS = Tier(1.0), Tier(0.5)
# Clients' A (r × 3) and B (4 × r) of one layer, of rank 2 and 1, with mixed signs.
A1, B1 = [[1.0, -2.0, 0.5], [0.0, 3.0, -1.0]], [[2.0, -1.0], [0.0, 1.0], [-3.0, 0.5], [1.0, 1.0]]
A2, B2 = [[-2.0, 1.0, 2.0]], [[1.0], [-1.0], [0.0], [2.0]]
HEAD = {"2.weight": torch.ones(2, 4), "2.bias": torch.tensor([1.0, -1.0])}


def small(method: str, **options: object):
    """Return the method with adapters of rank 2 on the layer 0 (3 to 4) of a network, the network, and the first state."""
    architecture = architecture_of(nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2)), (3,), 2)
    made = create(method, {"rank": 2, "scale": 2.0, **options}, tiers=(1.0, 0.5))
    return made, architecture, made.init(architecture, TIERS, generator(0, "init"))


def updates(heads=(1.0, 1.0), samples=(1, 3)):
    """Return the updates of the two clients."""
    pairs = (A1, B1), (A2, B2)
    for client, ((a, b), tier, head, n) in enumerate(zip(pairs, TIERS, heads, samples, strict=True)):
        tensors = {U: torch.tensor(a), V: torch.tensor(b), **{name: head * tensor for name, tensor in HEAD.items()}}
        yield Update(client, tier, tensors, {}, n)


def truncated(matrix, rank):
    """Return numpy's best approximation of ``matrix`` of ``rank``."""
    u, s, v = np.linalg.svd(np.array(matrix))
    return u[:, :rank] * s[:rank] @ v[:rank]


def test_flexlora_truncates_the_mean_of_the_products() -> None:
    method, _, state = small("flexlora")
    after = method.aggregate(state, updates(heads=(1.0, -1.0)))
    mean = (np.array(B1) @ np.array(A1) + 3 * np.array(B2) @ np.array(A2)) / 4
    assert np.linalg.matrix_rank(mean) == 3  # so that each tier is cut
    for tier, rank in zip(TIERS, (2, 1), strict=True):
        sent = method.submodel(after, tier, generator(0, "s")).tensors
        assert sent[U].shape == (rank, 3)
        np.testing.assert_allclose(sent[V].numpy() @ sent[U].numpy(), truncated(mean, rank), atol=1e-5)
        np.testing.assert_allclose(sent[U].numpy() @ sent[U].numpy().T, np.eye(rank), atol=1e-5)
    torch.testing.assert_close(after.tensors["2.weight"], torch.full((2, 4), -0.5))  # (1·1 − 3·1) / 4


@pytest.mark.parametrize("name", ["flexlora", "hetlora"])
def test_energy_is_recorded_per_band_of_ranks(name) -> None:
    method, _, state = small(name)
    assert method.observe(state, ()) == {}  # B is zero
    after = method.aggregate(state, updates())
    a, b = after.tensors[U].double().numpy(), after.tensors[V].double().numpy()
    first, second = ((np.outer(b[:, rank], a[rank]) ** 2).sum() for rank in (0, 1))
    assert method.energy_bands(after)["0"] == pytest.approx([first, second])
    if name == "flexlora":
        mean = (np.array(B1) @ np.array(A1) + 3 * np.array(B2) @ np.array(A2)) / 4
        assert [first, second] == pytest.approx(np.linalg.svd(mean, compute_uv=False)[:2] ** 2)
    names = [f"energy first held by tier {tier}" for tier in ("0.5", "1")]
    shares = dict(zip(names, [first / (first + second), second / (first + second)], strict=True))
    assert method.observe(after, ()) == {
        "energy": pytest.approx(shares, abs=1e-5),
        "energy_by_layer": {"0": pytest.approx(shares, abs=1e-5)},
    }


def test_a_tier_that_was_pruned_below_a_smaller_one_adds_no_energy() -> None:
    _, _, state = small("hetlora")
    state = state.replace({**state.tensors, U: torch.tensor(A1), V: torch.tensor(B1)})
    method, *_ = small("hetlora", present={"1": 1, "0.5": 2})
    assert method.energy_bands(state)["0"] == pytest.approx([138.5, 0])


def test_flexlora_keeps_rows_of_a_that_the_mean_says_nothing_about() -> None:
    method, _, state = small("flexlora")
    after = method.aggregate(state, [*updates()][1:])  # of rank 1 alone
    torch.testing.assert_close(after.tensors[V] @ after.tensors[U], torch.tensor(B2) @ torch.tensor(A2), atol=1e-5, rtol=0)
    assert torch.equal(after.tensors[U][1], state.tensors[U][1])
    assert not after.tensors[V][:, 1].any()


def test_hetlora_weighs_padded_factors_by_the_norms_of_their_products() -> None:
    """By hand: ‖B₁A₁‖² = 4 + 49 + 4 + 9 + 1 + 9 + 56.25 + 4 + 1 + 1 + .25 = 138.5 and ‖B₂A₂‖² = 6 · 9 = 54."""
    method, _, state = small("hetlora")
    after = method.aggregate(state, updates())
    w1, w2 = 138.5**0.5, 54**0.5
    total = w1 + w2
    np.testing.assert_allclose(
        after.tensors[U][0], [(w1 - 2 * w2) / total, (-2 * w1 + w2) / total, (0.5 * w1 + 2 * w2) / total], atol=1e-6
    )
    np.testing.assert_allclose(after.tensors[U][1], [0, 3 * w1 / total, -w1 / total], atol=1e-6)
    np.testing.assert_allclose(after.tensors[V][:, 1], np.array([-1, 1, 0.5, 1]) * w1 / total, atol=1e-6)
    alone = method.aggregate(state, [*updates()][1:])
    torch.testing.assert_close(alone.tensors[V][:, :1], torch.tensor(B2))
    assert torch.equal(alone.tensors[U][1], state.tensors[U][1])  # no client held it


def test_hetlora_prunes_the_tier_whose_last_ranks_shrink() -> None:
    method, architecture, state = small("hetlora", gamma=0.5)
    state = state.replace({**state.tensors, U: torch.tensor(A1), V: torch.tensor(B1)})
    tail = torch.tensor([1.0, 0.9])
    shrunk = Update(0, TIERS[0], {U: torch.tensor(A1) * tail[:, None], V: torch.tensor(B1) * tail, **HEAD}, {}, 1)
    after = method.aggregate(state, [shrunk, next(updates())])
    # The first client's second rank is cut off: the weights are the norms of its first rank alone, and of the whole second product.
    w1, w2 = (14 * 5.25) ** 0.5, 138.5**0.5
    np.testing.assert_allclose(after.tensors[V][:, 1], np.array([-1, 1, 0.5, 1]) * w2 / (w1 + w2), rtol=1e-6)
    same, _ = method.advance(after, 2, RNG)
    assert same == method  # one of two is not more than half
    pruned, later = method.advance(method.aggregate(state, [shrunk]), 2, RNG)
    assert [download_shapes(pruned, architecture, tier)[U] for tier in TIERS] == [(1, 3), (1, 3)]
    assert pruned.advance(later, 3, RNG)[0] == pruned  # votes count once
    assert misfit(pruned, pruned.init(architecture, TIERS, generator(0, "init")), later) == ""
    assert create("hetlora", {"gamma": 1}).lacks == {}


def test_hetlora_penalises_the_ranks_beyond_gamma() -> None:
    method, _, state = small("hetlora", gamma=0.5, prune_strength=0.1)
    state = state.replace({**state.tensors, U: torch.tensor(A1), V: torch.tensor(B1)})
    (term,) = method.penalties(trained_network(method, state, TIERS[0]))
    np.testing.assert_allclose(term.item(), 0.1 * 10**0.5 * 3.25**0.5, rtol=1e-6)
    assert not [*method.penalties(trained_network(method, state, TIERS[1]))]


def test_flora_stacks_exactly_where_averages_of_factors_are_wrong() -> None:
    method, architecture, first = small("flora")
    before = first.tensors["0.weight"]
    after = method.aggregate(first, updates())
    change = 2.0 * (0.25 * torch.tensor(B1) @ torch.tensor(A1) + 0.75 * torch.tensor(B2) @ torch.tensor(A2))
    deployed = method.deploy(after, TIERS[0])
    torch.testing.assert_close(deployed.state_dict()["0.weight"], before + change)
    padded = torch.tensor([*A2, [0.0] * 3]), torch.cat([torch.tensor(B2), torch.zeros(4, 1)], 1)
    averaged = (0.25 * torch.tensor(B1) + 0.75 * padded[1]) @ (0.25 * torch.tensor(A1) + 0.75 * padded[0])
    assert (2 * averaged - change).abs().max() > 1

    # The next round sends the stack of rank 3, unless it has no fewer values than the weight of 4 × 3.
    later, state = method.advance(after, 2, RNG)
    assert download_shapes(later, architecture, TIERS[1]) == {"2.weight": (2, 4), "2.bias": (2,), "0.weight": (4, 3)}
    torch.testing.assert_close(state.tensors["0.weight"], before + change)
    only, state = method.advance(method.aggregate(first, [*updates()][1:]), 2, RNG)
    assert download_shapes(only, architecture, TIERS[0])["0.stack.u.weight"] == (1, 3)
    assert upload_shapes(only, architecture, TIERS[0])[V] == (4, 2)
    assert misfit(only, only.init(architecture, TIERS, generator(0, "init")), state) == ""
    module = only.network(architecture, TIERS[0])
    personal = only.first_personal(architecture, TIERS[0], generator(0, "init"))
    received(only, module, only.submodel(state, TIERS[0], generator(0, "s")).tensors, personal, (torch.empty(0), torch.empty(0)))
    torch.testing.assert_close(module.get_parameter("0.weight"), before + 2 * torch.tensor(B2) @ torch.tensor(A2))
    assert not module.get_parameter(V).any()
    assert torch.equal(only.deploy(state, TIERS[0]).state_dict()["0.weight"], module.get_parameter("0.weight"))


def test_a_client_of_flora_receives_all_earlier_adapters_also_after_the_weight_was_sent() -> None:
    """Both stacks together have 21 values, the weight has 12; the stack of the second client alone has 7."""
    method, architecture, state = small("flora")
    one, two = (torch.tensor(b) @ torch.tensor(a) for a, b in ((A1, B1), (A2, B2)))
    expected = state.tensors["0.weight"]
    nothing = torch.empty(0), torch.empty(0)
    both, alone = (2 * (0.25 * one + 0.75 * two), slice(None)), (2 * two, slice(1, None))
    for round_, (change, who) in enumerate([alone, both, alone, alone, both], start=2):
        method, state = method.advance(method.aggregate(state, [*updates()][who]), round_, RNG)
        expected = expected + change
        assert misfit(method, method.init(architecture, TIERS, generator(0, "init")), state) == ""
        module = method.network(architecture, TIERS[1])
        personal = method.first_personal(architecture, TIERS[1], generator(0, "init"))
        received(method, module, method.submodel(state, TIERS[1], generator(0, "s")).tensors, personal, nothing)
        torch.testing.assert_close(module.get_parameter("0.weight"), expected)
        torch.testing.assert_close(method.deploy(state, TIERS[1]).state_dict()["0.weight"], expected)


def test_adapters_are_at_queries_and_values_or_where_the_option_says() -> None:
    tokens, images = Architecture("deit-tiny", (3, 8, 8), 10), Architecture("cnn-digits", (1, 8, 8), 10)

    def layers(architecture, **options):
        return [name for name, _, _ in adapted(skeleton(create("flexlora", options), architecture, Tier(0.5)))]

    assert len(found := layers(tokens)) == 24
    assert found[:3] == ["blocks.0.attention.query", "blocks.0.attention.value", "blocks.1.attention.query"]
    assert layers(tokens, factorize="*.expand") == [f"blocks.{i}.expand" for i in range(12)]
    assert layers(images) == ["conv2", "conv3"]
    with pytest.raises(ConfigError, match="'nothing' is no kind"):
        layers(images, factorize="nothing")


def test_the_base_has_no_gradients_and_never_travels() -> None:
    method, architecture, _ = small("flexlora")
    network = method.network(architecture, TIERS[0])
    assert {name for name, p in network.named_parameters() if p.requires_grad} == {U, V, "2.weight", "2.bias"}
    assert download_shapes(method, architecture, TIERS[1]) == {U: (1, 3), V: (4, 1), "2.weight": (2, 4), "2.bias": (2,)}
    frozen = create("flexlora", {"rank": 2, "head": False})
    assert set(download_shapes(frozen, architecture, TIERS[1])) == {U, V}
    wide = architecture_of(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), (3,), 2)
    module = method.network(wide, TIERS[0]).train()
    method.local_loss(module, Batch(torch.ones(5, 3), torch.zeros(5, dtype=torch.int64)))
    assert not module.get_buffer("1.running_mean").any()  # statistics of the base are frozen


def test_weights_that_are_shared_have_neither_adapter_nor_training() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.mix, self.head = nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, x):
            return self.head(self.mix(self.tokens(x)).mean(1))

    architecture = architecture_of(Tied, {"x": "int64:3"}, 5)
    assert set(upload_shapes(create("flora"), architecture, TIERS[0])) == set(names_of("mix"))
    with pytest.raises(ConfigError, match="head cannot be factorized: shared"):
        create("flora", {"factorize": "head"}).network(architecture, TIERS[0])


def test_a_rank_is_bytes_and_hardly_memory_or_macs() -> None:
    """Closed forms: r(m + n) weights in each of 8 layers of 512 → 512, used by 128 tokens, and the classifier of 512 → 2."""
    architecture, training = architecture_of("bert-small"), training_for(8, None, "adam")
    costs = [tier_cost(create("flexlora"), architecture, tier, training) for tier in TIERS]
    for rank, cost in zip((8, 4), costs, strict=True):
        values = 8 * rank * 1024 + 512 * 2 + 2
        assert cost.gradient_bytes == cost.optimizer_bytes // 2 == 4 * values
        assert cost.macs_backward_weight == 128 * 8 * rank * 1024 + 512 * 2
        assert (
            cost.upload_bytes
            == cost.download_bytes
            == 4 * values + header_bytes(download_shapes(create("flexlora"), architecture, Tier(rank / 8)))
        )
    assert costs[1].upload_bytes < 0.6 * costs[0].upload_bytes
    assert costs[1].training_memory_bytes > 0.99 * costs[0].training_memory_bytes


def test_adapters_of_gpt2_xl_are_counted_without_its_weights() -> None:
    shapes = upload_shapes(create("flora", {"rank": 4}), architecture_of("gpt2-xl"), Tier(1.0))
    assert sum(math.prod(shape) for shape in shapes.values()) == 48 * 2 * 4 * (1600 + 1600)  # no classifier: it is the embedding


def test_inspect_names_the_ranks_of_adapters() -> None:
    rows = {row.layer: row.tiers[1] for row in inspect("mlp", (1, 8, 8), 4, method="flexlora", tiers=(1, 0.5)).layers}
    assert [(rows[name].form, rows[name].rank) for name in ("hidden", "fc")] == [("factorized", 4), ("dense", None)]


def test_the_first_step_of_hetlora_in_onnxruntime_is_finite() -> None:
    """B is zero at first, where the norms of its regulariser have no derivative."""
    method, architecture = create("hetlora", tiers=(1.0,)), Architecture("mlp", (1, 8, 8), 4)
    network = trained_network(method, method.init(architecture, TIERS[:1], generator(0, "init")), TIERS[0])
    steps = tier_graphs(method, architecture, TIERS[0], StepRule(), PLAIN).steps
    tensors = named_tensors(network)
    feed = {value: tensors[name].detach().numpy() for name, value in steps.roles.tensors.items()}
    stepper = Stepper(steps, feed | {name: np.ones(4, bool) for name in steps.roles.shared}, 0.1, 0.0)
    x, y = generator(0, "x").standard_normal((4, 1, 8, 8)).astype(np.float32), np.arange(4)
    losses = [stepper.step(x, y) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert np.isfinite(losses).all()
