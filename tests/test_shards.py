"""Clients' parts of the data: as the partition says, with domains, label orders, shares and held-out samples of their own."""

from dataclasses import replace

import numpy as np
import pytest

from edgefl.data.digits import digits
from edgefl.data.fashion_mnist import SYSTEM_FOLDER
from edgefl.data.mix import load, mixed
from edgefl.data.partition import parse, split
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset, Split
from edgefl.errors import ConfigError, DataError
from edgefl.rng import generator

DIGITS = digits()


def small(name: str, classes: int, samples: int, seed: int = 0) -> Dataset:
    """Samples whose one pixel is the sample's number, held-out ones negative."""
    rng = np.random.default_rng(seed)

    def part(n: int, sign: int) -> Split:
        y = np.concatenate([np.arange(classes), rng.integers(classes, size=n - classes)]).astype(np.int64)
        return Split((sign * np.arange(1, n + 1, dtype=np.float32)).reshape(-1, 1, 1, 1), y)

    names = tuple(str(n) for n in range(classes))
    return Dataset(name, name, part(samples, 1), part(samples // 2, -1), names, {}, "mlp")


def owned(owners: int = 9) -> Dataset:
    data = small("owned", 4, 400)
    rng = np.random.default_rng(5)
    shares = rng.dirichlet(np.full(owners, 2.0))
    of = [np.concatenate([np.arange(owners), rng.choice(owners, len(s) - owners, p=shares)]) for s in (data.train, data.test)]
    return replace(data, train_owner=of[0], test_owner=of[1])


TWO = mixed("first+second", [small("first", 4, 300), small("second", 6, 500, seed=1)])


@pytest.mark.parametrize("partition", ["iid", "dirichlet:0.5", "classes:3"])
def test_plain_shards_are_those_of_the_partition(partition):
    shards = Shards(DIGITS, 20, partition, seed=7)
    expected = split(DIGITS.train.y, 20, parse(partition), generator(7, "partition"))
    assert shards.sizes == [len(part) for part in expected]
    for client, part in enumerate(expected):
        own = shards.train(client)
        assert np.array_equal(own.x, DIGITS.train.x[part])
        assert np.array_equal(own.y, DIGITS.train.y[part])
        assert shards.present(client).tolist() == np.unique(DIGITS.train.y[part]).tolist()
    assert (shards.permutes, shards.domain(3)) == (False, 0)


def test_what_is_handed_out_is_a_copy():
    shards = Shards(DIGITS, 5, "iid", seed=0)
    for part in (shards.train(0), shards.test(0)):
        part.x[:] = 0
        part.y[:] = 0
    assert shards.train(0).x.any()
    assert DIGITS.test.x.any()


def test_a_clients_order_of_labels_is_the_same_in_training_and_held_out_samples():
    plain, renamed = (Shards(DIGITS, 6, "dirichlet:0.5", seed=1, permute_labels=on) for on in (False, True))
    orders = []
    for client in range(6):
        order = renamed.permutation(client)
        orders.append(tuple(order))
        for part in ("train", "test"):
            before, after = getattr(plain, part)(client), getattr(renamed, part)(client)
            assert np.array_equal(before.x, after.x)
            assert np.array_equal(order[before.y], after.y)
        assert renamed.present(client).tolist() == sorted(order[plain.present(client)])
    assert renamed.permutes
    assert len(set(orders)) == 6


def test_a_share_is_kept_of_every_client_and_label():
    whole, fifth = (Shards(DIGITS, 8, "dirichlet:0.5", seed=2, data_share=kept) for kept in (1.0, 0.2))
    for client in range(8):
        before, after = np.bincount(whole.train(client).y, minlength=10), np.bincount(fifth.train(client).y, minlength=10)
        assert np.abs(after - 0.2 * before).max() < 1.5
        assert set(fifth.indices[client]) <= set(whole.indices[client])
    assert fifth.sizes == [max(1, int(0.2 * size + 0.5)) for size in whole.sizes]


def test_held_out_samples_follow_the_clients_labels():
    shards = Shards(DIGITS, 10, "classes:2", seed=3)
    for client in range(10):
        train, test = np.bincount(shards.train(client).y, minlength=10), np.bincount(shards.test(client, 20).y, minlength=10)
        assert test.sum() == 20
        assert np.abs(test - 20 * train / train.sum()).max() < 1
        everything = shards.test(client, 10_000)
        assert np.array_equal(np.unique(everything.y), shards.present(client))
        assert len({x.tobytes() for x in everything.x}) == len(everything) == np.isin(DIGITS.test.y, shards.present(client)).sum()
        assert len(shards.test(client)) <= 200


def test_held_out_draws_are_each_clients_own_and_always_the_same():
    shards, again = (Shards(DIGITS, 3, "iid", seed=3) for _ in range(2))
    draws = [shards.test(client, 30).x.tobytes() for client in (2, 0, 1)]
    assert draws == [again.test(client, 30).x.tobytes() for client in (2, 0, 1)]
    assert len(set(draws)) == 3


def test_a_client_whose_labels_nobody_held_out_is_tested_on_its_domains():
    data = small("odd", 3, 60)
    held_out = data.test.y != 2
    data = replace(data, test=Split(data.test.x[held_out], data.test.y[held_out]))
    shards = Shards(data, 3, "classes:1", seed=0)
    client = next(client for client in range(3) if shards.present(client).tolist() == [2])
    assert len(shards.test(client, 5)) == 5
    assert 2 not in shards.test(client, 5).y


@pytest.mark.parametrize("clients", [2, 7, 8])
def test_clients_are_dealt_evenly_to_domains_and_hold_nothing_of_others(clients):
    shards = Shards(TWO, clients, "iid", seed=4, permute_labels=True)
    domains = [shards.domain(client) for client in range(clients)]
    assert abs(domains.count(0) - domains.count(1)) <= 1
    labels = [set(range(4)), set(range(4, 10))]
    assert np.array_equal(np.sort(np.concatenate(shards.indices)), np.arange(800))
    for client, domain in enumerate(domains):
        assert set(TWO.train_domain[shards.indices[client]]) == {domain}
        assert set(shards.train(client).y) | set(shards.test(client).y) <= labels[domain]
        assert sorted(shards.permutation(client)[list(labels[domain])]) == sorted(labels[domain])


def test_domains_are_dealt_by_the_seed():
    deals = {tuple(Shards(TWO, 8, "iid", seed).domain(client) for client in range(8)) for seed in range(6)}
    assert len(deals) > 1


def test_the_partition_rule_holds_within_a_domain():
    shards = Shards(TWO, 8, "classes:2", seed=0)
    assert {len(shards.present(client)) for client in range(8)} == {2}
    with pytest.raises(DataError, match="domain first: classes:5: the data have only 4 classes"):
        Shards(TWO, 8, "classes:5", seed=0)


def test_fewer_clients_than_domains():
    with pytest.raises(DataError, match=r"1 clients for 2 domains \(first, second\): each domain needs at least one"):
        Shards(TWO, 1, "iid", seed=0)


@pytest.mark.parametrize("clients", [1, 4, 9])
def test_owners_are_dealt_whole_and_tested_on_their_own(clients):
    data = owned()
    shards = Shards(data, clients, "natural", seed=0)
    assert np.array_equal(np.sort(np.concatenate(shards.indices)), np.arange(400))
    own = [set(data.train_owner[index]) for index in shards.indices]
    assert sum(map(len, own)) == 9
    for client, mine in enumerate(own):
        theirs = np.isin(data.test_owner, list(mine))
        everything = shards.test(client, 10_000)
        assert np.array_equal(everything.x, data.test.x[theirs])
        assert len(shards.test(client, 3)) == min(3, theirs.sum())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clients": 0}, ConfigError, "clients: got 0, expected at least 1"),
        ({"clients": 2000}, DataError, "2000 clients cannot share 1437 samples"),
        ({"partition": "natural"}, ConfigError, "natural needs samples that belong to somebody; .*: shakespeare"),
        ({"partition": "even"}, ConfigError, "partition: got 'even', expected iid"),
        ({"data_share": 0.0}, ConfigError, "data_share: got 0.0, expected more than 0 and at most 1"),
        ({"data_share": 1.5}, ConfigError, "data_share: got 1.5"),
    ],
)
def test_what_cannot_be_dealt_says_why(arguments, error, message):
    with pytest.raises(error, match=message):
        Shards(**{"data": DIGITS, "clients": 4, "partition": "iid", "seed": 0, **arguments})


def test_a_limit_of_none_is_refused():
    with pytest.raises(ConfigError, match="got a limit of 0, expected at least 1"):
        Shards(DIGITS, 2, "iid", 0).test(0, limit=0)


@pytest.mark.skipif(not SYSTEM_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_four_clients_of_each_of_two_real_domains():
    shards = Shards(load("fashion-mnist+digits"), 8, "dirichlet:0.5", seed=0, permute_labels=True, data_share=0.2)
    assert sorted(shards.domain(client) for client in range(8)) == [0] * 4 + [1] * 4
    for client in range(8):
        first = 10 * shards.domain(client)
        assert set(shards.train(client).y) | set(shards.test(client).y) <= set(range(first, first + 10))
        assert 1 <= len(shards.test(client)) <= 200
