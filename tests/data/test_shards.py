"""Clients' parts of the data: as the partition says, with domains, label orders, shares and held-out samples of their own."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from requirements import needs

from edgefl.data.digits import digits
from edgefl.data.mix import load, mixed
from edgefl.data.partition import parse, split
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
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
    sizes = [len(part) for part in expected]
    assert [shards.size(client) for client in range(20)] == sizes
    assert (len(shards), shards.largest, shards.mean) == (20, max(sizes), 72)  # 1437 samples
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
        assert set(fifth.own(client)) <= set(whole.own(client))
    assert list(map(fifth.size, range(8))) == [max(1, int(0.2 * size + 0.5)) for size in map(whole.size, range(8))]


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
    assert np.array_equal(np.sort(np.concatenate([shards.own(client) for client in range(clients)])), np.arange(800))
    for client, domain in enumerate(domains):
        assert set(TWO.train_domain[shards.own(client)]) == {domain}
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
    assert np.array_equal(np.sort(np.concatenate([shards.own(client) for client in range(clients)])), np.arange(400))
    own = [set(data.train_owner[index]) for index in map(shards.own, range(clients))]
    assert sum(map(len, own)) == 9
    for client, mine in enumerate(own):
        theirs = np.isin(data.test_owner, list(mine))
        everything = shards.test(client, 10_000)
        assert np.array_equal(everything.x, data.test.x[theirs])
        assert len(shards.test(client, 3)) == min(3, theirs.sum())


SPECS = ["index:60", "index:60:0.3"]
MILLION = 1_000_000


@given(st.integers(1, 400), st.none() | st.floats(0.01, 100), st.integers(0, 2**32 - 1), st.integers(0, MILLION - 1))
def test_a_client_draws_different_samples_and_always_the_same_ones(samples, alpha, seed, client):
    data = small("some", 4, 400)
    spec = f"index:{samples}" if alpha is None else f"index:{samples}:{alpha}"
    own = Shards(data, MILLION, spec, seed).own(client)
    assert (own.dtype, own.shape) == (np.int64, (samples,))
    assert own[0] >= 0
    assert own[-1] < 400
    assert (np.diff(own) > 0).all()
    other = Shards(data, client + 1, spec, seed)
    other.train(client // 2), other.test(client), other.own(0)
    assert np.array_equal(other.own(client), own)
    assert other.size(client) == other.largest == other.mean == samples


@pytest.mark.parametrize("spec", SPECS)
def test_clients_draw_on_their_own_and_so_do_seeds(spec):
    shards = Shards(DIGITS, MILLION, spec, seed=0)
    forwards = [shards.train(client).x.tobytes() for client in (0, 1, 2, MILLION - 1)]
    assert forwards == [shards.train(client).x.tobytes() for client in (MILLION - 1, 2, 1, 0)][::-1]
    assert len({*forwards, Shards(DIGITS, MILLION, spec, seed=1).train(0).x.tobytes()}) == 5
    own = shards.own(7)
    assert np.array_equal(shards.train(7).x, DIGITS.train.x[own])
    assert np.array_equal(shards.train(7).y, DIGITS.train.y[own])


def test_every_sample_is_drawn_as_often_as_any_other():
    """χ² of 1437 samples, each drawn by 2000 clients with chance 60/1437: within six standard deviations of its mean, which is 1437."""
    shards = Shards(DIGITS, 2000, "index:60", seed=5)
    times = np.bincount(np.concatenate([shards.own(client) for client in range(2000)]), minlength=1437)
    chance = 60 / 1437
    assert abs(((times - 2000 * chance) ** 2).sum() / (2000 * chance * (1 - chance)) - 1437) < 6 * (2 * 1437) ** 0.5


@pytest.mark.parametrize("seed", range(5))
def test_labels_are_the_more_uneven_the_smaller_alpha_is(seed):
    held = []
    for spec in ("index:60:0.05", "index:60:0.5", "index:60:5", "index:60:500"):
        shards = Shards(DIGITS, MILLION, spec, seed)
        held.append(np.mean([np.bincount(shards.train(client).y).max() for client in range(100)]))
    assert held[0] > 1.3 * held[1] > 1.3**2 * held[2] > 1.3**2 * held[3]


@pytest.mark.parametrize("spec", ["index:1437", "index:1437:0.01"])
def test_clients_that_draw_everything_have_everything(spec):
    assert Shards(DIGITS, 3, spec, seed=0).own(2).tolist() == list(range(1437))


@pytest.mark.parametrize(("clients", "blocks"), [(2, [1, 1]), (7, [3, 4]), (8, [4, 4]), (1001, [500, 501])])
def test_drawing_clients_are_dealt_evenly_to_domains_and_hold_nothing_of_others(clients, blocks):
    shards = Shards(TWO, clients, "index:30:0.5", seed=4, permute_labels=True)
    domains = [shards.domain(client) for client in range(clients)]
    assert sorted(np.bincount(domains).tolist()) == blocks
    labels = [set(range(4)), set(range(4, 10))]
    for client, domain in list(enumerate(domains))[:20]:
        assert set(TWO.train_domain[shards.own(client)]) == {domain}
        assert set(shards.train(client).y) | set(shards.test(client).y) <= labels[domain]
        order = shards.permutation(client)
        assert np.array_equal(shards.train(client).y, order[TWO.train.y[shards.own(client)]])


def test_domains_of_a_million_are_mixed_by_the_seed():
    deals = [[Shards(TWO, MILLION, "index:9", seed).domain(client) for client in range(400)] for seed in range(3)]
    assert len(set(map(tuple, deals))) == 3
    assert all(140 < sum(deal) < 260 for deal in deals)


def test_domains_may_share_labels():
    data = small("shared", 4, 400)
    own, held_out = np.arange(400) % 2, np.arange(200) % 2
    data = replace(data, train_domain=own, test_domain=held_out, domain_names=("even", "odd"))
    shards = Shards(data, 40, "index:200", seed=0)
    assert {tuple(shards.own(client) % 2) for client in range(40)} == {(0,) * 200, (1,) * 200}


@pytest.mark.parametrize("spec", SPECS)
def test_drawing_clients_keep_a_share_of_every_label(spec):
    whole, third = (Shards(DIGITS, MILLION, spec, seed=2, data_share=kept) for kept in (1.0, 0.33))
    assert (third.size(5), third.largest, third.mean) == (20, 20, 20)
    for client in (0, 5, 999_999):
        before, after = np.bincount(whole.train(client).y, minlength=10), np.bincount(third.train(client).y, minlength=10)
        assert np.abs(after - before / 3).max() < 1
        assert len(third.train(client)) == 20
        assert set(third.own(client)) <= set(whole.own(client))


def test_held_out_samples_follow_the_labels_of_drawing_clients():
    shards = Shards(DIGITS, MILLION, "index:60:0.3", seed=3)
    for client in (0, 77, 999_999):
        train, test = np.bincount(shards.train(client).y, minlength=10), np.bincount(shards.test(client, 20).y, minlength=10)
        assert np.abs(test - 20 * train / 60).max() < 1


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("clients", [10, MILLION])
def test_nothing_is_held_for_a_client(spec, clients):
    shards = Shards(DIGITS, clients, spec, seed=0)
    tracemalloc.start()
    try:
        shards = Shards(DIGITS, clients, spec, seed=0)
        assert (len(shards), shards.size(clients - 1), shards.largest, shards.mean) == (clients, 60, 60, 60)
        shards.own(clients - 1), shards.domain(0)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 32_000  # 4 bytes for each of 1437 samples, and what is the same for all
    assert peak < 64_000


@needs("Fashion-MNIST")
@pytest.mark.parametrize("spec", SPECS)
def test_a_million_clients_of_fashion_mnist_take_less_than_a_megabyte(spec):
    data = load("fashion-mnist")
    tracemalloc.start()
    try:
        assert Shards(data, MILLION, spec, seed=0).size(MILLION - 1) == 60
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("spec", ["iid", "index:60"])
@pytest.mark.parametrize("client", [-1, 4])
def test_who_is_no_client_has_nothing(spec, client):
    shards = Shards(DIGITS, 4, spec, seed=0)
    for ask in (shards.own, shards.size, shards.train, shards.test, shards.domain, shards.present):
        with pytest.raises(IndexError, match=f"client {client}: there are clients 0 to 3"):
            ask(client)


@pytest.mark.parametrize("spec", ["index:301", "index:301:0.5"])
def test_no_client_can_draw_more_than_there_is_in_its_domain(spec):
    message = f"domain first: {spec}: 301 different samples for each client, but there are only 300 training samples"
    with pytest.raises(DataError, match=message):
        Shards(TWO, 4, spec, seed=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clients": 0}, ConfigError, "clients: got 0, expected at least 1"),
        ({"clients": 2000}, DataError, "2000 clients cannot share 1437 samples"),
        ({"partition": "natural"}, ConfigError, "natural needs samples with owners: .*, shakespeare,"),
        ({"partition": "even"}, ConfigError, "partition: got 'even', expected iid"),
        (
            {"partition": "index:1438"},
            DataError,
            "index:1438: 1438 different samples .* only 1437 training samples: take at most 1437",
        ),
        ({"partition": "index:1e3"}, ConfigError, "partition: got 'index:1e3', expected iid"),
        ({"data": TWO, "clients": 1, "partition": "index:5"}, DataError, "1 clients for 2 domains"),
        ({"data_share": 0.0}, ConfigError, "data_share: got 0, expected more than 0 and at most 1"),
        ({"data_share": 1.5}, ConfigError, "data_share: got 1.5"),
    ],
)
def test_what_cannot_be_dealt_says_why(arguments, error, message):
    with pytest.raises(error, match=message):
        Shards(**{"data": DIGITS, "clients": 4, "partition": "iid", "seed": 0, **arguments})


def test_a_limit_of_none_is_refused():
    with pytest.raises(ConfigError, match="got a limit of 0, expected at least 1"):
        Shards(DIGITS, 2, "iid", 0).test(0, limit=0)


@needs("Fashion-MNIST")
def test_four_clients_of_each_of_two_real_domains():
    shards = Shards(load("fashion-mnist+digits"), 8, "dirichlet:0.5", seed=0, permute_labels=True, data_share=0.2)
    assert sorted(shards.domain(client) for client in range(8)) == [0] * 4 + [1] * 4
    for client in range(8):
        first = 10 * shards.domain(client)
        assert set(shards.train(client).y) | set(shards.test(client).y) <= set(range(first, first + 10))
        assert 1 <= len(shards.test(client)) <= 200
