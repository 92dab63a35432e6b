"""Two rounds of Factorized-FL and β against the derivation in factorized_fl_by_hand.py."""

import factorized_fl_by_hand as hand
import numpy as np
import pytest
import torch
from small_conv import ARCHITECTURE, assert_tensors, state_of
from small_conv_by_hand import data, logits

from edgefl.methods.create import create
from edgefl.methods.personal import received
from edgefl.records import Batch, Tier, Update

TIER = Tier(1.0)
OPTIONS = {"personal_classifier": True, "sparsity": hand.SPARSITY, "threshold": hand.THRESHOLD, "scale": hand.SCALE}
FORMS = {"code": OPTIONS, "text": {**OPTIONS, "reshape": "filters", "penalty": hand.SPARSITY}}
"""The authors' code is the default."""
NUMBERS = {"A": 3, "B": 8}


def played(method, state, client, kept):
    """Receive, one step of SGD on all of the client's samples, upload; return the update and what is kept."""
    samples, begin = hand.CLIENTS[client]
    submodel = method.submodel(state, TIER, np.random.default_rng(0), NUMBERS[client])
    module = submodel.build().train()
    x, y = (torch.from_numpy(part) for part in data(samples, begin))
    received(method, module, submodel.tensors, kept, (x.float(), y))
    optimizer = torch.optim.SGD(module.parameters(), lr=hand.LR)
    method.local_loss(module, Batch(x.float(), y)).backward()
    optimizer.step()
    update = Update(NUMBERS[client], TIER, method.upload(module), submodel.places, samples)
    return update, method.keep(module)


@pytest.mark.parametrize("order", ["AB", "BA"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["factorized-fl", "factorized-fl-beta"])
def test_two_rounds_are_those_of_equations_3_to_6(name, form, order):
    method, beta = create(name, FORMS[form]), name.endswith("beta")
    sent, received, again, mean = hand.rounds(beta, form)
    begin = hand.start()
    state = state_of(method, (TIER,), begin)
    personal = method.personal(method.network(ARCHITECTURE, TIER))
    first = {n: torch.from_numpy(begin[n]).float() for n in personal}
    played_once = {client: played(method, state, client, first) for client in order}
    for client, (update, _) in played_once.items():
        assert_tensors(update.tensors, sent[client])
    state = method.aggregate(state, [update for update, _ in played_once.values()])
    for client in order:
        payload = method.submodel(state, TIER, np.random.default_rng(0), NUMBERS[client]).tensors
        assert_tensors(payload, received[client])
    second = [played(method, state, client, played_once[client][1])[0] for client in order]
    for client, update in zip(order, second, strict=True):
        assert_tensors(update.tensors, again[client])
    state = method.aggregate(state, second)
    after = state.tensors
    assert_tensors({n: after[n] for n in mean}, mean)
    untouched = set(begin) - set(mean)
    assert_tensors({n: after[n] for n in untouched}, {n: begin[n] for n in untouched})
    for client in order:
        assert_tensors(state.clients[NUMBERS[client]], again[client])


@pytest.mark.parametrize("form", FORMS)
def test_the_derivation_moves_what_it_should_and_matches_both_clients_in_part(form):
    sent, received, _, _ = hand.rounds(True, form)
    assert not np.allclose(received["A"]["conv1.u"], received["B"]["conv1.u"], atol=1e-3), "averages must differ between clients"
    assert not np.allclose(received["A"]["conv1.u"], sent["A"]["conv1.u"], atol=1e-3), "the other client must have a part"
    zeros = float(np.mean(sent["A"]["conv2.mu"] == 0))
    assert 0.05 < zeros < 0.95, "some entries of μ must be pruned and some must not"


@pytest.mark.parametrize("form", FORMS)
def test_a_deployed_client_is_the_composed_dense_network_with_pruned_mu(form):
    method = create("factorized-fl", FORMS[form])
    state = state_of(method, (TIER,), hand.start())
    personal = method.personal(method.network(ARCHITECTURE, TIER))
    held = hand.trained("B", hand.start(), form)
    network = method.deploy(state, TIER, {n: torch.from_numpy(held[n]).float() for n in personal}, 8)
    expected = hand.plain(hand.pruned({**held, "conv1.u": hand.start()["conv1.u"], "conv2.u": hand.start()["conv2.u"]}), form)
    assert_tensors(network.state_dict(), expected)
    x, _ = data(4, 1.0)
    with torch.no_grad():
        np.testing.assert_allclose(network(torch.from_numpy(x).float()).numpy(), logits(expected, x), rtol=1e-4, atol=1e-5)
