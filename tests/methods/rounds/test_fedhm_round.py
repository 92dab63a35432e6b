"""FedHM's aggregations against fedhm_by_hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import fedhm_by_hand as hand
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rounds_of import ARCHITECTURE

from edgefl.factor.bands import band_energies, banded
from edgefl.factor.svd import factorize, singular_values
from edgefl.methods.create import create
from edgefl.methods.ranks import energy_of_tiers
from edgefl.records import Tier, Update

TIERS = Tier(1.0), Tier(0.5), Tier(0.25)
RANKS = {1.0: 12, 0.5: 2, 0.25: 1}
LAYER = "conv2"
TAU = 0.6
OTHERS = {"conv1.weight", "conv1.bias", "conv2.bias", "fc.weight", "fc.bias"}


def started(aggregation, tiers=TIERS, seed=3):
    """Return the method and a state of weights with mixed signs whose singular values decay slowly."""
    method = create("fedhm", {"aggregation": aggregation, "temperature": TAU})
    state = method.init(ARCHITECTURE, tiers, np.random.default_rng(0))
    rng = np.random.default_rng(seed)
    return method, state.replace({name: torch.from_numpy(rng.normal(size=t.shape)).float() for name, t in state.tensors.items()})


def sent(method, state, tier):
    return method.submodel(state, tier, np.random.default_rng(0))


def trained(method, state, tier, client, size=0.3):
    """Return the update of a client that has moved all that it was sent, by steps of both signs."""
    submodel, rng = sent(method, state, tier), np.random.default_rng([7, client])
    after = {name: t + size * torch.from_numpy(rng.normal(size=t.shape)).float() for name, t in submodel.tensors.items()}
    return Update(client, tier, after, submodel.places, 5)


def product(tensors):
    """Return the unrolled weight of the layer, multiplied out entry by entry, in float64."""
    if f"{LAYER}.weight" in tensors:
        return hand.unrolled(tensors[f"{LAYER}.weight"].numpy())
    u, v = (tensors[f"{LAYER}.{factor}.weight"].numpy().astype(float) for factor in "uv")
    return hand.unrolled(np.einsum("rmkz,nrzl->nmkl", u, v))


def as_given(updates):
    return [(math.exp(u.tier.ratio / TAU), RANKS[u.tier.ratio], product(u.tensors)) for u in updates]


def weight_of(state):
    return state.tensors[f"{LAYER}.weight"].numpy().astype(float)


@pytest.mark.parametrize("aggregation", ["mean", "residual", "bands"])
@pytest.mark.parametrize("of", [(0, 1, 2, 2), (1, 2), (2, 1, 1), (0, 2), (0, 0, 1)])
def test_each_aggregation_is_what_the_script_computes(aggregation, of):
    method, state = started(aggregation)
    updates = [trained(method, state, TIERS[number], client) for client, number in enumerate(of)]
    before = hand.unrolled(weight_of(state))
    got = as_given(updates)
    wanted = hand.mean(got) if aggregation == "mean" else getattr(hand, aggregation)(before, got)
    after = method.aggregate(state, updates)
    np.testing.assert_allclose(weight_of(after), hand.rolled(wanted, weight_of(state).shape), rtol=2e-5, atol=2e-5)
    assert wanted.min() < 0 < wanted.max()
    # All other tensors are means, whatever happens to factorized layers.
    weights = [weight for weight, _, _ in got]
    for name in OTHERS:
        own = [update.tensors.get(name, update.tensors.get(f"{LAYER}.v.bias")).double() for update in updates]
        wanted_other = sum(weight * tensor for weight, tensor in zip(weights, own, strict=True)) / sum(weights)
        np.testing.assert_allclose(after.tensors[name].numpy(), wanted_other.numpy(), rtol=1e-5, atol=1e-6)


def test_the_three_differ():
    results = []
    for aggregation in ("mean", "residual", "bands"):
        method, state = started(aggregation)
        updates = [trained(method, state, tier, client) for client, tier in enumerate(TIERS)]
        results.append(weight_of(method.aggregate(state, updates)))
    assert all(abs(results[a] - results[b]).max() > 0.05 for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("aggregation", ["residual", "bands"])
def test_with_dense_clients_only_both_are_the_mean(aggregation):
    method, state = started(aggregation)
    updates = [trained(method, state, TIERS[0], client) for client in range(4)]
    plain = create("fedhm", {"temperature": TAU}).aggregate(state, updates)
    for name, tensor in method.aggregate(state, updates).tensors.items():
        torch.testing.assert_close(tensor, plain.tensors[name], rtol=1e-6, atol=1e-6)


def test_bands_of_clients_of_one_tier_are_the_residual():
    method, state = started("bands")
    updates = [trained(method, state, TIERS[1], client) for client in range(4)]
    whole = create("fedhm", {"aggregation": "residual", "temperature": TAU}).aggregate(state, updates)
    torch.testing.assert_close(method.aggregate(state, updates).tensors, whole.tensors)


@pytest.mark.parametrize("aggregation", ["residual", "bands"])
def test_unchanged_clients_of_any_tiers_leave_every_bit(aggregation):
    method, state = started(aggregation)
    updates = [replace(trained(method, state, tier, c, size=0.0)) for c, tier in enumerate((*TIERS, TIERS[2]))]
    assert torch.equal(method.aggregate(state, updates).tensors[f"{LAYER}.weight"], state.tensors[f"{LAYER}.weight"])


@pytest.mark.parametrize("aggregation", ["residual", "bands"])
def test_old_updates_are_changes_of_what_their_clients_were_sent(aggregation):
    method, old = started(aggregation)
    _, state = started(aggregation, seed=4)
    given_by, weights = [], []
    for client, (tier, scale) in enumerate(((TIERS[1], 0.5), (TIERS[1], 0.25), (TIERS[1], 1.0))):
        origin = state if scale == 1.0 else old
        update = trained(method, origin, tier, client)
        update = replace(update, places=sent(method, state, tier).places)
        was, now = sent(method, origin, tier).tensors, sent(method, state, tier).tensors
        given_by.append(method.rebased(update, was, now, scale))
        weights.append(scale * (product(update.tensors) - hand.truncation(hand.unrolled(weight_of(origin)), 2)))
        bias = update.tensors["fc.bias"] - was["fc.bias"]
        torch.testing.assert_close(given_by[-1].tensors["fc.bias"], state.tensors["fc.bias"] + scale * bias)
    after = method.aggregate(state, given_by)
    wanted = hand.unrolled(weight_of(state)) + sum(weights) / 3
    np.testing.assert_allclose(hand.unrolled(weight_of(after)), wanted, rtol=2e-5, atol=2e-5)


def test_a_dense_old_update_keeps_its_share_of_the_present_weights():
    method, old = started("residual")
    _, state = started("residual", seed=4)
    update = trained(method, old, TIERS[0], 0)
    moved = method.rebased(update, sent(method, old, TIERS[0]).tensors, sent(method, state, TIERS[0]).tensors, 0.5)
    change = 0.5 * (update.tensors[f"{LAYER}.weight"] - old.tensors[f"{LAYER}.weight"])
    torch.testing.assert_close(
        method.aggregate(state, [moved]).tensors[f"{LAYER}.weight"], state.tensors[f"{LAYER}.weight"] + change
    )


def test_rows_of_the_classifier_are_averaged_over_clients_with_the_label():
    """Label 1 has no client; without labels, or the option, every client counts."""
    method, state = started("mean")
    first, second = (replace(trained(method, state, tier, c), labels=(0,) if c else (0, 2)) for c, tier in enumerate(TIERS[:2]))
    heavy, light = (math.exp(ratio / TAU) for ratio in (1.0, 0.5))
    after = method.aggregate(state, [first, second])
    for name in ("fc.weight", "fc.bias"):
        one, other = first.tensors[name], second.tensors[name]
        both = (heavy * one[0] + light * other[0]) / (heavy + light)
        torch.testing.assert_close(after.tensors[name], torch.stack([both, state.tensors[name][1], one[2]]))
    every = create("fedhm", {"label_rows": False, "temperature": TAU}).aggregate(state, [first, second])
    blind = method.aggregate(state, [replace(update, labels=None) for update in (first, second)])
    assert all(torch.equal(every.tensors[name], blind.tensors[name]) for name in state.tensors)
    assert {n for n in state.tensors if not torch.equal(every.tensors[n], after.tensors[n])} == {"fc.weight", "fc.bias"}


SIZES = st.integers(1, 7)


@given(SIZES, SIZES, st.lists(st.tuples(st.integers(1, 7), st.floats(0.1, 10)), min_size=1, max_size=5), st.integers(0, 99))
def test_bands_of_any_matrix(rows, columns, clients, seed):
    """The mean of bands against the mean of entries; a client that holds nothing else than the others changes the mean alone."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(rows, columns))
    clients = [(weight, min(rank, rows, columns)) for rank, weight in clients]
    got = [(weight, rank, hand.truncation(matrix, rank) + rng.normal(size=matrix.shape)) for weight, rank in clients]
    sums = {}
    for weight, rank, after in got:
        total, of = sums.get(rank, (0.0, 0.0))
        sums[rank] = total + torch.from_numpy(weight * (after - hand.truncation(matrix, rank))), of + weight
    tensor = torch.from_numpy(matrix)
    change = banded(sums, lambda: factorize(tensor, min(rows, columns))).numpy()
    np.testing.assert_allclose(matrix + change, hand.bands(matrix, got), rtol=1e-4, atol=1e-4)


@given(SIZES, SIZES, st.lists(st.integers(0, 7), max_size=4), st.integers(0, 99))
def test_energies_of_bands_add_up(rows, columns, ranks, seed):
    matrix = np.random.default_rng(seed).normal(size=(rows, columns))
    ranks = sorted(min(rank, rows, columns) for rank in ranks)
    tensor = torch.from_numpy(matrix)
    found = band_energies(tensor, singular_values(tensor), ranks)
    assert sum(found) == pytest.approx((matrix**2).sum())
    assert min(found) >= -1e-9
    beyond = [((matrix - hand.truncation(matrix, rank)) ** 2).sum() for rank in ranks]
    assert [sum(found[number + 1 :]) for number in range(len(ranks))] == pytest.approx(beyond, abs=1e-9)


def test_a_matrix_without_energy_has_bands():
    zero = torch.zeros(4, 3)
    assert band_energies(zero, singular_values(zero), [1, 2]) == [0.0, 0.0, 0.0]
    change = banded({1: (torch.ones(4, 3), 1.0), 3: (torch.zeros(4, 3), 1.0)}, lambda: factorize(zero, 2))
    np.testing.assert_allclose(change, 0.5 * np.ones((4, 3)))


def test_which_choices_are_refused_depends_on_the_options():
    reasons = {how: create("fedhm", {"aggregation": how}).lacks for how in ("mean", "residual", "bands")}
    assert "aggregation=residual" in reasons["mean"]["stale_updates"]
    assert set(reasons["residual"]) == set(reasons["bands"]) == {"fixed_coordinates"}
    spectral = create("fedhm", {"aggregation": "bands", "allocate": "spectral"}).lacks
    assert "allocate=uniform" in spectral["stale_updates"]


def energies_by_hand(state, ranks):
    """Return ‖W‖² by bands: the differences of the truncation errors at ascending ranks."""
    matrix = hand.unrolled(weight_of(state))
    errors = [((matrix - (hand.truncation(matrix, rank) if rank else 0)) ** 2).sum() for rank in (0, *ranks)]
    return [*(before - after for before, after in itertools.pairwise(errors)), errors[-1]]


@pytest.mark.parametrize(("tiers", "ranks"), [((1.0, 0.5, 0.25), (1, 2, 12)), ((0.5, 0.25), (1, 2)), ((0.5,), (2,))])
def test_energy_is_recorded_per_band_of_ranks(tiers, ranks):
    method, state = started("mean", tuple(map(Tier, tiers)))
    wanted = energies_by_hand(state, ranks)
    (found,) = method.energy_bands(state).values()
    assert found == pytest.approx(wanted, rel=1e-5, abs=1e-4)
    observed = method.observe(state, [sent(method, state, min(map(Tier, tiers)))])
    shares = [energy / sum(wanted) for energy in wanted]
    names = [f"energy first held by tier {ratio:g}" for ratio in reversed(tiers)] + ["energy held by no tier"] * (
        1.0 not in tiers
    )
    assert list(observed["energy"]) == names
    assert list(observed["energy"].values()) == pytest.approx(shares[: len(names)], abs=1e-5)
    assert observed["energy_by_layer"] == {LAYER: observed["energy"]}
    assert method.observe(state, [sent(method, state, max(map(Tier, tiers)))]) == observed, "also in a round without small tiers"


def test_a_smaller_spectral_rank_of_a_larger_tier_adds_no_energy():
    method, state = started("mean")
    uneven = create("fedhm", {"ranks": {"0.5": {LAYER: 2}, "0.25": {LAYER: 3}}})
    (found,) = uneven.energy_bands(state).values()
    assert found == pytest.approx(energies_by_hand(state, (3, 3, 12)), rel=1e-5, abs=1e-4)
    assert create("fedhm").energy_bands(state.replace(state.tensors)) == method.energy_bands(state)


def test_without_truncated_tiers_there_are_no_bands():
    method, state = started("mean", TIERS[:1])
    assert method.energy_bands(state) == {}


def test_the_mean_empties_the_bands_of_larger_tiers_and_changes_do_not():
    shares = {}
    for aggregation in ("mean", "residual", "bands"):
        method, state = started(aggregation)
        for _ in range(4):
            state = method.aggregate(state, [trained(method, state, TIERS[2], client, size=0.0) for client in range(3)])
        shares[aggregation] = energy_of_tiers(method.energy_bands(state))
    assert sum(shares["mean"][1:]) < 1e-9
    assert shares["residual"] == pytest.approx(shares["bands"])
    assert sum(shares["residual"][1:]) > 0.5
