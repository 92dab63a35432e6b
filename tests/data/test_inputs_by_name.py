"""Samples of several inputs: what arrays, pairs and tables become, and what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from edgefl.data.given import Reading
from edgefl.data.mix import load
from edgefl.data.sources import Dataset
from edgefl.engine.shared_memory import share, shared
from edgefl.errors import DataError

Y = np.arange(20) % 2
IDS = np.arange(60).reshape(20, 3)
TABLE = (np.arange(40).reshape(20, 2) * 7.0).astype(np.float64)


def both(data: Dataset, name: str) -> np.ndarray:
    return np.concatenate([np.asarray(split.x[name]) for split in (data.train, data.test)])


def test_integers_and_booleans_are_ids_and_floats_have_their_own_figures():
    kinds = np.arange(20) % 5
    data = Dataset.from_arrays({"ids": IDS, "mask": IDS > 30, "kind": kinds, "table": TABLE}, Y)
    assert data.vocabulary == {"ids": 60, "mask": 2, "kind": 5, "table": 0}
    assert data.input_shape == {"ids": (3,), "mask": (3,), "kind": (1,), "table": (2,)}
    assert data.preprocessing["ids"] == data.preprocessing["mask"] == {}
    assert sorted(both(data, "kind")[:, 0].tolist()) == sorted(kinds.tolist())
    train = np.asarray(data.train.x["table"])
    np.testing.assert_allclose([train.mean(0), train.std(0)], [[0, 0], [1, 1]], atol=1e-6)
    facts, found = share(data)
    twin = shared(facts, found)
    for name in data.train.x:
        assert np.array_equal(both(twin, name), both(data, name))
    assert twin.vocabulary == data.vocabulary


def test_tuples_have_the_order_of_the_arguments_unless_they_are_rows():
    data = Dataset.from_arrays((IDS, TABLE), Y)
    assert data.vocabulary == {"0": 60, "1": 0}
    assert np.array_equal(
        both(Dataset.from_samples(Pairs([((i, t), y) for i, t, y in zip(IDS, TABLE, Y, strict=True)])), "0"), both(data, "0")
    )
    assert Dataset.from_arrays(tuple(TABLE), Y).input_shape == (2,)


class Pairs(list):
    pass


def test_columns_of_lists_are_inputs_and_columns_of_numbers_are_one(tmp_path):
    columns = {"ids": IDS.tolist(), "mask": (IDS > 30).tolist(), "age": TABLE[:, 0], "pulse": TABLE[:, 1], "label": Y}
    parquet.write_table(pa.table(columns), tmp_path / "own.parquet")
    data = load(str(tmp_path / "own.parquet"), reading=Reading(features=("ids", "mask", "age")))
    assert data.input_shape == {"ids": (3,), "mask": (3,), "age": (1,)}
    assert data.vocabulary == {"ids": 60, "mask": 2, "age": 0}
    assert load(str(tmp_path / "own.parquet"), reading=Reading(features=("age", "pulse"))).input_shape == (2,)


@pytest.mark.parametrize(
    ("x", "more", "message"),
    [
        ({}, {}, "got an empty dictionary as x"),
        ({"a": IDS, "b": TABLE[:19]}, {}, "19 samples of input b and labels of shape \\(20,\\)"),
        ({"a": IDS, "b": np.full((20, 1), np.nan)}, {}, "input b: sample . has NaN or infinity"),
        ({"a": IDS, "b": np.array(3)}, {}, "0 samples of input b"),
        ({"a": IDS}, {"test": ({"b": IDS}, Y)}, "held-out samples have the inputs b, training samples have a"),
        (IDS, {"test": ({"b": IDS}, Y)}, "held-out samples have the inputs b, training samples have one without a name"),
    ],
)
def test_what_is_wrong_with_an_input_is_said_with_its_name(x, more, message):
    with pytest.raises(DataError, match=message):
        Dataset.from_arrays(x, Y, **more)


def test_samples_with_other_inputs_than_the_first_are_refused():
    pairs = [({"a": 1, "b": 2}, 0), ({"a": 1}, 1)] * 3
    with pytest.raises(DataError, match="sample 1 has the inputs a, but sample 0 has a, b"):
        Dataset.from_samples(Pairs(pairs))
