"""Clipping of a client's change, against values worked out by hand, and in workers against the server."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.client.clipping import adapted, change_of, clipped, norm_of
from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.client.stages.clip import Clip
from edgefl.client.stages.coded import PLAIN
from edgefl.methods.create import create
from edgefl.methods.tier_sum import finish
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier, Update
from edgefl.rng import generator
from edgefl.wire.payload import encode

SENT = {"w": torch.tensor([[1.0, -2.0], [0.5, 4.0]]), "b": torch.tensor([-1.0])}
# The change is (2, −4, 0, 5) and −6: its norm is √(4 + 16 + 25 + 36) = 9.
UPDATE = {"w": torch.tensor([[3.0, -6.0], [0.5, 9.0]]), "b": torch.tensor([-7.0])}


def test_a_long_change_is_scaled_to_the_bound():
    tensors, norm = clipped(UPDATE, SENT, 3.0)
    assert norm == 9.0
    third = 1 / 3
    expected = [[1 + 2 * third, -2 - 4 * third], [0.5, 4 + 5 * third]]
    np.testing.assert_allclose(tensors["w"].numpy(), expected, rtol=1e-7)
    assert tensors["b"].tolist() == [-3.0]
    assert tensors["w"].dtype is torch.float32


def test_a_change_at_the_bound_stays_to_the_bit():
    assert clipped(UPDATE, SENT, 9.0) == (UPDATE, 9.0)


def test_a_tensor_that_was_not_sent_counts_in_full():
    tensors, norm = clipped({"v": torch.tensor([-3.0, 4.0])}, SENT, 2.5)
    assert norm == 5.0
    assert tensors["v"].tolist() == [-1.5, 2.0]


def test_values_near_the_largest_float_are_clipped_too():
    """Their difference is more than a float32 holds."""
    largest = torch.finfo(torch.float32).max
    tensors, norm = clipped({"w": torch.tensor([-largest])}, {"w": torch.tensor([largest])}, 1e38)
    assert math.isclose(norm, 2 * largest)
    assert float(tensors["w"]) == pytest.approx(largest - 1e38, rel=1e-6)


floats = st.floats(-1e4, 1e4, width=32)


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=8), st.floats(1e-3, 1e4))
def test_the_norm_is_at_most_the_bound_and_the_direction_stays(pairs, bound):
    sent, update = ({"w": torch.tensor([pair[i] for pair in pairs])} for i in (0, 1))
    tensors, norm = clipped(update, sent, bound)
    before, after = change_of(update, sent)["w"], change_of(tensors, sent)["w"]
    rounding = 2.0**-23 * 1e4 * len(pairs)
    assert norm_of({"w": after}) <= bound + rounding
    assert torch.allclose(after * max(1.0, norm / bound), before, atol=rounding * max(1.0, norm / bound))


@pytest.mark.parametrize(
    ("within", "expected"),
    [(0.0, 2 * math.exp(0.3 * 0.25)), (1.0, 2 * math.exp(-0.3 * 0.75)), (0.25, 2.0)],
)
def test_the_bound_moves_geometrically_towards_the_quantile(within, expected):
    assert adapted(2.0, within, quantile=0.25, rate=0.3) == pytest.approx(expected, rel=1e-15)


def test_the_bound_finds_the_quantile():
    norms, bound = sorted(1.0 + 0.1 * number for number in range(101)), 0.01
    for _ in range(400):
        bound = adapted(bound, sum(norm <= bound for norm in norms) / len(norms), quantile=0.8, rate=0.2)
    assert bound == pytest.approx(norms[80], rel=0.02)


def test_a_worker_clips_to_the_bits_of_the_server():
    """Sums of clipped updates where clients train, and the server's own aggregate of them."""
    method, architecture, tiers = create("heterofl"), Architecture("mlp", (1, 8, 8), 10), (Tier(1.0), Tier(0.5))
    state = method.init(architecture, tiers, generator(0, "init"))
    sums, updates, rng = Sums(method, architecture, (Clip(2.0), PLAIN)), [], torch.Generator().manual_seed(5)
    submodels = {tier: method.submodel(state, tier, np.random.default_rng(0)) for tier in tiers}
    payloads = {tier: encode(submodel.tensors) for tier, submodel in submodels.items()}
    for client in range(6):
        tier, size = tiers[client % 2], 10.0 ** (client - 3)
        sent = submodels[tier]
        trained = {name: tensor + size * torch.randn(tensor.shape, generator=rng) for name, tensor in sent.tensors.items()}
        job = Job(1, client, method, tier, payloads[tier], weight=1, handed={"clip": 2.0})  # the method weighs all clients alike
        outcome = sums.add(job, Outcome(client, "trained", payload=encode(trained)))
        tensors, norm = clipped(trained, sent.tensors, 2.0)
        assert (outcome.figures, outcome.payload) == ({"change_norm": norm}, b"")
        updates.append(Update(client, tier, tensors, sent.places, client + 1))
    folded = finish(state, ((submodels[tier].places, of) for tier, of in sums.tiers.items()))
    whole = method.aggregate(state, iter(updates))
    assert all(torch.equal(folded.tensors[name], tensor) for name, tensor in whole.tensors.items())
    unclipped = replace(job, handed={})
    assert not sums.add(unclipped, Outcome(5, "trained", payload=encode(trained))).figures
