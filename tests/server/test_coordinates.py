"""Which values of unlike tiers stand for the same weights, worked out by hand on states small enough to see."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from edgefl.methods.create import create
from edgefl.methods.networks import upload_shapes
from edgefl.models.base import Architecture
from edgefl.records import Place, Tier, Update
from edgefl.rng import generator
from edgefl.server.coordinates import Changes

WIDE, NARROW = Tier(1.0), Tier(0.5)
STATE = {"w": torch.tensor([[1.0, -2.0], [3.0, 5.0]])}


def wide(client: int, change: list[list[float]], **more) -> Update:
    tensors = {"w": STATE["w"] + torch.tensor(change)}
    return Update(client, WIDE, tensors, {"w": Place("w", (slice(None), slice(None)))}, 1, sent=STATE, **more)


def narrow(client: int, change: float, row: int = 0) -> Update:
    index = slice(row, row + 1), slice(0, 1)
    sent = {"w": STATE["w"][index].clone()}
    return Update(client, NARROW, {"w": sent["w"] + change}, {"w": Place("w", index)}, 1, sent=sent)


# Entry (0, 0) is held by all three: changes 2, −4 and 9. The others are held by clients 0 and 1.
UPDATES = (wide(0, [[2.0, 1.0], [-3.0, 0.5]]), wide(1, [[-4.0, -5.0], [1.0, 2.5]]), narrow(2, 9.0))


def columns(changes: Changes) -> dict[tuple[int, ...], list[list[float]]]:
    """Return the holders → the changes that they have at each coordinate."""
    found: dict[tuple[int, ...], list[list[float]]] = {}
    for block in changes.blocks():
        found.setdefault(tuple(block.holders), []).extend(block.values.T.tolist())
    return found


def test_every_coordinate_comes_once_with_all_its_holders():
    assert columns(Changes(UPDATES, STATE)) == {(0, 1, 2): [[2.0, -4.0, 9.0]], (0, 1): [[1.0, -5.0], [-3.0, 1.0], [0.5, 2.5]]}


def test_a_slice_that_does_not_lead_shares_the_entries_that_it_has():
    found = columns(Changes((UPDATES[0], narrow(2, 9.0, row=1)), STATE))
    assert found == {(0,): [[2.0], [1.0], [0.5]], (0, 1): [[-3.0, 9.0]]}


def test_the_centre_goes_to_every_holder_and_to_no_other_entry():
    left = Changes(UPDATES, STATE).replaced(lambda values: values.mean(0))
    shared = (2.0 - 4.0 + 9.0) / 3
    of_two = [[shared, (1 - 5) / 2], [(-3 + 1) / 2, (0.5 + 2.5) / 2]]
    for update in left[:2]:
        np.testing.assert_allclose((update.tensors["w"] - STATE["w"]).numpy(), of_two, rtol=1e-6)
    assert float(left[2].tensors["w"]) == pytest.approx(1.0 + shared, rel=1e-7)


def test_distances_are_means_over_what_two_clients_share():
    gaps = Changes(UPDATES, STATE).gaps()
    # 0 and 1 share four entries: 6² + 6² + 4² + 2²; 0 and 2 one: 7²; 1 and 2 one: 13².
    expected = [[0.0, 92 / 4, 49.0], [92 / 4, 0.0, 169.0], [49.0, 169.0, 0.0]]
    np.testing.assert_allclose(gaps.distances.numpy(), expected, atol=1e-9)
    squares = [4 + 1 + 9 + 0.25, 16 + 25 + 1 + 6.25, 81.0]
    np.testing.assert_allclose(gaps.rms.numpy(), [math.sqrt(squares[0] / 4), math.sqrt(squares[1] / 4), 9.0])
    assert gaps.tiers == (WIDE, WIDE, NARROW)


def test_clients_that_share_nothing_have_no_distance():
    assert Changes((narrow(0, 1.0), narrow(1, 1.0, row=1)), STATE).gaps().distances[0, 1].isnan()


def test_rows_of_absent_labels_hold_nothing():
    updates = wide(0, [[2.0, 1.0], [-3.0, 0.5]], labels=(0,)), wide(1, [[-4.0, -5.0], [1.0, 2.5]], labels=(0, 1))
    assert columns(Changes(updates, STATE, frozenset(["w"]))) == {(0, 1): [[2.0, -4.0], [1.0, -5.0]], (1,): [[1.0], [2.5]]}
    left = Changes(updates, STATE, frozenset(["w"])).replaced(lambda values: 0 * values[0])
    assert torch.equal(left[0].tensors["w"][1], updates[0].tensors["w"][1])  # as its client sent it


def test_more_kinds_of_holders_than_an_integer_has_bits():
    """Seventy clients that each know other labels: the groups of holders are still exact."""
    state = {"w": torch.zeros(80, 1)}
    updates = [
        Update(n, WIDE, {"w": torch.full((80, 1), float(n))}, {"w": Place("w", ())}, 1, (n, n + 1, 79), {"w": torch.zeros(80, 1)})
        for n in range(70)
    ]
    found = columns(Changes(tuple(updates), state, frozenset(["w"])))
    assert found[tuple(range(70))] == [[float(n) for n in range(70)]]
    assert all(found[n, n + 1] == [[float(n), n + 1.0]] for n in range(69))


def test_factors_of_a_smaller_rank_are_the_leading_components_of_larger_ones():
    """FedHM: a tier of half the rank shares the first components with a larger one, and nothing of the layer with the dense tier."""
    method, architecture = create("fedhm", {"factorize": "*"}), Architecture("mlp", (1, 8, 8), 10)
    tiers = Tier(1.0), Tier(0.5), Tier(0.25)
    state = method.init(architecture, tiers, generator(0, "init"))
    updates = []
    for client, tier in enumerate(tiers):
        sent = method.submodel(state, tier, np.random.default_rng(0))
        tensors = {name: tensor + (client + 1) for name, tensor in sent.tensors.items()}
        updates.append(Update(client, tier, tensors, sent.places, 1, sent=sent.tensors))
    shapes = [{name: tuple(tensor.shape) for name, tensor in update.tensors.items()} for update in updates]
    factors = sorted(name for name in shapes[1] if name.endswith((".u.weight", ".v.weight")))
    assert factors, "the test needs factorized layers"
    assert not set(factors) & shapes[0].keys()
    shared: dict[tuple[int, ...], int] = {}
    for block in Changes(tuple(updates), state.tensors).blocks():
        if set(block.names) <= set(factors):
            shared[tuple(block.holders)] = shared.get(tuple(block.holders), 0) + block.values.shape[1]
    small = sum(math.prod(shapes[2][name]) for name in factors)
    large = sum(math.prod(shapes[1][name]) for name in factors)
    assert shared == {(1, 2): small, (1,): large - small}


@pytest.mark.parametrize("name", ["flanc", "heterofl", "splitmix", "hetlora", "orthdrop"])
def test_every_value_of_every_update_has_one_coordinate(name):
    method, architecture = create(name), Architecture("mlp", (1, 8, 8), 10)
    state = method.init(architecture, tuple(map(Tier, method.default_tiers)), generator(0, "init"))
    updates = []
    for client in range(4):
        sent = method.submodel(state, state.tiers[client % len(state.tiers)], np.random.default_rng(client), client)
        names = upload_shapes(method, architecture, sent.tier)
        tensors = {name: sent.tensors[name] + 1 for name in names}
        updates.append(Update(client, sent.tier, tensors, sent.places, 1, sent=sent.tensors))
    counted = [0] * 4
    for block in Changes(tuple(updates), state.tensors).blocks():
        for holder in block.holders:
            counted[holder] += block.values.shape[1]
        assert torch.allclose(block.values, torch.ones_like(block.values), atol=1e-5)
    assert counted == [sum(tensor.numel() for tensor in update.tensors.values()) for update in updates]
