"""Defences against values worked out by hand, and what a minority can do to them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.contrib.attacks.defences import expected_hostile, nearest_updates, scores_of
from edgefl.errors import AggregationError, ConfigError, UnknownNameError
from edgefl.records import Place, Tier, Update
from edgefl.server.coordinates import Changes, Gaps
from edgefl.server.defence import Centre, Filter, defence_named

nan = math.nan
values = st.floats(-100, 100, width=32)


def rows(*of: float) -> torch.Tensor:
    return torch.tensor(of, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("name", "strength", "changes", "expected"),
    [
        ("median", None, (3.0, -1.0, 1e30), 3.0),
        ("median", None, (3.0, -1.0, 7.0, -1e30), 1.0),
        ("median", None, (3.0, -8.0), -2.5),
        ("median", None, (-8.0,), -8.0),
        ("trimmed-mean", 0.2, (1.0, -2.0, 6.0, 1e30, -1e30), (1 - 2 + 6) / 3),
        ("trimmed-mean", 0.4, (1.0, -2.0, 6.0, 1e30, -1e30), 1.0),
        ("trimmed-mean", 0.2, (4.0, -1.0, 1e30), 4.0),  # ⌈0.2 · 3⌉ = 1
        ("trimmed-mean", 0.2, (4.0, -1.0), 1.5),  # nobody can be cut off
    ],
)
def test_the_centre_of_few_changes(name, strength, changes, expected):
    assert float(defence_named(name, strength).centre(rows(*changes))) == pytest.approx(expected)


@given(st.lists(values, min_size=1, max_size=9), st.data())
def test_a_minority_cannot_move_the_centre_beyond_the_honest_range(honest, data):
    """Fewer than half of the holders for the median; for the trimmed mean, as many as it cuts off at each end."""
    for name, most in (("median", len(honest) - 1), ("trimmed-mean", int(len(honest) * 0.2 / 0.8))):
        hostile = data.draw(st.lists(st.floats(-1e30, 1e30), max_size=most))
        changes = data.draw(st.permutations([*honest, *hostile]))
        centre = float(defence_named(name).centre(rows(*changes)))
        slack = 1e-9 * (1 + max(map(abs, honest)))
        assert min(honest) - slack <= centre <= max(honest) + slack


@given(st.lists(values, min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_move_the_centre_by_a_bit(changes, random):
    shuffled = random.sample(changes, len(changes))
    for name in ("median", "trimmed-mean"):
        centre = defence_named(name).centre
        assert torch.equal(centre(rows(*changes)), centre(rows(*shuffled)))


def test_the_median_breaks_down_at_one_half():
    """The bound of the test above is the best possible."""
    assert float(defence_named("median").centre(rows(1.0, 1.0, 1e6, 1e6))) > 1e5


# Five clients on a line at 0, 1, 3, 7 and −20; f = 1, so the score is the mean of 5 − 1 − 2 = 2 nearest squared distances.
LINE = [0.0, 1.0, 3.0, 7.0, -20.0]
DISTANCES = torch.tensor([[(a - b) ** 2 for b in LINE] for a in LINE], dtype=torch.float64)


def gaps(
    distances: torch.Tensor = DISTANCES, tiers: tuple[float, ...] = (1, 1, 1, 1, 1), rms: tuple[float, ...] = (1,) * 5
) -> Gaps:
    return Gaps(tuple(map(Tier, tiers)), torch.tensor(rms, dtype=torch.float64), distances)


def test_scores_of_krum():
    assert scores_of(DISTANCES, 1) == [(1 + 9) / 2, (1 + 4) / 2, (4 + 9) / 2, (16 + 36) / 2, (400 + 441) / 2]
    assert nearest_updates(gaps(), 0.2) == [1, 0, 2, 3]


def test_krum_takes_one_update_and_multi_krum_all_but_f():
    assert defence_named("krum").kept(gaps()) == [1]
    assert sorted(defence_named("multi-krum").kept(gaps())) == [0, 1, 2, 3]


def test_krum_takes_one_update_of_each_tier_that_is_not_among_the_worst():
    assert defence_named("krum").kept(gaps(tiers=(1, 1, 0.5, 0.5, 0.5))) == [1, 2]
    assert defence_named("krum").kept(gaps(tiers=(1, 1, 1, 1, 0.25))) == [1]


def test_a_client_that_shares_nothing_is_dropped_first():
    distances = DISTANCES.clone()
    distances[1, :] = distances[:, 1] = nan
    assert scores_of(distances, 1)[1] == math.inf
    assert 1 not in defence_named("multi-krum").kept(gaps(distances))


def test_a_client_with_few_comparable_others_is_judged_by_those():
    distances = torch.tensor([[0.0, 4.0, nan], [4.0, 0.0, 16.0], [nan, 16.0, 0.0]], dtype=torch.float64)
    assert scores_of(distances, 0) == [4.0, 4.0, 16.0]
    assert scores_of(distances, 1) == [4.0, 4.0, 16.0]  # at least one


def test_krum_needs_five_updates_to_drop_one():
    assert [expected_hostile(0.4, n) for n in (0, 1, 3, 4, 5, 7, 10)] == [0, 0, 0, 0, 1, 2, 3]
    small = gaps(DISTANCES[:4, :4], (1, 1, 1, 1), (1, 1, 1, 1))
    assert sorted(defence_named("multi-krum").kept(small)) == [0, 1, 2, 3]


@given(st.permutations(range(5)))
def test_the_order_of_updates_does_not_change_whom_krum_keeps(order):
    moved = DISTANCES[list(order)][:, list(order)]
    for name, expected in (("krum", {1}), ("multi-krum", {0, 1, 2, 3})):
        assert {order[position] for position in defence_named(name).kept(gaps(moved))} == expected


def test_the_norm_filter_compares_within_a_tier_of_three_or_more():
    # The tier 0.5 has a median of 10: 31 is too much, 29 is not. The tier 1 has two clients: all five have a median of 10.
    tiers, rms = (1, 1, 0.5, 0.5, 0.5), (2.0, 31.0, 10.0, 9.0, 29.0)
    assert defence_named("norm-filter").kept(gaps(tiers=tiers, rms=rms)) == [0, 2, 3, 4]
    assert defence_named("norm-filter", 2.0).kept(gaps(tiers=tiers, rms=rms)) == [0, 2, 3]


def test_a_client_alone_in_a_small_tier_is_compared_by_its_norm():
    """Its values change eleven times as much as those of the large tier, and its change is as long: it is as honest as the others."""
    rms, norms = (11.0, 1.0, 1.0, 1.0, 1.0), (2.0, 1.0, 1.0, 1.1, 0.9)
    of = gaps(tiers=(0.25, 1, 1, 1, 1), rms=rms)
    assert defence_named("norm-filter").kept(of) == [1, 2, 3, 4]
    assert defence_named("norm-filter").kept(replace(of, norms=torch.tensor(norms, dtype=torch.float64))) == [0, 1, 2, 3, 4]
    assert defence_named("norm-filter").kept(replace(of, norms=10 * torch.tensor(norms, dtype=torch.float64) - 9)) == [1, 2, 3, 4]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8))
def test_the_norm_filter_leaves_at_least_one_update(rms):
    found = defence_named("norm-filter", 0.01).kept(
        Gaps((Tier(1.0),) * len(rms), torch.tensor(rms, dtype=torch.float64), DISTANCES)
    )
    assert found


class _Odd(Centre):
    def centre(self, values):
        return {0.0: None, 1.0: values.sum()}[self.strength]


class _Keeps(Filter):
    def kept(self, gaps):
        return {0.0: None, 1.0: [], 2.0: [0, 3], 3.0: {1}}[self.strength]


def changes_of_two() -> Changes:
    tensors = {"w": torch.ones(4)}
    places, sent = {"w": Place("w", (slice(None),))}, {"w": torch.zeros(4)}
    two = tuple(Update(client, Tier(1.0), tensors, places, 5, sent=sent) for client in range(2))
    return Changes(two, {"w": torch.zeros(4)})


@pytest.mark.parametrize(
    ("defence", "message"),
    [
        (_Odd(0.0), r"defence _Odd: centre returned NoneType, expected a tensor \(4,\)"),
        (_Odd(1.0), r"defence _Odd: centre returned a tensor \(\), expected a tensor \(4,\)"),
        (_Keeps(0.0), "defence _Keeps: kept returned None, expected positions from 0 to 1, one at least"),
        (_Keeps(1.0), r"kept returned \[\], expected"),
        (_Keeps(2.0), r"kept returned \[0, 3\], expected"),
    ],
)
def test_what_a_defence_of_ones_own_returns_is_checked(defence, message):
    with pytest.raises(AggregationError, match=message):
        defence.defended(changes_of_two())
    assert [update.client for update in _Keeps(3.0).defended(changes_of_two())] == [1]


def test_a_share_of_one_half_is_refused_and_a_wrong_name_explained():
    with pytest.raises(ConfigError, match=r"defence_strength: krum takes a share below 0.5, got 0.5"):
        defence_named("krum", 0.5)
    with pytest.raises(UnknownNameError, match="unknown defence 'trimmed'; .*trimmed-mean"):
        defence_named("trimmed")
