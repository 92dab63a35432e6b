"""Running sums of what clients send: they are what numpy computes, however the tensors lie, and hold one accumulator."""

import math
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from edgefl.errors import AggregationError
from edgefl.methods import averaging
from edgefl.methods.averaging import WeightedSum
from edgefl.methods.updates import check
from edgefl.records import Place, Tier, Update
from edgefl.util import exact_sum

SLICES = st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda pair: slice(pair[0], sum(pair)))


def update(tensors, client=1, samples=3):
    places = {name: Place(name, (slice(None),)) for name in tensors}
    return Update(client, Tier(1.0), tensors, places, samples)


@pytest.fixture(params=[5, 32768])
def chunk(request, monkeypatch):
    """Parts of a tensor that are added at once: several of a small tensor, or one."""
    monkeypatch.setattr(exact_sum, "_CHUNK", request.param)


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize("shape", [(), (0,), (1,), (17,), (7, 3), (3, 40), (2, 3, 7, 5), (1, 1, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_the_mean_of_whole_tensors(shape, dtype):
    total, sums, weights = WeightedSum({"w": torch.zeros(shape)}), np.zeros(shape), [1.5, 3.0, 1e-3]
    for weight in weights:
        tensor = torch.randn(shape).to(dtype)
        total.add("w", tensor, weight)
        sums += weight * tensor.double().numpy()
    got = total.mean({"w": torch.ones(shape, dtype=torch.float64)})["w"]
    np.testing.assert_allclose(got.numpy(), sums / sum(weights), rtol=1e-13, atol=1e-15)
    assert got.dtype == torch.float64


@pytest.mark.usefixtures("chunk")
@given(st.lists(st.tuples(SLICES, SLICES, st.floats(0.01, 100)), max_size=6), st.booleans())
def test_the_mean_of_slices_that_overlap(places, whole):
    old = torch.randn(7, 7, 2)
    total, sums, weights = WeightedSum({"w": old}), np.zeros((7, 7, 2)), np.zeros((7, 7, 2))
    for rows, columns, weight in places:
        # Every second value of a wider tensor: what is added need not be contiguous.
        part = torch.randn(*old[rows, columns].shape[:2], 4)[..., ::2]
        total.add("w", part, weight, (rows, columns))
        sums[rows, columns] += weight * part.double().numpy()
        weights[rows, columns] += weight
    if whole:
        total.add("w", old, 2.0)
        sums, weights = sums + 2.0 * old.double().numpy(), weights + 2.0
    expected = np.where(weights > 0, sums / np.where(weights > 0, weights, 1), old.numpy())
    got = total.mean({"w": old})["w"]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-6, atol=1e-7)
    assert torch.equal(got[torch.from_numpy(weights == 0)], old[torch.from_numpy(weights == 0)])


def test_listed_rows_slices_and_whole_tensors_together():
    old = torch.full((4, 2), -1.0)
    total = WeightedSum({"w": old})
    total.add("w", torch.tensor([[8.0, 8.0], [2.0, 2.0]]), 1.0, (torch.tensor([3, 0]),))
    total.add("w", torch.tensor([[4.0], [6.0]]), 3.0, (slice(0, 2), slice(0, 1)))
    assert total.mean({"w": old})["w"].tolist() == [[3.5, 2.0], [6.0, -1.0], [-1.0, -1.0], [8.0, 8.0]]
    total.add("w", torch.zeros(4, 2), 4.0)
    expected = torch.tensor([[1.75, 0.4], [18 / 7, 0.0], [0.0, 0.0], [1.6, 1.6]])
    torch.testing.assert_close(total.mean({"w": old})["w"], expected)


def test_the_same_updates_in_the_same_order_give_the_same_bits_on_any_number_of_threads():
    tensors = [torch.randn(300, 1000) for _ in range(3)]

    def mean():
        total = WeightedSum({"w": tensors[0], "narrow": torch.zeros(400, 1100)})
        for number, tensor in enumerate(tensors):
            total.add("w", tensor, 1 + number / 3)
            total.add("narrow", tensor, 1 + number / 3, (slice(0, 300), slice(0, 1000)))
        return total.mean({"w": tensors[0], "narrow": torch.zeros(400, 1100)})

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = mean()
        torch.set_num_threads(3)
        three = mean()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one[name], three[name]) for name in one)


def test_a_state_that_nobody_covered_is_a_copy_to_the_bit():
    old = {"count": torch.tensor(2**62 + 1), "w": torch.tensor([0.1, -0.0])}
    mean = WeightedSum(old).mean(old)
    assert all(torch.equal(mean[name], old[name]) and mean[name].data_ptr() != old[name].data_ptr() for name in old)
    assert mean["count"].dtype == torch.int64


def test_the_order_of_updates_does_not_change_a_bit():
    terms = [(torch.randn(5, 3) * 10.0 ** (number - 4), number * 7 + 1) for number in range(9)]

    def mean(order):
        total = WeightedSum({"w": torch.zeros(6, 3)})
        for number in order:
            tensor, weight = terms[number]
            total.add("w", tensor, weight, (slice(number % 2, 5 + number % 2),), (0, 2, 3) if number % 3 else None)
        return total.mean({"w": torch.zeros(6, 3)})["w"]

    assert all(torch.equal(mean(range(9)), mean(np.random.default_rng(seed).permutation(9))) for seed in range(5))


def test_products_that_are_not_finite_are_refused_by_name():
    total = WeightedSum({"w": torch.zeros(1, 1)})
    total.add_product("w", torch.full((1, 1), 3e38), torch.full((1, 1), 3e38), 1.0)
    with pytest.raises(AggregationError, match="^w: only finite values can be added, got values from inf to inf"):
        total.mean({"w": torch.zeros(1, 1)})


def test_nothing_is_kept_of_what_was_added():
    tensor, left, right = torch.ones(2, 2), torch.ones(2, 1), torch.ones(1, 2)
    total = WeightedSum({"w": tensor, "p": tensor})
    total.add("w", tensor, 1.0)
    total.add_product("p", left, right, 1.0)
    for given_ in (tensor, left, right):
        given_.fill_(7.0)
    mean = total.mean({"w": tensor, "p": tensor})
    assert mean["w"].tolist() == mean["p"].tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("ranks", [1, 7, 512])
def test_products_are_summed_in_blocks_as_they_would_be_one_by_one(ranks, monkeypatch):
    monkeypatch.setattr(averaging, "_RANKS", ranks)
    rng = np.random.default_rng(0)
    total, sums, weight_sum = WeightedSum({"w": torch.zeros(6, 5)}), np.zeros((6, 5)), 0.0
    for _ in range(20):
        rank, weight = int(rng.integers(1, 5)), float(rng.uniform(0.5, 2))
        left, right = (torch.from_numpy(rng.normal(size=size).astype(np.float32)) for size in ((5, rank), (rank, 6)))
        total.add_product("w", left, right, weight, lambda product: product.T)
        sums += weight * (left.double() @ right.double()).T.numpy()
        weight_sum += weight
        assert sum(len(other) for _, other in total._factors["w"]) < max(ranks, 1)
    dense = torch.randn(6, 5)
    total.add("w", dense, 2.0)  # a tier that is not factorized
    expected = (sums + 2.0 * dense.double().numpy()) / (weight_sum + 2.0)
    np.testing.assert_allclose(total.mean({"w": torch.zeros(6, 5, dtype=torch.float64)})["w"].numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("index", [..., (slice(0, 2000), slice(0, 300))])
def test_adding_makes_no_tensor_of_the_size_of_what_is_added(index):
    total, tensor = WeightedSum({"w": torch.zeros(2000, 300 if index is ... else 400)}), torch.ones(2000, 300)
    tracemalloc.start()
    try:
        total.add("w", tensor, 2.0, index)
        assert tracemalloc.get_traced_memory()[1] < 3 * 8 * exact_sum._CHUNK < 8 * tensor.numel()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused_by_client_and_name(value):
    tensors = {"a": torch.full((9,), 3e38), "b": torch.tensor([1.0, value])}
    with pytest.raises(AggregationError, match="^client 1, tier 1: b holds NaN or infinity$"):
        check(update(tensors), {"a": (9,), "b": (2,)}, 10)
    check(update({"a": tensors["a"]}), {"a": (9,)}, 10)  # only the sum overflows


@pytest.mark.parametrize(("labels", "got"), [((), "none"), ((2, 10), "2, 10"), ((-1,), "-1"), ((3, 1), "3, 1"), ((1, 1), "1, 1")])
def test_labels_that_are_no_classes_are_refused(labels, got):
    arrived = replace(update({"a": torch.ones(2)}), labels=labels)
    expected = f"client 1, tier 1: labels: got {got}; expected labels from 0 to 9, each once, ascending"
    with pytest.raises(AggregationError, match=re.escape(expected)):
        check(arrived, {"a": (2,)}, 10)


@given(st.lists(st.tuples(SLICES, st.sets(st.integers(0, 3)), st.floats(0.01, 100)), min_size=1, max_size=6), st.booleans())
def test_the_mean_of_some_rows(places, whole):
    old = torch.randn(7, 4, 3)
    total, sums, weights = WeightedSum({"w": old}), np.zeros((7, 4, 3)), np.zeros((7, 4, 3))
    for rows, chosen, weight in places:
        held = np.arange(7)[rows]
        part = torch.randn(len(held), 2, 3)
        chosen = sorted(chosen & {*range(len(held))})
        total.add("w", part, weight, (rows, slice(1, 3)), tuple(chosen))
        sums[held[chosen], 1:3] += weight * part.double().numpy()[chosen]
        weights[held[chosen], 1:3] += weight
    if whole:
        total.add("w", old, 2.0, rows=range(7))
        sums, weights = sums + 2.0 * old.double().numpy(), weights + 2.0
    expected = np.where(weights > 0, sums / np.where(weights > 0, weights, 1), old.numpy())
    np.testing.assert_allclose(total.mean({"w": old})["w"].numpy(), expected, rtol=1e-6, atol=1e-7)
