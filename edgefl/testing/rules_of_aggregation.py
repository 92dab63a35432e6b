"""Rules of aggregation: what updates do to the server's state, and which updates are refused."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from edgefl.errors import AggregationError
from edgefl.methods.capabilities import Distils, label_rows
from edgefl.methods.state import GlobalState, shapes_of
from edgefl.methods.tier_sum import finish, folds, tier_sum
from edgefl.records import Update
from edgefl.rng import generator
from edgefl.testing.cases import Case, equal_states, images, rule


@rule("unchanged clients leave the state unchanged")
def test_unchanged_clients_leave_the_state_unchanged(case: Case) -> None:
    state = case.state()
    updates = [case.update(state, tier, client, noise=0.0) for client, tier in enumerate(case.tiers)]
    after = case.method.aggregate(state, updates)
    shared = {name: after.tensors[name] for name in state.tensors}
    equal_states(state, after.replace(shared))


@rule("the order of updates does not matter")
def test_the_order_of_updates_does_not_matter(case: Case) -> None:
    state = case.state()
    tiers = (case.tiers * 3)[:5]
    updates = [case.update(state, tier, client, samples=3 + 7 * client) for client, tier in enumerate(tiers)]
    one, other = case.method.aggregate(state, updates), case.method.aggregate(state, reversed(updates))
    equal_states(one, other)


@rule("samples have an influence where the method says so")
def test_samples_have_an_influence_where_the_method_says_so(case: Case) -> None:
    state = case.state()
    updates = [case.update(state, case.tiers[0], client, samples=10) for client in range(2)]
    even = case.method.aggregate(state, updates)
    uneven = case.method.aggregate(state, [updates[0], replace(updates[1], samples=90)])
    alike = all(torch.equal(even.tensors[name], tensor) for name, tensor in uneven.tensors.items())
    alike &= all(torch.equal(even.warm[name], tensor) for name, tensor in uneven.warm.items())
    assert alike != case.method.weighs_samples


@rule("sums of tiers give the same bits")
def test_sums_of_tiers_give_the_same_bits(case: Case) -> None:
    state, tiers = case.state(), (case.tiers * 3)[:5]
    if not folds(case.method):
        return
    updates = [case.update(state, tier, client, samples=3 + 7 * client) for client, tier in enumerate(tiers)]
    updates = [replace(update, labels=None if update.client == 1 else (0, 2)[: 1 + update.client % 2]) for update in updates]
    parts = []  # in pairs, added in another order than the updates
    for group in (updates[3:], updates[2:0:-1], updates[:1]):
        sums = {update.tier: tier_sum(case.method, case.architecture, update.tier) for update in group}
        for update in group:
            sums[update.tier].add(update, update.samples if case.method.weighs_samples else 1)
        parts.append(sums)
    whole, *others = parts
    for tier, summed in (item for part in others for item in part.items()):
        whole.setdefault(tier, tier_sum(case.method, case.architecture, tier)).merge(summed)
    places = {update.tier: update.places for update in updates}
    after = finish(state, [(places[tier], summed) for tier, summed in whole.items()])
    expected = case.method.aggregate(state, updates)
    assert all(torch.equal(after.tensors[name], tensor) for name, tensor in expected.tensors.items())


@rule("one full-tier client alone wins outright")
def test_one_full_tier_client_alone_wins_outright(case: Case) -> None:
    state = case.state()
    update = case.update(state, case.tiers[0])
    after = case.method.aggregate(state, [update])
    assert any(not torch.equal(after.tensors[name], state.tensors[name]) for name in state.tensors)
    for name in update.tensors.keys() & after.tensors.keys():
        torch.testing.assert_close(after.tensors[name], update.tensors[name], rtol=1e-6, atol=1e-7)
    assert update.tensors.keys() & after.tensors.keys()


@rule("entries that nobody covered keep their value")
def test_entries_that_nobody_covered_keep_their_value(case: Case) -> None:
    state = case.state()
    smallest = case.tiers[-1]
    update = case.update(state, smallest)
    after = case.method.aggregate(state, [update])
    covered = {name: torch.zeros(t.shape, dtype=torch.bool) for name, t in state.tensors.items()}
    for name, place in update.places.items():
        if name not in update.tensors:
            continue
        region = covered[place.target][place.index]
        # A factor stands for components that touch every entry of its target.
        covered[place.target][place.index if region.shape == update.tensors[name].shape else ...] = True
    for name, mask in covered.items():
        assert torch.equal(after.tensors[name][~mask], state.tensors[name][~mask])
    for place in update.places.values():
        assert covered[place.target].any()


@rule("rows of a label without clients keep their value")
def test_rows_of_a_label_without_clients_keep_their_value(case: Case) -> None:
    state, every = case.state(), tuple(range(case.architecture.classes))
    updates = [case.update(state, tier, client) for client, tier in enumerate(case.tiers)]

    def after(labels: tuple[int, ...] | None) -> GlobalState:
        return case.method.aggregate(state, [replace(update, labels=labels) for update in updates])

    unknown, complete, some = after(None), after(every), after((1, 3))
    named = label_rows(case.method, case.architecture)
    assert named <= state.tensors.keys()
    for name, before in state.tensors.items():
        assert torch.equal(unknown.tensors[name], complete.tensors[name])
        if name not in named:
            assert torch.equal(unknown.tensors[name], some.tensors[name])
            continue
        assert len(before) == len(every)
        torch.testing.assert_close(some.tensors[name][[1, 3]], unknown.tensors[name][[1, 3]])
        assert torch.equal(some.tensors[name][[0, 2]], before[[0, 2]])
        assert not torch.equal(unknown.tensors[name][[0, 2]], before[[0, 2]])
    with pytest.raises(
        AggregationError, match=f"client 0, .*labels: got 1, {len(every)}; expected labels from 0 to {len(every) - 1}"
    ):
        after((1, len(every)))


@rule("a wrong shape raises")
def test_a_wrong_shape_raises_and_names_tensor_and_shapes(case: Case) -> None:
    state = case.state()
    for tier in case.tiers:
        update = case.update(state, tier)
        for name, tensor in update.tensors.items():
            for wrong in (tensor[:1], tensor[None], tensor.new_zeros(())):
                if wrong.shape == tensor.shape:
                    continue
                tensors = {**update.tensors, name: wrong}
                expected = rf"{name} has shape .*, expected \({', '.join(map(str, tensor.shape))},?\)"
                with pytest.raises(AggregationError, match=expected):
                    case.method.aggregate(state, [replace(update, tensors=tensors)])


@rule("a missing or extra tensor raises")
def test_a_missing_or_extra_tensor_raises(case: Case) -> None:
    state = case.state()
    update = case.update(state, case.tiers[0])
    name = next(iter(update.tensors), None)
    missing = {key: value for key, value in update.tensors.items() if key != name}
    for tensors in (missing, {**update.tensors, "stranger": torch.zeros(1)}):
        if tensors == update.tensors:  # nothing travels, so nothing can be missing
            continue
        with pytest.raises(AggregationError, match=f"missing or not expected: ({name}|stranger)"):
            case.method.aggregate(state, [replace(update, tensors=tensors)])


@rule("a server that distils has the same bits in any order of updates")
def test_a_server_that_distils_has_the_same_bits_in_any_order(case: Case) -> None:
    if not isinstance(method := case.method, Distils):
        return
    updates = [case.update(state := case.state(), tier, client) for client, tier in enumerate(case.tiers)]
    first, again = (
        method.distilled(state, ordered, images(9, 5)[0], generator(0, "distil")) for ordered in (updates, updates[::-1])
    )
    assert shapes_of(first.state.tensors) == shapes_of(state.tensors)
    assert all(torch.equal(again.state.tensors[name], tensor) for name, tensor in first.state.tensors.items())
    assert any(not torch.equal(state.tensors[name], tensor) for name, tensor in first.state.tensors.items())
    assert (first.evaluated, first.trained) == (again.evaluated, again.trained)
    assert {*first.evaluated, *first.trained} <= {*case.tiers}


@rule("an empty round raises")
def test_an_empty_round_raises(case: Case) -> None:
    with pytest.raises(AggregationError, match="no update arrived"):
        case.method.aggregate(case.state(), [])


@rule("a zero weight raises")
def test_a_zero_weight_raises(case: Case) -> None:
    state = case.state()
    with pytest.raises(AggregationError, match=r"client 0, tier .*: an update needs a positive number of samples, got 0"):
        case.method.aggregate(state, [case.update(state, case.tiers[0], samples=0)])


@rule("NaN and infinity raise")
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_nan_and_infinity_raise(case: Case, poison: float) -> None:
    state = case.state()
    update = case.update(state, case.tiers[-1])
    if not update.tensors:
        return
    name = next(iter(update.tensors))
    update.tensors[name].view(-1)[0] = poison
    with pytest.raises(AggregationError, match=f"{name} holds NaN or infinity"):
        case.method.aggregate(state, [update])


@rule("updates are consumed one at a time")
def test_updates_are_consumed_one_at_a_time(case: Case) -> None:
    state = case.state()
    alive = 0

    def stream() -> Iterator[Update]:
        nonlocal alive
        for client in range(4):
            update = case.update(state, case.tiers[-1], client)
            alive += 1
            weakref.finalize(update, count_down)
            yield update
            del update
            assert alive <= 2

    def count_down() -> None:
        nonlocal alive
        alive -= 1

    case.method.aggregate(state, stream())
