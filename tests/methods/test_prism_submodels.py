"""PriSM's sub-models and its server: what kernels are cut from, and what becomes of the updates."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from prism_networks import CNN, TEXT, first_state, moved, weights

from edgefl.factor.kernels import effective_rank, kernels_of
from edgefl.factor.svd import factorize
from edgefl.methods.create import create
from edgefl.methods.personal import download_shapes
from edgefl.models.base import Architecture
from edgefl.records import Tier
from edgefl.rng import generator

RNG = np.random.default_rng(0)


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


@pytest.mark.parametrize("keep", [0.8, 0.6, 0.4, 0.2])
def test_no_layer_of_a_client_has_a_rank_limit(keep):
    """Conv_U maps r kernels to no more outputs, in 16 of 16 layers of ResNet-18. With 0.4 of the outputs it maps fewer below 0.4."""
    architecture = Architecture("resnet18", (3, 32, 32), 10)
    for options, limited in (({}, 0), ({"outputs": 0.4}, 16 if keep < 0.4 else 0)):
        shapes = download_shapes(create("prism", options), architecture, Tier(keep))
        maps = [shape for name, shape in shapes.items() if name.endswith(".u.weight")]
        assert len(maps) == 16
        assert sum(outputs > kernels for outputs, kernels, *_ in maps) == limited


def test_every_narrow_network_is_a_submodel():
    """With the identity as Conv_U, Conv_V may be any narrow weight: a client computes what one of OrigDrop can, and no more."""
    keep = 0.4
    narrow = CNN.build(keep).eval()
    module = create("prism").network(CNN, Tier(keep)).eval()
    dense, tensors = narrow.state_dict(), module.state_dict()
    for name in tensors:
        layer, _, part = name.removesuffix(".weight").rpartition(".")
        if part == "u":
            tensors[name].copy_(torch.eye(len(tensors[name])).view(tensors[name].shape))
        else:
            tensors[name].copy_(dense[f"{layer}.weight" if part == "v" else name])
    x = weights(5, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(module(x), narrow(x), atol=1e-5, rtol=1e-4)


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

    warming, same = method.advance(state, 1, RNG)
    assert same is state
    assert warming.config.model_dump() == {**method.config.model_dump(), "warming_up": True}
    assert all(kernels(warming, round_, client) == list(range(26)) for round_ in (1, 2) for client in range(3))
    assert warming.advance(state, 2, RNG) == (warming, state)
    # A resumed run creates the method from the options of the checkpoint, here that of round 2.
    after, _ = create("prism", warming.config.model_dump()).advance(state, 3, RNG)
    assert after == method
    assert after.advance(state, 4, RNG) == (after, state)
    assert kernels(after, 3, 0) == kernels(create("prism", {"sampling": "uniform"}), 3, 0) != list(range(26))


def test_outputs_are_those_of_convolutions_below_keep_ratio_1():
    method = create("prism", {"outputs": 0.4})
    whole, small = (download_shapes(method, CNN, Tier(keep)) for keep in (1.0, 0.2))
    assert whole == download_shapes(create("prism"), CNN, Tier(1.0))
    assert small["conv3.first.u.weight"] == (26, 13, 1, 1)
    assert small["conv3.first.v.weight"] == (13, 64, 3, 3)
    assert (small["conv1.weight"], small["norm3.bias"]) == (whole["conv1.weight"], whole["norm3.bias"])
    assert download_shapes(create("prism", {"outputs": 1.0}), CNN, Tier(0.2)) == download_shapes(
        create("orthdrop"), CNN, Tier(0.2)
    )
    text = first_state(method, TEXT, 0.5)
    sent = method.submodel(text, Tier(0.5), generator(0), 0)
    assert sent.tensors["lstm.weight_hh_l0.3.u"].shape == (10, 5), "a recurrent layer computes all outputs"
    assert sent.tensors["lstm.weight_hh_l0.3.v"].shape == (5, 10)
