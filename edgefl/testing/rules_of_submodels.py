"""Rules of sub-models: their sizes, costs and payloads, and what they compute."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from edgefl.methods.networks import global_tier, upload_shapes
from edgefl.methods.personal import download_shapes, kept
from edgefl.methods.state import shapes_of
from edgefl.planning.tier_costs import tier_cost
from edgefl.testing.cases import TRAINING, Case, images, rule
from edgefl.wire.payload import decode, encode, payload_bytes


@rule("submodel leaves the state untouched")
def test_submodel_leaves_the_state_untouched(case: Case) -> None:
    state = case.state()
    before = {name: tensor.clone() for name, tensor in state.tensors.items()}
    for tier in case.tiers:
        for tensor in case.submodel(state, tier).tensors.values():
            tensor.add_(1.0)
    assert all(torch.equal(before[name], state.tensors[name]) for name in before)


@rule("every tier fits its declared size exactly")
def test_every_tier_fits_its_declared_size_exactly(case: Case) -> None:
    state = case.state()
    for tier in case.tiers:
        submodel = case.submodel(state, tier, 0)
        declared = download_shapes(case.method, case.architecture, tier)
        assert {name: tuple(t.shape) for name, t in submodel.tensors.items()} == declared
        assert submodel.places.keys() == submodel.tensors.keys()
        module = case.received(submodel, *images(9, 0))
        sent = case.method.upload(module)
        assert {name: tuple(t.shape) for name, t in sent.items()} == upload_shapes(case.method, case.architecture, tier)
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        assert sum(p.numel() for p in module.parameters()) == cost.params
        # Physically small: nothing of the full size is kept behind a smaller view.
        for tensor in submodel.tensors.values():
            assert tensor.untyped_storage().nbytes() == 4 * tensor.numel()
        stored = kept(case.method, module)
        # What a client does not store again is part of its application.
        assert {n: t.shape for n, t in stored.items()}.items() <= {n: t.shape for n, t in case.personal(tier).items()}.items()
        assert not (stored.keys() & sent.keys()) or case.method.personalised


@rule("cost grows with the tier", of_networks=True)
def test_cost_grows_with_the_tier(case: Case) -> None:
    costs = [tier_cost(case.method, case.architecture, tier, TRAINING) for tier in case.tiers]
    names = ["params", "macs_forward", "parameter_bytes"]
    if download_shapes(case.method, case.architecture, case.tiers[0]):
        names.append("download_bytes")
    if case.architecture.model != "mlp":
        # Where the first layer itself is factorized, its second factor needs an input gradient that the dense layer does without.
        names += ["macs_backward", "macs_train_step"]
    for larger, smaller in itertools.pairwise(costs):
        for name in names:
            assert getattr(larger, name) > getattr(smaller, name), name
    assert all(not cost.uncounted_ops for cost in costs)


@rule("the full tier computes what the global model computes")
def test_the_full_tier_computes_what_the_global_model_computes(case: Case) -> None:
    state = case.state()
    x = torch.from_numpy(np.random.default_rng(3).standard_normal((5, 1, 8, 8))).float()
    with torch.no_grad():
        full = case.method.deploy(state, case.tiers[0])(x)
        assert torch.equal(full, case.method.deploy(state, global_tier(case.method, state))(x))
    networks = (case.architecture.build(width).eval() for width in (global_tier(case.method, state).ratio, 1.0))
    shapes = shapes_of(state.tensors)
    if dense := next((network for network in networks if shapes_of(network.state_dict()) == shapes), None):
        dense.load_state_dict(state.tensors)
        with torch.no_grad():
            assert torch.allclose(full, dense(x), atol=1e-6)


@rule("payload keys and bytes equal the declaration")
def test_payload_keys_and_bytes_equal_the_declaration(case: Case) -> None:
    state = case.state()
    for tier in case.tiers:
        submodel = case.submodel(state, tier, 0)
        down, up = download_shapes(case.method, case.architecture, tier), upload_shapes(case.method, case.architecture, tier)
        sent = encode(submodel.tensors)
        answer = encode(case.method.upload(case.received(submodel, *images(9, 0))))
        cost = tier_cost(case.method, case.architecture, tier, TRAINING)
        assert len(sent) == payload_bytes(down) == cost.download_bytes
        assert len(answer) == payload_bytes(up) == cost.upload_bytes
        assert decode(sent, down, "test").keys() == down.keys()
        assert decode(answer, up, "test").keys() == up.keys()


@rule("same seed, same bits")
def test_same_seed_same_bits(case: Case) -> None:
    first, again, other = case.state(1), case.state(1), case.state(2)
    assert all(torch.equal(first.tensors[n], again.tensors[n]) for n in first.tensors)
    assert any(not torch.equal(first.tensors[n], other.tensors[n]) for n in first.tensors)
    for tier in case.tiers:
        one, two = case.submodel(first, tier).tensors, case.submodel(again, tier).tensors
        assert all(torch.equal(one[n], two[n]) for n in one)
