"""Rules of data sets: the same samples everywhere, honest held-out samples, and what networks, partitions and devices need of them."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch

from edgefl.data.mix import load
from edgefl.data.shards import Shards
from edgefl.data.sources import Dataset
from edgefl.data.split import Split
from edgefl.engine.shared_memory import share, shared
from edgefl.models.base import Architecture
from edgefl.registry import datasets

CLIENTS, BLOCK = 5, 1000


@pytest.fixture(scope="module")
def data(dataset: str) -> Dataset:
    """Return the samples of a data set."""
    return load(dataset)


def assert_equal(one: Dataset, other: Dataset) -> None:
    """Assert that two data sets have the same facts and the same bits."""
    (facts, arrays), (others, twins) = one.apart(), other.apart()
    assert json.dumps(facts, default=list) == json.dumps(others, default=list)
    assert arrays.keys() == twins.keys()
    for name, array in arrays.items():
        assert array.dtype == twins[name].dtype
        assert np.array_equal(array, twins[name]), f"{name} differs"


def digests(split: Split) -> list[bytes]:
    """Return a hash of each sample."""
    hashes = []
    for start in range(0, len(split), BLOCK):
        samples = np.asarray(split.at(np.arange(start, min(start + BLOCK, len(split)))).x)
        hashes += [hashlib.blake2b(sample.tobytes()).digest() for sample in samples]
    return hashes


def test_every_call_returns_the_same_samples(dataset: str, data: Dataset) -> None:
    """Every call of the function returns the same samples: a run that is resumed trains on them again."""
    assert_equal(data, load(dataset))


def test_workers_read_the_same_samples(dataset: str, data: Dataset) -> None:
    """Workers read the same bits from shared memory."""
    assert_equal(data, shared(*share(data)))


def test_most_classes_have_a_training_sample(dataset: str, data: Dataset) -> None:
    """More than half of the classes have a training sample, and no two classes have one name."""
    if data.classes:
        empty = np.setdiff1d(np.arange(data.classes), data.train.y)
        listed = ", ".join(data.class_names[k] for k in empty)
        assert len(empty) < data.classes / 2, f"no training sample of {len(empty)} of {data.classes} classes: {listed}"
    assert len(set(data.class_names)) == data.classes


def test_held_out_samples_are_not_those_of_training(dataset: str, data: Dataset) -> None:
    """Less than half of the held-out samples are also training samples."""
    trained, held_out = set(digests(data.train)), digests(data.test)
    repeated = sum(digest in trained for digest in held_out)
    assert repeated < len(held_out) / 2, f"{repeated} of {len(held_out)} held-out samples are training samples too"


def test_the_usual_network_takes_the_samples(dataset: str, data: Dataset) -> None:
    """The network of ``default_model`` takes the samples and has an output per class."""
    network = Architecture(data.default_model, data.input_shape, data.classes or 1).build(0.25).eval()
    x = np.asarray(data.train.at(np.arange(2)).x)
    assert network(torch.from_numpy(x)).shape == (2, data.classes or 1)


def test_devices_learn_how_to_prepare_samples(dataset: str, data: Dataset) -> None:
    """``preprocessing`` can be written as JSON, for the manifest of a bundle."""
    assert json.loads(json.dumps(data.preprocessing)).keys() == data.preprocessing.keys()
    assert data.title


def test_every_client_gets_samples(dataset: str, data: Dataset) -> None:
    """Every client of a partition has training and held-out samples, and no sample has two clients."""
    natural = ["natural"] if data.train_owner is not None else []
    for partition in ("iid", *(["dirichlet:0.5"] if data.classes else []), *natural):
        shards = Shards(data, CLIENTS, partition, seed=0)
        places = np.concatenate([shards.own(client) for client in range(CLIENTS)])
        assert np.array_equal(np.sort(places), np.arange(len(data.train))), partition
        assert all(shards.size(client) and len(shards.test(client)) for client in range(CLIENTS)), partition


def test_owners_are_declared(dataset: str, data: Dataset) -> None:
    """A data set with owners says so: ``@dataset("name", owners="writers")``."""
    if dataset in datasets.names():
        assert bool(datasets.facts(dataset).get("owners")) == (data.train_owner is not None)
