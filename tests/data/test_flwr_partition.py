"""Partitioners of flwr-datasets: a stand-in for the package shows what they are given, and the package itself, where it is installed."""

import sys
from types import ModuleType

import numpy as np
import pytest
from requirements import needs

from edgefl.data.digits import digits
from edgefl.data.partition import parse
from edgefl.data.shards import Shards
from edgefl.errors import ConfigError, DataError


class Partitioner:
    """The base class, which is no choice."""


class StripePartitioner:
    """Every ``num_partitions``-th sample, from an offset that the seed gives; at most ``most`` of them."""

    def __init__(self, num_partitions: int, partition_by: str, most: int = 1000, seed: int | None = 42) -> None:
        self.num_partitions, self.column, self.most, self.seed = num_partitions, partition_by, most, seed
        if most < 0:
            raise ValueError(f"most is {most}")

    def load_partition(self, client: int):
        assert self.dataset.column_names == ["index", self.column]
        own = np.arange((client + self.seed) % self.num_partitions, len(self.dataset), self.num_partitions)[: self.most]
        return self.dataset.select(own[::-1])


@pytest.fixture
def stand_in(monkeypatch):
    package, module = ModuleType("flwr_datasets"), ModuleType("flwr_datasets.partitioner")
    module.Partitioner, module.StripePartitioner, package.partitioner = Partitioner, StripePartitioner, module
    monkeypatch.setitem(sys.modules, "flwr_datasets", package)
    monkeypatch.setitem(sys.modules, "flwr_datasets.partitioner", module)


def test_a_partitioner_gets_clients_labels_and_a_seed_of_the_run(stand_in):
    found = [Shards(digits(), 4, "flwr:stripe(most=20)", seed) for seed in (0, 0, 1, 2, 3)]
    own = [[shards.own(client).tolist() for client in range(4)] for shards in found]
    assert own[0] == own[1]
    assert any(other != own[0] for other in own[2:])
    assert all(part == sorted(part) and len(part) == 20 and len({n % 4 for n in part}) == 1 for part in own[0])
    assert len({n for part in own[0] for n in part}) == 80
    assert Shards(digits(), 4, "flwr:Stripe_Partitioner(seed=4, most=1)", 0).own(3).tolist() == [3]


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ("flwr:strip", ConfigError, "flwr-datasets has no partitioner 'strip'; did you mean 'stripe'.* known: stripe"),
        ("flwr:stripe(most=-1)", ConfigError, "partition: flwr:stripe: most is -1"),
        ("flwr:stripe(alpha=1)", ConfigError, "partition: flwr:stripe: .*unexpected keyword argument 'alpha'"),
        ("flwr:stripe(num_partitions=5)", DataError, "flwr:stripe: makes 5 partitions for 4 clients; take 5 clients"),
        ("flwr:stripe(most=0)", DataError, "flwr:stripe: client 0 gets no sample; change the arguments"),
    ],
)
def test_wrong_partitioners_and_arguments_are_refused(stand_in, spec, kind, message):
    with pytest.raises(kind, match=message):
        Shards(digits(), 4, spec, 0)


@pytest.mark.parametrize(
    "spec", ["flwr:", "flwr:a b", "flwr:stripe(3)", "flwr:stripe(most=", "flwr:stripe(most=f())", "flwr:a.b(c=1)"]
)
def test_a_specification_of_another_form_is_refused_before_anything_is_imported(spec):
    with pytest.raises(ConfigError, match=r"expected flwr:NAME or flwr:NAME\(keyword=value, …\), such as flwr:dirichlet"):
        parse(spec)


def test_without_the_package_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(ConfigError, match="flwr:iid needs flwr-datasets, and .* is not installed; run pip install flwr-datasets"):
        Shards(digits(), 4, "flwr:iid", 0)


@needs("flwr-datasets")
@pytest.mark.parametrize(
    ("name", "spec", "labels"),
    [
        ("DirichletPartitioner", "flwr:dirichlet(alpha=0.5)", None),
        ("PathologicalPartitioner", "flwr:pathological(num_classes_per_partition=2)", 2),
        ("ShardPartitioner", "flwr:shard(shard_size=20, num_shards_per_partition=2)", None),
        ("LinearPartitioner", "flwr:linear", None),
    ],
)
def test_the_real_partitioners(name, spec, labels):
    shards, again = Shards(digits(), 5, spec, 0), Shards(digits(), 5, spec, 0)
    for client in range(5):
        assert np.array_equal(shards.own(client), again.own(client))
        assert labels is None or len(shards.present(client)) == labels
