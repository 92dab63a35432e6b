"""A round of FedDF against the derivation in feddf_by_hand.py, and what its server computes."""

from typing import Any

import feddf_by_hand as hand
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from edgefl.client.training import Training
from edgefl.methods.feddf import FedDF, FedDFConfig
from edgefl.methods.state import GlobalState
from edgefl.models.unlike import Unlike
from edgefl.planning.network import architecture_of
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier, Update
from edgefl.rng import generator
from edgefl.server.distillation import Public

METHOD = FedDF(FedDFConfig(server_steps=hand.STEPS, server_batch=hand.BATCH, server_lr=hand.RATE))
TIERS = {"1": Tier(1.0), "0.25": Tier(0.25)}
NETWORKS = Unlike.of(
    {
        "1": architecture_of(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), (4,), 3),
        "0.25": architecture_of(lambda: nn.Linear(4, 3), (4,), 3),
    }
)
X = torch.from_numpy(hand.public()).float()
BEFORE = {label: hand.network(label, 7.0) for label in TIERS}


def tensors_of(networks: dict[str, dict[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return networks of tiers as the state has them."""
    named = {("" if label == "1" else f"{label}/") + name: t for label, own in networks.items() for name, t in own.items()}
    return {name: torch.from_numpy(tensor).float() for name, tensor in named.items()}


def started() -> GlobalState:
    first = METHOD.init(NETWORKS, tuple(TIERS.values()), generator(0))
    given = tensors_of(BEFORE)
    assert {name: t.shape for name, t in first.tensors.items()} == {name: t.shape for name, t in given.items()}
    return first.replace(given)


def updates_of(state: GlobalState, clients: str) -> list[Update]:
    """Return what the clients send, in this order."""
    found = []
    for number, name in enumerate(clients):
        label, tensors = hand.CLIENTS[name]
        places = METHOD.submodel(state, TIERS[label], generator(0)).places
        sent = {key: torch.from_numpy(tensor).float() for key, tensor in tensors.items()}
        found.append(Update(number, TIERS[label], sent, places, hand.SAMPLES[name]))
    return found


@pytest.mark.parametrize("clients", ["ABC", "CBA", "AB", "C"])
def test_kinds_are_averaged_apart_and_learn_from_the_mean_of_all_outputs(clients: str) -> None:
    state = started()
    updates = updates_of(state, clients)
    averaged = METHOD.aggregate(state, updates)
    expected = tensors_of({**BEFORE, **hand.averages(clients)})
    for name, tensor in averaged.tensors.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    found = METHOD.distilled(averaged, updates, X, np.random.default_rng(3))
    expected = tensors_of(hand.round_of(BEFORE, clients, 3))
    assert found.state.tensors.keys() == expected.keys()
    for name, tensor in found.state.tensors.items():
        alone = clients == "C" and name.startswith("0.25/")
        assert torch.equal(tensor, averaged.tensors[name]) == alone
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=2e-5)


def test_the_server_counts_what_it_computes() -> None:
    state, training = started(), Training(1, 2)
    updates = updates_of(state, "ABC")
    costs = {tier: tier_cost(METHOD, NETWORKS, tier, training) for tier in TIERS.values()}
    public = Public(X, costs.__getitem__)
    turn: Any = type("Turn", (), {"number": 1, "draw": lambda self, purpose: generator(0, 1, purpose)})()
    with FlopCounterMode(display=False) as counter:
        _, figures = public.distilled(METHOD, METHOD.aggregate(state, updates), updates, turn)
    # A layer on the samples needs no gradient of its input. Three teachers see all five samples, two students train on four batches of two.
    assert figures == {"teachers": 3, "macs": 5 * (2 * 35 + 12) + 8 * (35 + 35 + 15 + 12 + 12)}
    assert figures["macs"] == counter.get_total_flops() // 2


def test_one_more_round_has_the_same_bits_and_another_seed_has_others() -> None:
    state = started()
    updates = updates_of(state, "ABC")
    one, again, other = (METHOD.distilled(state, updates, X, generator(seed, 1)).state.tensors for seed in (0, 0, 1))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
