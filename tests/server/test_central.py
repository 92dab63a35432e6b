"""Central privacy: the sensitivity of its sums by brute force, the variance of its noise, and values worked out by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edgefl.client.clipping import change_of, clipped, norm_of
from edgefl.client.stages.clip import Clip
from edgefl.contrib.privacy import central
from edgefl.contrib.privacy.central import Central, weighed
from edgefl.methods.create import create
from edgefl.methods.tier_sum import TierSum, folds
from edgefl.models.base import Architecture
from edgefl.records import Place, Submodel, Tier, Update
from edgefl.rng import generator
from edgefl.server.exchange import added, combined

MLP = Architecture("mlp", (1, 8, 8), 10)
FULL, HALF = Tier(1.0), Tier(0.5)
METHODS = [("fedavg", (FULL,)), ("heterofl", (FULL, HALF)), ("fedhm", (FULL, HALF)), ("flanc", (FULL, HALF))]
C = 0.5


def applied(method, state, clients, updates):
    """Return the state after the updates of tiers, each of which counts for so many ``clients``."""
    sent = {tier: SimpleNamespace(places=update.places) for tier, update in updates.items()}
    return combined(method, state, weighed(method, state, clients, updates), sent.__getitem__)


def draw(purpose):
    return generator(11, 4, purpose)


class Setup:
    """A method's first state, what its tiers are sent, and clients whose changes are far longer than the clip."""

    def __init__(self, name, tiers, clients=4):
        architecture = Architecture("cnn-digits", (1, 8, 8), 10) if name == "flanc" else MLP
        self.method = create(name, tiers=tuple(tier.ratio for tier in tiers))
        self.state = self.method.init(architecture, tiers, generator(0, "init"))
        self.sent = {tier: self.method.submodel(self.state, tier, generator(0, "submodel")) for tier in tiers}
        self.bounds = dict.fromkeys(tiers, C)
        self.updates = [self.update(client, tiers[client % len(tiers)]) for client in range(clients)]

    def update(self, client, tier):
        rng, sent = np.random.default_rng(client), self.sent[tier]
        change = {name: torch.from_numpy(rng.normal(size=tuple(t.shape)).astype(np.float32)) for name, t in sent.tensors.items()}
        tensors, _ = clipped({name: t + change[name] for name, t in sent.tensors.items()}, sent.tensors, C)
        return Update(client, tier, tensors, sent.places, 40 + client)

    def noised(self, noise, updates):
        sums = {}
        added(self.method, self.state, [replace(update, samples=1) for update in updates], sums)
        return noise.updates(self.method, self.state, sums, self.sent, self.bounds, draw)

    def sum_of(self, noise, updates):
        """What is noised: the sums of all tiers, one after the other."""
        parts = []
        for tier, update in self.noised(noise, updates).items():
            change = change_of(update.tensors, self.sent[tier].tensors)
            parts += [change[name].flatten() * noise.clients[tier] for name in sorted(change)]
        return torch.cat(parts)


@pytest.mark.parametrize(("name", "tiers"), METHODS)
def test_no_client_moves_the_sums_by_more_than_the_clip(name, tiers):
    setup, noise = Setup(name, tiers), Central(0.0, dict.fromkeys(tiers, 3))
    whole = setup.sum_of(noise, setup.updates)
    moved = [
        float((whole - setup.sum_of(noise, [other for other in setup.updates if other is not one])).norm())
        for one in setup.updates
    ]
    assert max(moved) <= C * (1 + 1e-4)
    assert min(moved) > C * 0.99  # every change was clipped


@pytest.mark.parametrize(("name", "tiers"), METHODS)
def test_the_noise_of_a_sum_has_the_variance_that_the_accountant_counts(name, tiers):
    setup, noise = Setup(name, tiers), Central(2.0, dict.fromkeys(tiers, 3))
    found = setup.sum_of(noise, setup.updates) - setup.sum_of(Central(0.0, noise.clients), setup.updates)
    expected = 2.0 * C
    if folds(setup.method):
        # Once for all tiers: an entry's noise reaches each of its tiers in part, and all parts of an entry add up to it.
        model = applied(setup.method, setup.state, noise.clients, setup.noised(noise, []))
        own = torch.cat([(model.tensors[key] - value).double().flatten() for key, value in setup.state.tensors.items()])
        count = torch.cat([sum_of_clients(setup, noise, key).flatten() for key in setup.state.tensors])
        found = (own * count)[count > 0]
    assert float(found.std()) == pytest.approx(expected, rel=0.03)
    assert abs(float(found.mean())) < 5 * expected / math.sqrt(len(found))


def sum_of_clients(setup, noise, key):
    """How many clients each entry of a tensor of the state is expected of."""
    count = torch.zeros(setup.state.tensors[key].shape, dtype=torch.float64)
    for tier, clients in noise.clients.items():
        for place in setup.sent[tier].places.values():
            if place.target == key:
                count[place.index] += clients
    return count


def test_noise_once_for_all_tiers_is_less_where_tiers_overlap():
    setup, clients = Setup("heterofl", (FULL, HALF)), dict.fromkeys((FULL, HALF), 3)
    once = setup.noised(Central(2.0, clients), [])
    setup.bounds = {FULL: C, HALF: C * (1 + 1e-12)}  # unequal bounds: noise for each tier
    each = setup.noised(Central(2.0, clients), [])

    def noise_of(updates):
        tensors = applied(setup.method, setup.state, clients, updates).tensors
        place = next(p for n, p in setup.sent[HALF].places.items() if n.endswith("weight"))
        return float((tensors[place.target] - setup.state.tensors[place.target])[place.index].std())

    assert noise_of(each) / noise_of(once) == pytest.approx(math.sqrt(2), rel=0.1)


@pytest.mark.parametrize(("name", "tiers"), METHODS[:2])
def test_without_noise_and_with_the_expected_clients_it_is_the_methods_own_mean(name, tiers):
    setup = Setup(name, tiers)
    found = applied(
        setup.method,
        setup.state,
        noise := dict.fromkeys(tiers, 4 // len(tiers)),
        setup.noised(Central(0.0, noise), setup.updates),
    )
    equal = [Update(u.client, u.tier, u.tensors, u.places, 1) for u in setup.updates]
    expected = setup.method.aggregate(setup.state, equal)
    for key, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[key], tensor, rtol=1e-6, atol=1e-7)


def test_a_method_that_multiplies_factors_gets_one_update_for_every_expected_client():
    setup = Setup("fedhm", (FULL, HALF))
    updates = setup.noised(Central(0.5, {FULL: 1, HALF: 3}), setup.updates)
    found = applied(setup.method, setup.state, {FULL: 1, HALF: 3}, updates)
    weighed = setup.method.aggregate(setup.state, [updates[FULL], *[updates[HALF]] * 3])
    assert all(torch.equal(found.tensors[key], tensor) for key, tensor in weighed.tensors.items())


def test_values_worked_out_by_hand(monkeypatch):
    method = create("fedhm")
    monkeypatch.setattr(central, "upload_shapes", lambda method, architecture, tier: {"w": (2,)})
    sent = {FULL: Submodel(FULL, {"w": torch.tensor([1.0, -2.0])}, None, {"w": Place("w", (slice(None),))})}
    total = TierSum.of({"w": (2,)}, frozenset(), 0)
    for client, tensor in enumerate(([1.5, -2.0], [1.0, -3.0])):
        total.add(Update(client, FULL, {"w": torch.tensor(tensor)}, {}, 7), 1)
    one = SimpleNamespace(standard_normal=lambda shape=None: np.array([1.0, -0.5]))
    state = SimpleNamespace(architecture=None)
    noise = Central(0.25, {FULL: 4})
    found = noise.updates(method, state, {FULL: total}, sent, {FULL: 2.0}, lambda purpose: one)
    # (0.5 + 0.25·2·1) / 4 and (−1 − 0.25·2·0.5) / 4, added to what was sent
    assert found[FULL].tensors["w"].tolist() == [1.25, -2.3125]


def test_bounds_adapt_by_counts_with_noise():
    clipping, noise = Clip(start=1.0, quantile=0.5, rate=0.2), Central(1.0, {FULL: 4}, adaptive=True)
    assert noise.count_std == 1.0
    draws = SimpleNamespace(standard_normal=lambda: 0.5)
    found = noise.bounds(clipping, {}, {FULL: [0.3, 2.0, 0.8]}, lambda purpose: draws)
    # Two within, one outside, one absent: (0.5 − 0.5 + 0.5 + 0.5·1.0) / 4 + 0.5 = 0.75
    assert float(found["clip_norm:1"]) == pytest.approx(math.exp(-0.2 * (0.75 - 0.5)))
    assert Central(1.0, {FULL: 4}).bounds(clipping, {}, {FULL: [0.3]}, lambda purpose: draws) == {}


def test_sums_and_counts_together_cost_what_one_release_costs():
    noise = Central(3.0, {FULL: 10, HALF: 90}, adaptive=True)
    assert noise.count_std == 5.0
    assert noise.sum_multiplier**-2 + (2 * noise.count_std) ** -2 == pytest.approx(3.0**-2)


def test_a_clipped_change_is_as_long_as_its_bound():
    setup = Setup("fedhm", (FULL, HALF))
    assert norm_of(change_of(setup.updates[1].tensors, setup.sent[HALF].tensors)) == pytest.approx(C, rel=1e-5)
