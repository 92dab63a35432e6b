"""Rounds of Per-FedAvg, FedFOMO and Clustered-FL against the derivations in personal_baselines_by_hand.py."""

import numpy as np
import personal_baselines_by_hand as hand
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors, state_of, trained
from small_conv_by_hand import data

from edgefl.methods.capabilities import misfit
from edgefl.methods.clustered import bipartition
from edgefl.methods.create import create
from edgefl.methods.personal import adapted, received
from edgefl.records import Batch, Tier, Update

TIER = Tier(1.0)


def torched(tensors):
    return {name: torch.from_numpy(np.asarray(tensor)).float() for name, tensor in tensors.items()}


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_a_round_of_per_fedavg_is_first_order_maml(order):
    method = create("per-fedavg", {"alpha": hand.ALPHA})
    state = state_of(method, (TIER,), hand.start())
    sent, after = hand.per_fedavg()
    updates = []
    for client in order:
        samples, begin = hand.CLIENTS[client]
        updates.append(trained(method, state, ord(client), TIER, begin, samples, hand.LR))
        assert_tensors(updates[-1].tensors, sent[client])
    assert_tensors(method.aggregate(state, updates).tensors, after)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_client_of_per_fedavg_adapts_what_it_is_given_before_it_uses_it(steps):
    method = create("per-fedavg", {"alpha": hand.ALPHA, "adapt_steps": steps})
    network = method.deploy(state_of(method, (TIER,), hand.start()), TIER)
    x, y = data(*hand.CLIENTS["B"])
    moved = adapted(method, network, torch.from_numpy(x).float(), torch.from_numpy(y))
    assert_tensors(moved.state_dict(), hand.adapted(hand.start(), "B", steps))
    assert_tensors(network.state_dict(), hand.start())
    assert not moved.training


def fomo_state(method):
    """A server that remembers client A as number 1, and the models of clients 5, 6 and 7."""
    state = state_of(method, (TIER,), hand.start())
    models = {1: hand.start(), **hand.others()}
    own = {"affinity": torch.zeros(0), "rounds": torch.tensor(1.0)}
    return state.replace(state.tensors, clients={client: {**torched(model), **own} for client, model in models.items()})


@pytest.mark.parametrize("seed", range(3))
def test_a_client_of_fedfomo_moves_towards_models_that_do_better_on_its_samples(seed):
    """Whatever order the server sends them in."""
    method = create("fedfomo", {"models": 3, "validation": hand.VALIDATION})
    raw, moved, after = hand.fomo()
    assert min(raw[5], raw[6]) > 0 > raw[7], "the derivation must have two weights and one that is clipped"
    state = fomo_state(method)
    assert misfit(method, state_of(method, (TIER,), hand.start()), state) == ""
    sub = method.submodel(state, TIER, np.random.default_rng(seed), 1)
    senders = [sub.places[f"model{slot}.fc.bias"].client for slot in range(3)]
    assert sorted(senders) == [5, 6, 7]
    module = sub.build().train()
    x, y = (torch.from_numpy(part) for part in data(*hand.CLIENTS["A"]))
    own = torched(hand.start())
    received(method, module, sub.tensors, own, (x.float(), y))
    assert_tensors(module.state_dict(), moved)
    optimizer = torch.optim.SGD(module.parameters(), lr=hand.LR)
    method.local_loss(module.train(), Batch(x.float(), y)).backward()
    optimizer.step()
    sent = method.upload(module)
    assert_tensors(sent, {**after, "affinity": np.array([raw[number] for number in senders])})
    assert_tensors(method.keep(module), after)

    # Another client answers too: the mean is weighted by samples, models and affinities are each client's own.
    strange = torched({name: tensor - 0.2 for name, tensor in hand.start().items()})
    other = method.submodel(state, TIER, np.random.default_rng(seed), 5)
    reports = [
        Update(1, TIER, sent, sub.places, 3),
        Update(5, TIER, {**strange, "affinity": torch.tensor([0.5, -0.25, 2.0])}, other.places, 6),
    ]
    after_round = method.aggregate(state, reports)
    tensors, clients = after_round.tensors, after_round.clients
    expected = hand.mean([after, {name: tensor - 0.2 for name, tensor in hand.start().items()}], [3, 6])
    assert_tensors({name: tensors[name] for name in expected}, expected)
    assert_tensors({name: clients[1][name] for name in after}, after)
    assert_tensors({name: clients[7][name] for name in after}, hand.others()[7])
    affinity = np.zeros(8)
    affinity[[5, 6, 7]] = raw[5], raw[6], raw[7]
    np.testing.assert_allclose(clients[1]["affinity"].numpy(), affinity, rtol=2e-5, atol=2e-6)
    order = [other.places[f"model{slot}.fc.bias"].client for slot in range(3)]
    reported = dict(zip(order, (0.5, -0.25, 2.0), strict=True))
    assert reported == {number: float(clients[5]["affinity"][number]) for number in (1, 6, 7)}
    assert float(clients[1]["rounds"]) == 2
    assert float(clients[7]["rounds"]) == 1


def clustered(**options):
    method = create("clustered-fl", options)
    state = state_of(method, (TIER,), hand.start())
    reports = []
    for client, delta in hand.updates().items():
        places = method.submodel(state, TIER, np.random.default_rng(0), client).places
        reports.append(Update(client, TIER, torched(hand.shifted(delta)), places, hand.COUNTS[client]))
    return method, state, reports


@pytest.mark.parametrize("order", [1, -1])
def test_a_cluster_splits_by_the_best_of_all_partitions_and_each_part_averages_its_own(order):
    method, state, reports = clustered(eps1=10.0, eps2=0.1)
    across, one, two = hand.partition(hand.updates())
    assert across < 0
    assert sorted([one, two]) == [[0, 4], [2, 9]]
    assert sorted(map(sorted, groups(bipartition_of_hand()))) == [[0, 4], [2, 9]]
    after = method.aggregate(state, reports[::order])
    first, second = hand.shifted(hand.weighted([0, 4], hand.updates())), hand.shifted(hand.weighted([2, 9], hand.updates()))
    assert_tensors(after.tensors, first)
    assert after.clusters.keys() == {1}
    assert_tensors(after.clusters[1], second)
    assert assigned_in(after) == {c: float(c in (2, 9)) for c in hand.DIRECTIONS}
    assert misfit(method, state, after) == ""
    for client, model in {0: first, 2: second, 4: first, 9: second, 77: first}.items():
        assert_tensors(method.submodel(after, TIER, np.random.default_rng(0), client).tensors, model)
        assert_tensors(method.deploy(after, TIER, None, client).state_dict(), model)


def assigned_in(state):
    """Client → cluster."""
    assert all(tensors.keys() == {"cluster"} for tensors in state.clients.values())
    return {client: float(tensors["cluster"]) for client, tensors in state.clients.items()}


def bipartition_of_hand():
    from edgefl.factor.rank1 import cosines

    deltas, clients = hand.updates(), sorted(hand.DIRECTIONS)
    stacked = torch.stack([torch.cat([torch.from_numpy(t).flatten() for t in deltas[c].values()]) for c in clients])
    return tuple([clients[i] for i in part] for part in bipartition(cosines(stacked)))


def groups(parts):
    return [list(part) for part in parts]


@pytest.mark.parametrize(
    "options", [{"eps1": 1e-3, "eps2": 0.1}, {"eps1": 10.0, "eps2": 100.0}, {"eps1": 10.0, "eps2": 0.1, "least": 5}]
)
def test_a_cluster_that_is_not_stationary_or_whose_clients_are_all_near_theirs_or_too_few_does_not_split(options):
    method, state, reports = clustered(**options)
    after = method.aggregate(state, reports)
    assert_tensors(after.tensors, hand.shifted(hand.weighted(list(hand.DIRECTIONS), hand.updates())))
    assert not after.clusters
    assert assigned_in(after) == dict.fromkeys(hand.DIRECTIONS, 0.0)
    assert 1e-3 < hand.norm(hand.weighted(list(hand.DIRECTIONS), hand.updates())) < 10
    assert 0.1 < max(map(hand.norm, hand.updates().values())) < 100


def test_the_next_round_moves_only_the_clusters_whose_clients_took_part():
    method, state, reports = clustered(eps1=10.0, eps2=0.1)
    split = method.aggregate(state, reports)
    places = method.submodel(split, TIER, np.random.default_rng(0), 9).places
    after = method.aggregate(split, [Update(9, TIER, torched(hand.start()), places, 4)])
    for name, tensor in hand.start().items():
        np.testing.assert_allclose(after.clusters[1][name].numpy(), tensor, rtol=2e-5, atol=2e-6)
        assert torch.equal(after.tensors[name], split.tensors[name])
    assert ARCHITECTURE.classes == 3


def test_a_personal_classifier_stays_at_home_and_clusters_split_by_the_layers_before_it():
    shared, own = hand.opposed_classifiers()
    whole = {client: {**shared[client], **own[client]} for client in shared}
    assert sorted(hand.partition(whole)[1:]) == [[0, 2], [4, 9]], "the classifiers must decide where they count"
    assert sorted(hand.partition(shared)[1:]) == [[0, 4], [2, 9]]
    method = create("clustered-fl", {"eps1": 10.0, "eps2": 0.1, "personal_classifier": True})
    state = state_of(method, (TIER,), hand.start())
    body = set(next(iter(shared.values())))
    reports = []
    for client, delta in shared.items():
        submodel = method.submodel(state, TIER, np.random.default_rng(0), client)
        assert submodel.tensors.keys() == body
        module = submodel.build()
        kept = torched({n: t for n, t in hand.shifted(own[client]).items() if n.startswith("fc.")})
        received(method, module, torched({n: hand.shifted(delta)[n] for n in body}), kept, (torch.zeros(0), torch.zeros(0)))
        reports.append(Update(client, TIER, method.upload(module), submodel.places, hand.COUNTS[client]))
        assert_tensors(reports[-1].tensors, {n: hand.shifted(delta)[n] for n in body})
        assert_tensors(method.keep(module), {n: t.numpy() for n, t in kept.items()})
    after = method.aggregate(state, reports)
    assert assigned_in(after) == {c: float(c in (2, 9)) for c in hand.DIRECTIONS}
    assert misfit(method, state, after) == ""
    models = {c: hand.shifted(hand.weighted([0, 4] if c in (0, 4) else [2, 9], shared)) for c in hand.DIRECTIONS}
    for client, model in models.items():
        assert_tensors(method.submodel(after, TIER, np.random.default_rng(0), client).tensors, {n: model[n] for n in body})
        kept = {n: t for n, t in hand.shifted(own[client]).items() if n.startswith("fc.")}
        assert_tensors(method.deploy(after, TIER, torched(kept), client).state_dict(), {**model, **kept})
        # A client that never trained has the initial classifier.
        assert_tensors(method.deploy(after, TIER, None, client).state_dict(), model)
