"""Rules of defences: what goes in comes out in the same form, whatever the order, and honest rounds survive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from edgefl.methods.axes import needs
from edgefl.records import Place, Tier, Update
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence, defence_named

STATE = {"w": torch.tensor([[1.0, -2.0, 0.5], [3.0, 0.25, -1.0], [2.0, 4.0, -0.5]]), "b": torch.tensor([0.5, -1.5, 2.5])}
KEPT_ROWS = {Tier(1.0): 3, Tier(0.5): 2}


def update_of(client: int, change: float = 0.1, spread: float = 0.0) -> Update:
    """Return the update of a client whose values change by ``change``, and by normal noise of ``spread``; even clients are narrow."""
    tier = (Tier(0.5), Tier(1.0))[client % 2]
    index = slice(0, KEPT_ROWS[tier])
    places = {"w": Place("w", (index, index)), "b": Place("b", (index,))}
    sent = {name: STATE[name][place.index].clone() for name, place in places.items()}
    rng = np.random.default_rng(client)
    tensors = {n: t + change + spread * torch.from_numpy(rng.standard_normal(tuple(t.shape))).float() for n, t in sent.items()}
    return Update(client, tier, tensors, places, 10 + client, sent=sent)


def defended(defence: Defence, updates: Sequence[Update]) -> dict[int, dict[str, Tensor]]:
    """Return client → tensors that the defence leaves."""
    return {update.client: dict(update.tensors) for update in defence.defended(Changes(tuple(updates), STATE))}


def honest(count: int) -> list[Update]:
    """Return honest updates of two tiers."""
    return [update_of(client, 0.1, 0.01) for client in range(count)]


def test_a_defence_names_capabilities_that_methods_declare(defence: str) -> None:
    """Its usual strength is a number from 0, and every need is a capability."""
    assert defence_named(defence).strength >= 0
    needs("defence", defence)


def test_what_is_left_has_the_form_of_what_arrived(defence: str) -> None:
    """Updates keep client, tier, samples, places, names, shapes and dtypes; at least one is left, and values are finite."""
    for count in (1, 2, 3, 9):
        arrived = {update.client: update for update in honest(count)}
        left = defence_named(defence).defended(Changes(tuple(arrived.values()), STATE))
        assert left, f"of {count} updates none is left"
        for update in left:
            before = arrived[update.client]
            assert (update.tier, update.samples, update.places) == (before.tier, before.samples, before.places)
            assert {n: (t.shape, t.dtype) for n, t in update.tensors.items()} == {
                n: (t.shape, t.dtype) for n, t in before.tensors.items()
            }
            assert all(bool(tensor.isfinite().all()) for tensor in update.tensors.values())


def test_the_order_of_updates_does_not_change_the_defence(defence: str) -> None:
    """The same updates in the opposite order leave the same clients, equal to within rounding."""
    one, other = (defended(defence_named(defence), updates) for updates in (honest(9), honest(9)[::-1]))
    assert one.keys() == other.keys()
    for client, tensors in one.items():
        assert all(torch.allclose(tensors[name], other[client][name], atol=1e-6) for name in tensors)


def test_a_defence_changes_nothing_in_place(defence: str) -> None:
    """Updates and what was sent stay as they were, and the same updates give the same bits again."""
    updates, same = honest(9), honest(9)
    first, second = (defended(defence_named(defence), updates) for _ in range(2))
    for update, before in zip(updates, same, strict=True):
        for name in update.tensors:
            assert torch.equal(update.tensors[name], before.tensors[name])
            assert torch.equal(update.sent[name], before.sent[name])
    assert all(torch.equal(tensor, second[client][name]) for client, tensors in first.items() for name, tensor in tensors.items())


def test_clients_that_agree_are_left_as_they_are(defence: str) -> None:
    """If all changes are equal, every update that is left has this change."""
    for client, tensors in defended(defence_named(defence), [update_of(client) for client in range(9)]).items():
        expected = update_of(client).tensors
        assert all(torch.allclose(tensors[name], expected[name], atol=1e-6) for name in tensors)


def test_clients_that_changed_nothing_change_nothing(defence: str) -> None:
    """If nobody's weights changed, what is left equals what was sent."""
    for client, tensors in defended(defence_named(defence), [update_of(client, 0.0) for client in range(9)]).items():
        assert all(torch.equal(tensors[name], update_of(client).sent[name]) for name in tensors)
