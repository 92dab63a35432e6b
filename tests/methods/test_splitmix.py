"""Split-Mix: who trains which base networks, and what a tier costs and deploys."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from edgefl.bundle.write import build_tier
from edgefl.client.training import Training
from edgefl.methods.axes import refused
from edgefl.methods.create import create
from edgefl.methods.splitmix import Ensemble
from edgefl.models.base import Architecture
from edgefl.models.input_spec import InputSpec
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier
from edgefl.rng import generator

ARCHITECTURE = Architecture("cnn-digits", (1, 8, 8), 4)
TIERS = (Tier(1.0), Tier(0.5), Tier(0.25))


def started():
    method = create("splitmix", tiers=(1.0, 0.5, 0.25))
    return method, method.init(ARCHITECTURE, TIERS, generator(0, "init"))


def bases_of(submodel):
    return [submodel.places[name].target.split(".")[0] for name in submodel.places if name.endswith("conv1.weight")]


def test_bases_rotate_and_each_is_trained_as_often_as_the_others():
    method, state = started()
    for tier, held in zip(TIERS, (4, 2, 1), strict=True):
        count: Counter[str] = Counter()
        for client in range(400):
            bases = bases_of(method.submodel(state, tier, generator(0, 1, client, "submodel"), client))
            assert len(set(bases)) == len(bases) == held
            numbers = [int(b.removeprefix("base")) for b in bases]
            assert numbers in [sorted((start + i) % 4 for i in range(held)) for start in range(4)]
            count.update(bases)
        assert all(count[f"base{k}"] == pytest.approx(100 * held, rel=0.25) for k in range(4))


def test_a_client_gets_other_bases_from_round_to_round_and_they_are_those_of_the_state():
    method, state = started()
    seen = set()
    for round_ in range(12):
        submodel = method.submodel(state, TIERS[1], generator(0, round_, 7, "submodel"), 7)
        seen.add(tuple(bases_of(submodel)))
        for name, place in submodel.places.items():
            assert torch.equal(submodel.tensors[name], state.tensors[place.target])
    assert len(seen) == 4
    assert method.per_client
    assert {"dyn", "scaffold"} <= set(refused(method.lacks))


def test_bases_start_with_weights_of_their_own():
    _, state = started()
    assert {name.split(".")[0] for name in state.tensors} == {f"base{k}" for k in range(4)}
    assert not torch.equal(state.tensors["base0.conv2.weight"], state.tensors["base1.conv2.weight"])


def test_the_gradients_of_a_base_are_those_that_it_has_alone():
    method, _ = started()
    network = method.network(ARCHITECTURE, TIERS[1])
    batch = Batch(torch.ones(3, 1, 8, 8), torch.tensor([0, 1, 3]))
    method.local_loss(network, batch).backward()
    together = [p.grad.clone() for p in network.base1.parameters()]
    network.zero_grad()
    torch.nn.functional.cross_entropy(network.base1(batch.x), batch.y).backward()
    for one, other in zip(together, network.base1.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)


def test_a_tier_costs_as_many_bases_as_it_holds():
    method, training = create("splitmix", tiers=(1.0, 0.5, 0.25)), Training(1, 32)
    one, two, four = (tier_cost(method, ARCHITECTURE, tier, training) for tier in reversed(TIERS))
    assert (2 * one.params, 4 * one.params) == (two.params, four.params)
    assert (2 * one.macs_train_step, 4 * one.macs_train_step) == (two.macs_train_step, four.macs_train_step)


@pytest.mark.parametrize(
    ("tiers", "ratio", "held", "bases"), [((1.0, 0.3), 1.0, 3, 3), ((1.0, 0.7, 0.25), 0.7, 2, 4), ((0.5, 0.2), 0.5, 2, 5)]
)
def test_a_tier_that_is_no_multiple_of_the_base_holds_the_multiple_below(tiers, ratio, held, bases):
    method = create("splitmix", tiers=tiers)
    assert (method.held(Tier(ratio)), method.bases) == (held, bases)
    state = method.init(ARCHITECTURE, tuple(map(Tier, tiers)), generator(0, "init"))
    assert {name.split(".")[0] for name in state.tensors} == {f"base{k}" for k in range(bases)}


def test_an_ensemble_is_one_graph_and_the_mean_of_its_logits():
    method, state = started()
    network = method.deploy(state, TIERS[1])
    assert isinstance(network, Ensemble)
    x = torch.ones(2, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(network(x), (network.base0(x) + network.base1(x)) / 2)
        assert not torch.allclose(network.base0(x), network.base1(x), atol=1e-3)
    files = build_tier(network, InputSpec((1, 8, 8)), "0.5", generator(0, "x"))
    assert files.parity_max_abs_error <= 1e-5


@pytest.mark.parametrize("base", [0.0, 1.5, -1.0])
def test_a_base_width_out_of_range_is_refused(base):
    from edgefl.errors import ConfigError

    with pytest.raises(ConfigError, match="method_options.base"):
        create("splitmix", {"base": base})
