"""Steps with a buffer against fedbuff_by_hand."""

from __future__ import annotations

from types import SimpleNamespace

import fedbuff_by_hand as hand
import pytest
import torch
from rounds_of import ARCHITECTURE, assert_same, first_state, tensors

from edgefl.fleet.conditions import Conditions
from edgefl.methods.create import create
from edgefl.methods.updates import moved
from edgefl.records import Expected, Outcome, Tier, Timing
from edgefl.server.client_store import ClientStore
from edgefl.server.exchange import ExchangeRules
from edgefl.server.fedbuff import Buffer, blob_of
from edgefl.server.rounds import Server, run_round
from edgefl.server.samplers import UNIFORM
from edgefl.server.state import ServerState
from edgefl.wire.payload import decode, encode

TIER = Tier(1.0)


class Always:
    """Sessions of the lengths that the script has."""

    conditions, seed = Conditions(), 0
    plan = SimpleNamespace(population=SimpleNamespace(clients=3), deadline_s=None)

    sampler = UNIFORM

    def choose(self, memory, turn, round_):
        return None

    def expected(self, asked, drained_j):
        found = []
        for client in asked.clients.tolist():
            timing = Timing(0.5, hand.LENGTHS_S[client] - 1.0, 0.5, 1.0, 1.0)
            found.append(Expected(client, "board", "expected", TIER, hand.SAMPLES[client], timing=timing, start_s=asked.start_s))
        return found


class ByHand:
    """Trains as the script does."""

    def map(self, jobs):
        for number, job in enumerate(jobs):
            sent = decode(job.payload, hand.SHAPES, "the server")
            goal = tensors(hand.target(job.client))
            answer = {name: tensor - hand.RATE * (tensor - goal[name]) for name, tensor in sent.items()}
            yield number, Outcome(job.client, "trained", steps=1, payload=encode(answer))


def play(power, path, steps=4):
    method = create("fedavg")
    state = ServerState(first_state(method, TIER, hand.start()))
    found, store = [], ClientStore(path)
    server = Server(method, Always(), ExchangeRules(0), 2, ByHand(), store, Buffer(size=2, at_work=3, power=power))
    for _ in range(steps):
        state, record = run_round(server, state)
        found.append((state, record))
    return found, store


@pytest.mark.parametrize("power", [0.5, 0.0, 1.0])
def test_the_server_moves_by_changes_that_weigh_less_the_older_they_are(power, tmp_path):
    states = hand.states(power)
    for number, (state, record) in enumerate(play(power, tmp_path / "kept.sqlite")[0]):
        clock_s, updates = hand.STEPS[number]
        assert record.clock_s == state.clock_s == clock_s
        assert [(o.client, o.staleness) for o in record.clients] == [(client, number - sent) for client, sent in updates]
        assert {o.status for o in record.clients} == {"trained"}
        assert_same(state.model.tensors, states[number + 1])
    stale = {number - sent for number, (_, updates) in enumerate(hand.STEPS) for _, sent in updates}
    assert stale == {0, 1, 2}
    largest = max(abs(states[-1][name] - other[name]).max() for other in hand.states(power + 0.25)[-1:] for name in hand.SHAPES)
    assert largest > 0.01  # what an update weighs can be seen


def test_what_a_client_at_work_was_sent_is_kept_until_it_answers(tmp_path):
    (_, (second, _)), store = play(0.5, tmp_path / "kept.sqlite", 2)
    (session,) = second.fleet.sessions
    assert (session.client, session.step, session.expected.start_s, session.end_s) == (2, 0, 0.0, 7.0)
    assert store.blobs() == [blob_of(session, per_client=False)]
    payload = store.blob(blob_of(session, per_client=False))
    assert_same(decode(payload, hand.SHAPES, "the server"), hand.start())


def test_a_change_is_taken_for_one_of_the_present_weights():
    now, sent, received = (torch.tensor(values) for values in ([1.0, -2.0], [0.5, 0.25], [0.25, 1.25]))
    assert moved({"w": received}, {"w": sent}, {"w": now}, 0.5)["w"].tolist() == [0.875, -1.5]
    assert moved({"w": sent}, {"w": sent}, {"w": now}, 0.5)["w"].tolist() == now.tolist()
    assert [Buffer(1, 1).weight(s) for s in (0, 3, 8)] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [Buffer(1, 1, power).weight(4) for power in (0.0, 1.0)] == pytest.approx([1, 1 / 5])


def test_the_network_of_the_script_is_the_one_that_is_trained():
    assert {name: tuple(tensor.shape) for name, tensor in ARCHITECTURE.build().state_dict().items()} == hand.SHAPES
