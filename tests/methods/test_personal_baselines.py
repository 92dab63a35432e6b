"""Per-FedAvg, FedFOMO and Clustered-FL beyond their hand-derived rounds: choices, sizes, costs, odd cases."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.client.training import Training
from edgefl.errors import ConfigError
from edgefl.methods.capabilities import misfit
from edgefl.methods.clustered import bipartition
from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.methods.personal import adapted, download_shapes, received
from edgefl.models.base import Architecture
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Batch, Tier, Update
from edgefl.rng import generator
from edgefl.wire.payload import payload_bytes

CNN = Architecture("cnn-digits", (1, 8, 8), 4)
TIER = Tier(1.0)


def started(name, **options):
    method = create(name, options)
    return method, method.init(CNN, (TIER,), generator(0, "init"))


def test_a_batch_of_one_is_both_halves_of_per_fedavg():
    method, state = started("per-fedavg", alpha=0.1)
    module = method.deploy(state, TIER)
    x, y = torch.ones(1, 1, 8, 8), torch.tensor([2])
    loss = method.local_loss(module, Batch(x, y))
    moved = adapted(method, module, x, y)
    expected = torch.nn.functional.cross_entropy(moved(x), y)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_per_fedavg_costs_as_many_macs_as_fedavg_and_holds_half_a_batch():
    training = Training(1, 32, 0.05, 0.9, 1e-4)
    cost, plain = (tier_cost(create(name), CNN, TIER, training) for name in ("per-fedavg", "fedavg"))
    assert cost.macs_train_step == plain.macs_train_step
    assert cost.training_memory_bytes < plain.training_memory_bytes
    assert cost.uncounted_ops == ()


def fomo(clients=(0, 1, 2, 3, 4), **options):
    """A FedFOMO server after a round of ``clients``, each with a model of its own constant."""
    method, first = started("fedfomo", **options)
    shapes = upload_shapes(method, CNN, TIER)
    updates = []
    for client in clients:
        places = method.submodel(first, TIER, generator(0), client).places
        updates.append(Update(client, TIER, {n: torch.full(s, float(client)) for n, s in shapes.items()}, places, 1))
    return method, first, method.aggregate(first, updates)


def senders(submodel, models):
    places = [submodel.places[f"model{slot}.fc.bias"] for slot in range(models)]
    assert {place.target for place in places} == {"fc.bias"}
    return [place.client for place in places]


def remembering(state, client, **tensors):
    """The state in which ``tensors`` are what the server remembers of ``client`` besides or instead."""
    return state.replace(state.tensors, clients={**state.clients, client: {**state.clients.get(client, {}), **tensors}})


def test_fedfomo_fills_slots_without_another_client_with_the_mean_model():
    method, first, state = fomo((0, 1), models=3)
    assert senders(method.submodel(first, TIER, generator(0), 0), 3) == [None] * 3
    submodel = method.submodel(state, TIER, generator(0), 0)
    assert senders(submodel, 3) == [1, None, None]
    assert submodel.tensors["model0.fc.bias"].tolist() == [1.0] * 4
    assert submodel.tensors["model2.fc.bias"].tolist() == [0.5] * 4
    assert payload_bytes(download_shapes(method, CNN, TIER)) > 2.9 * payload_bytes(download_shapes(create("fedavg"), CNN, TIER))


def test_fedfomo_sends_the_models_of_the_largest_affinity():
    method, _, state = fomo(models=2, epsilon=0.0)
    affinity = torch.tensor([9.0, 0.0, -1.0, 0.4, 0.2])
    state = remembering(state, 0, affinity=affinity)
    for seed in range(5):
        assert senders(method.submodel(state, TIER, generator(seed), 0), 2) == [3, 4]


def test_fedfomo_ties_are_broken_at_random_and_exploring_ends_with_epsilon():
    method, _, state = fomo(models=1, epsilon=1.0, epsilon_decay=0.5)
    affinity = torch.tensor([0.0, 5.0])
    drawn = {}
    for rounds in (0.0, 2.0):
        told = remembering(state, 0, affinity=affinity, rounds=torch.tensor(rounds))
        drawn[rounds] = {senders(method.submodel(told, TIER, generator(seed), 0), 1)[0] for seed in range(40)}
    assert drawn[0.0] == {1, 2, 3, 4}
    assert drawn[2.0] == {1}
    same = remembering(state, 0, affinity=torch.zeros(0), rounds=torch.tensor(2.0))
    assert len({senders(method.submodel(same, TIER, generator(seed), 0), 1)[0] for seed in range(40)}) == 4


def test_fedfomo_with_nothing_better_keeps_its_model():
    method, first = started("fedfomo", models=2)
    submodel = method.submodel(first, TIER, generator(0), 0)
    module = submodel.build()
    own = method.first_personal(CNN, TIER, generator(0, "init"))
    received(method, module, submodel.tensors, own, (torch.ones(5, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0])))
    assert all(torch.equal(tensor, own[name]) for name, tensor in module.state_dict().items())
    assert method.upload(module)["affinity"].tolist() == [0.0, 0.0]


def test_fedfomo_gives_a_model_that_overflows_no_weight():
    method = create("fedfomo", {"models": 1})
    own = method.first_personal(CNN, TIER, generator(0, "init"))
    broken = {f"model0.{name}": torch.full_like(tensor, 3e38) for name, tensor in own.items()}
    module = method.network(CNN, TIER)
    received(method, module, broken, own, (torch.ones(3, 1, 8, 8), torch.tensor([0, 1, 2])))
    assert method.upload(module)["affinity"].tolist() == [0.0]
    assert all(torch.equal(tensor, own[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize(("samples", "judged"), [(1, 1), (5, 1), (6, 2), (100, 20)])
def test_fedfomo_counts_the_forward_passes_of_its_own_model_and_of_each_that_it_received(samples, judged):
    assert create("fedfomo", {"models": 3}).evaluated(samples) == 4 * judged


def test_fedfomo_keeps_and_deploys_the_clients_own_model():
    method, first, state = fomo(models=2)
    assert method.keep(method.network(CNN, TIER)).keys() == method.first_personal(CNN, TIER, generator(0)).keys()
    for client, expected in ((3, 3.0), (77, 2.0), (None, 2.0)):
        assert method.deploy(state, TIER, None, client).fc.bias[0].item() == expected
    kept = {name: torch.full_like(tensor, 7.0) for name, tensor in first.tensors.items()}
    assert method.deploy(state, TIER, kept, 3).fc.bias[0].item() == 7.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: remembering(state, 2, affinity=torch.zeros(3, 3)), "client 2 is of another model .affinity has shape"),
        (lambda state: remembering(state, 9, rounds=torch.tensor(1.0)), "client 9 is of another model .affinity is missing"),
        (lambda state: state.replace({**state.tensors, "fc.bias": torch.zeros(9)}), "another model"),
    ],
)
def test_fedfomo_states_that_do_not_fit_say_why(change, message):
    import re

    method, first, state = fomo()
    assert misfit(method, first, state) == ""
    assert re.search(message, misfit(method, first, change(state)))


def test_fedfomo_alone_is_refused():
    with pytest.raises(ConfigError, match="one client alone has no other models to download: clients is 1"):
        create("fedfomo").check(CNN, (TIER,), 1)


@given(st.integers(2, 7), st.integers(0, 10_000))
def test_no_other_partition_has_a_smaller_largest_similarity_across(count, seed):
    half = np.random.default_rng(seed).uniform(-1, 1, (count, count))
    similarity = (half + half.T) / 2
    parts = bipartition(torch.from_numpy(similarity))
    assert sorted(parts[0] + parts[1]) == list(range(count))
    assert parts[0]
    assert parts[1]

    def across(one):
        return max(similarity[i, j] for i in one for j in range(count) if j not in one)

    best = min(across([i for i in range(count) if code >> i & 1]) for code in range(1, 2**count - 1))
    assert across(parts[0]) == pytest.approx(best)


def clusters(directions, **options):
    """Clustered-FL after a round in which client i moved every value by ``directions[i]``."""
    method, state = started("clustered-fl", **{"eps1": 1e9, "eps2": 0.0, "least": 2, **options})
    return method, state, method.aggregate(state, answers(method, state, directions))


def answers(method, state, directions):
    found = []
    for client, step in directions.items():
        submodel = method.submodel(state, TIER, generator(0), client)
        noise = np.random.default_rng(client)
        tensors = {
            n: t + step + 0.01 * torch.from_numpy(noise.standard_normal(t.shape)).float() for n, t in submodel.tensors.items()
        }
        found.append(Update(client, TIER, tensors, submodel.places, 4))
    return found


def test_clusters_split_again_and_get_numbers_of_their_own():
    method, first, state = clusters({0: 1.0, 1: 1.0, 2: -1.0, 3: -1.0, 4: 1.0})
    assert method.observe(state, []) == {"clusters": [3, 2]}
    state = method.aggregate(state, answers(method, state, {0: 1.0, 1: -1.0, 2: 1.0, 3: -1.0}))
    assert method.observe(state, []) == {"clusters": [2, 1, 1, 1]}
    # Client 4 was not seen: it stays with the cluster's number. Equal groups: the smallest client's keeps it.
    where = {client: int(state.clients[client]["cluster"]) for client in range(5)}
    assert where == {0: 0, 1: 2, 2: 1, 3: 3, 4: 0}
    assert misfit(method, first, state) == ""


def test_client_updates_of_zero_do_not_split_a_cluster_by_accident():
    method, state = started("clustered-fl")
    tensors = method.submodel(state, TIER, generator(0), 0)
    after = method.aggregate(state, [Update(c, TIER, tensors.tensors, tensors.places, 1) for c in range(4)])
    assert method.observe(after, []) == {"clusters": [4]}
    assert method.observe(state, []) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: remembering(state, 0, cluster=torch.tensor(5.0)), "clients in cluster 5, which is none of its 2"),
        (lambda state: state.replace(state.tensors, clusters={3: state.clusters[1]}), "clusters are numbered 3, expected 1 to 1"),
        (
            lambda s: s.replace(s.tensors, clusters={1: {n: t for n, t in s.clusters[1].items() if n != "fc.bias"}}),
            "another model",
        ),
    ],
)
def test_clustered_states_that_do_not_fit_say_why(change, message):
    method, first, state = clusters({0: 1.0, 1: 1.0, 2: -1.0})
    assert misfit(method, first, first) == ""
    assert message in misfit(method, first, change(state))
