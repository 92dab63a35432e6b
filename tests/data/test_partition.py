"""Partitions: exact cover, no empty client, and their error texts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgefl.data.holdings import labels_drawn
from edgefl.data.partition import Classes, Dirichlet, Iid, Index, Natural, _fill_empty, parse, split
from edgefl.errors import ConfigError, DataError


def labels_of(samples: int, classes: int) -> np.ndarray:
    return np.random.default_rng(samples).integers(classes, size=samples).astype(np.int64)


def assert_exact_cover(shards: list[np.ndarray], samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(shards)), np.arange(samples))
    assert min(map(len, shards)) >= 1


@given(st.integers(1, 300), st.integers(1, 40), st.floats(1e-3, 100.0), st.integers(0, 2**32 - 1))
def test_dirichlet_uses_every_sample_once_and_leaves_nobody_empty(samples, clients, alpha, seed):
    clients = min(clients, samples)
    shards = split(labels_of(samples, 7), clients, Dirichlet(alpha), np.random.default_rng(seed))
    assert len(shards) == clients
    assert_exact_cover(shards, samples)


@given(st.integers(1, 300), st.integers(1, 40))
def test_iid_sizes_differ_by_at_most_one(samples, clients):
    clients = min(clients, samples)
    shards = split(labels_of(samples, 3), clients, Iid(), np.random.default_rng(0))
    assert_exact_cover(shards, samples)
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(st.integers(1, 8), st.integers(8, 30), st.integers(0, 2**32 - 1))
def test_each_client_holds_exactly_k_classes(per_client, clients, seed):
    labels = np.repeat(np.arange(8), 60)
    shards = split(labels, clients, Classes(per_client), np.random.default_rng(seed))
    assert_exact_cover(shards, len(labels))
    assert {len(np.unique(labels[shard])) for shard in shards} == {per_client}


def test_small_alpha_is_less_even_than_large_alpha():
    labels = labels_of(2000, 10)
    sizes = {a: np.std([len(s) for s in split(labels, 20, Dirichlet(a), np.random.default_rng(1))]) for a in (0.1, 100.0)}
    assert sizes[0.1] > 3 * sizes[100.0]


def test_the_generator_alone_decides():
    labels = labels_of(500, 10)
    first, again, other = (split(labels, 9, Dirichlet(0.5), np.random.default_rng(seed)) for seed in (4, 4, 5))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("iid", Iid()),
        ("dirichlet:0.5", Dirichlet(0.5)),
        ("classes:3", Classes(3)),
        ("natural", Natural()),
        ("index:60", Index(60)),
        ("index:1:1e-3", Index(1, 0.001)),
    ],
)
def test_parse(spec, expected):
    assert parse(spec) == expected


@pytest.mark.parametrize(
    "spec",
    [
        "dirichlet:-1",
        "dirichlet:nan",
        "dirichlet:inf",
        "dirichlet",
        "classes:0",
        "classes:2.5",
        "iid:3",
        "",
        "classes:",
        "natural:",
        "natural:2",
        "index",
        "index:",
        "index:0",
        "index:-1",
        "index:2.5",
        "index:60:",
        "index:60:0",
        "index:60:-0.5",
        "index:60:nan",
        "index:60:inf",
        "index:60:0.5:1",
        "index:60:0.5:",
        "index::0.5",
    ],
)
def test_parse_refuses(spec):
    with pytest.raises(ConfigError, match=f"partition: got '{spec}', expected iid, dirichlet:A"):
        parse(spec)


@pytest.mark.parametrize(("spec", "kind"), [("dirichelt:0.5", "dirichlet"), ("indx:60", "index")])
def test_parse_suggests_the_nearest_kind(spec, kind):
    with pytest.raises(ConfigError, match=f"index:S or index:S:A .*did you mean '{kind}'"):
        parse(spec)


@pytest.mark.parametrize(
    ("clients", "partition", "message"),
    [
        (31, Iid(), "31 clients cannot share 30 samples"),
        (2, Classes(4), "the data have only 3 classes"),
        (1, Classes(2), "1 clients × 2 classes leave some of the 3 classes without a client"),
        (30, Classes(3), "has 10 samples for 30 clients"),
    ],
)
def test_impossible_partitions_say_why(clients, partition, message):
    with pytest.raises(DataError, match=message):
        split(np.repeat(np.arange(3), 10), clients, partition, np.random.default_rng(0))


def test_a_huge_alpha_shares_equally():
    parts = split(np.repeat(np.arange(4), 100), 4, parse("dirichlet:1e308"), np.random.default_rng(0))
    assert {len(part) for part in parts} <= {96, 97, 98, 99, 100, 101, 102, 103, 104}


def test_clients_without_samples_get_one_of_the_fullest():
    """By hand: sizes 4, 0, 3, 0 become 3, 1, 3, 0 and then, the first of two with three, 2, 1, 3, 1."""
    parts = _fill_empty([np.arange(4), np.arange(0), np.arange(10, 13), np.arange(0)])
    assert [part.tolist() for part in parts] == [[0, 1], [3], [10, 11, 12], [2]]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.data())
def test_owners_are_dealt_whole_and_evenly(sizes, data):
    clients = data.draw(st.integers(1, len(sizes)))
    owners = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)) * 7, sizes))
    parts = split(np.zeros(len(owners), np.int64), clients, Natural(), np.random.default_rng(1), owners)
    assert_exact_cover(parts, len(owners))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sum(len(np.unique(owners[part])) for part in parts) == len(sizes)
    # No client could give an owner away to make the two more even: the fullest got its last owner while it was the emptiest.
    fullest = max(parts, key=len)
    smallest_owner = min(np.sum(owners == owner) for owner in np.unique(owners[fullest]))
    assert len(fullest) - smallest_owner <= min(map(len, parts))


def test_owners_by_hand():
    """Owners of 5, 4, 3 and 2 samples for two clients: 5, then 4, then 3 to the one with 4, then 2 to the one with 5."""
    owners = np.repeat([0, 1, 2, 3], [2, 3, 4, 5])
    parts = split(owners, 2, Natural(), np.random.default_rng(0), owners)
    assert {tuple(np.unique(owners[part])) for part in parts} == {(0, 3), (1, 2)}


def test_more_clients_than_owners():
    with pytest.raises(DataError, match="natural: 4 clients, but the samples have only 3 owners: take at most 3"):
        split(np.zeros(30, np.int64), 4, Natural(), np.random.default_rng(0), np.repeat([2, 5, 9], 10))


def test_nobody_owns_anything():
    with pytest.raises(
        ConfigError, match="partition: natural needs samples with owners: give --owner for your own data; .*, shakespeare,"
    ):
        split(np.zeros(30, np.int64), 4, Natural(), np.random.default_rng(0))


class Told:
    """Stands in for a generator: it answers what it was told to."""

    def __init__(self, shares: list[float], *draws: list[int]) -> None:
        self.shares, self.draws = shares, list(draws)
        self.asked: list[tuple[int, int]] = []

    def dirichlet(self, alpha: np.ndarray) -> np.ndarray:
        assert alpha.tolist() == [0.5] * len(self.shares)
        return np.array(self.shares)

    def integers(self, high: int, size: int) -> np.ndarray:
        self.asked.append((int(high), size))
        return np.array(self.draws.pop(0))


def test_a_label_that_runs_out_leaves_the_rest_to_the_others_by_hand():
    """Half a million of a million are label 0, of which there are 3: of six draws five fall there, so two are drawn of 2 and 3 alone."""
    rng = Told([0.5, 0.25, 0.25], [0, 1, 2, 3, 499_999, 500_000], [249_999, 250_000])
    assert labels_drawn(np.array([3, 0, 4, 2]), 6, 0.5, rng).tolist() == [3, 0, 2, 1]
    assert rng.asked == [(1_000_000, 6), (500_000, 2)]


def test_where_the_others_have_no_proportion_the_samples_left_decide_by_hand():
    rng = Told([1.0, 0.0, 0.0], [7, 7, 7, 7, 7], [3, 4])
    assert labels_drawn(np.array([3, 0, 4, 2]), 5, 0.5, rng).tolist() == [3, 0, 1, 1]
    assert rng.asked == [(1_000_000, 5), (6, 2)]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    st.floats(0, 1.7e308, exclude_min=True),
    st.integers(0, 2**32 - 1),
    st.data(),
)
def test_labels_are_drawn_in_full_and_never_more_than_there_are(sizes, alpha, seed, data):
    count = data.draw(st.integers(1, sum(sizes)))
    counts = labels_drawn(np.array(sizes), count, alpha, np.random.default_rng(seed))
    assert counts.sum() == count
    assert (counts >= 0).all()
    assert (counts <= sizes).all()


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_labels_follow_the_dirichlet_multinomial_law(alpha):
    """Of S draws over K labels each label has S/K on average, with variance S/K · (1 − 1/K) · (S + KA) / (1 + KA)."""
    rng = np.random.default_rng(3)
    drawn = np.array([labels_drawn(np.full(5, 1000), 60, alpha, rng) for _ in range(4000)])
    variance = 60 / 5 * (1 - 1 / 5) * (60 + 5 * alpha) / (1 + 5 * alpha)
    assert np.abs(drawn.mean(axis=0) - 12).max() < 4 * (variance / 4000) ** 0.5
    assert np.abs(drawn.var(axis=0) / variance - 1).max() < 0.15
