"""Sums that are exact in any order and grouping, held against sums of fractions."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from edgefl.util import exact_sum
from edgefl.util.exact_sum import ExactSum

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
USUAL = st.floats(-8, 8, width=32)
EDGES = st.sampled_from([2.0**-149, 2.0**-72, 2.0**24 + 2, -(2.0**25), float(np.float32(1e15)), -(2.0**63), 2.0**128 - 2.0**104])
"""The least subnormal, half a unit, the borders of limbs, the most that an update may hold, and the largest float32."""
WEIGHTS = st.one_of(st.just(1), st.integers(1, 2**29 - 1))
TERMS = st.lists(st.tuples(st.lists(st.one_of(FLOATS, USUAL, EDGES), min_size=3, max_size=3), WEIGHTS), min_size=1, max_size=12)


def added(terms):
    total = ExactSum.zeros((3,))
    for values, weight in terms:
        total.add(torch.tensor(values), weight)
    return total


def rounded(product: Fraction) -> Fraction:
    """The nearest multiple of 2⁻⁷¹, ties to even."""
    return Fraction(round(product * 2**71), 2**71)


def expected(terms) -> list[float]:
    sums = [sum((rounded(Fraction(values[entry]) * weight) for values, weight in terms), Fraction(0)) for entry in range(3)]
    return [float(total) for total in sums]  # int / int rounds once


@given(TERMS)
@example(
    [([2.0**60, 2.0**60, 0.0], 1), ([2.0**7, -(2.0**7), 0.0], 1), ([2.0**-60, -(2.0**-60), 0.0], 1)]
)  # half a bit, and a little
def test_a_sum_is_that_of_the_fractions_rounded_once(terms):
    assert added(terms).value().tolist() == expected(terms)


@given(TERMS, st.randoms(use_true_random=False), st.integers(0, 50))
def test_any_order_and_any_tree_of_merges_gives_the_same_integers(terms, random, times):
    wanted = [3**times * sum(rounded(Fraction(values[entry]) * weight) for values, weight in terms) for entry in range(3)]
    random.shuffle(terms)
    cuts = sorted({0, len(terms), *(random.randrange(len(terms)) for _ in range(4))})
    parts = [added(terms[start:end]) for start, end in pairwise(cuts)]
    while len(parts) > 1:
        first = parts.pop(random.randrange(len(parts)))
        parts[random.randrange(len(parts))].merge(first)
    (total,) = parts
    for _ in range(times):  # until limbs are full
        same = ExactSum([limb.clone() for limb in total.limbs], list(total.bounds))
        total.merge(same)
        total.merge(same)
    assert [sum(map(Fraction, entries)) for entries in zip(*(limb.tolist() for limb in total.limbs), strict=True)] == wanted
    assert total.value().tolist() == [float(entry) for entry in wanted]
    for number, (limb, bound) in enumerate(zip(total.limbs, total.bounds, strict=True)):
        assert float(limb.abs().max()) <= bound <= exact_sum._FULL * exact_sum._unit(number)


@pytest.mark.parametrize(("value", "weight"), [(1 / 3, 1), (-2.0, 2**24), (3e38, 2**29 - 1), (2.0**-72, 1), (1e-30, 1)])
def test_many_terms_are_carried_before_a_limb_is_full(value, weight):
    terms = [([value, value / 7, 1.0], weight)] * 1500
    terms = [([*torch.tensor(values).tolist()], of) for values, of in terms]
    total = added(terms)
    assert total.value().tolist() == expected(terms)
    assert all(bound <= exact_sum._FULL * exact_sum._unit(limb) for limb, bound in enumerate(total.bounds))


@given(st.integers(0, 2**32 - 1), st.sampled_from([5, 32768]))
def test_slices_and_listed_entries_are_added_where_they_belong(seed, chunk):
    rng = np.random.default_rng(seed)
    total, plain = ExactSum.zeros((6, 7)), np.zeros((6, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sum, "_CHUNK", chunk)
        for _ in range(8):
            columns = slice(*sorted(rng.choice(8, 2, replace=False)))
            rows = slice(*sorted(rng.choice(7, 2, replace=False))), torch.tensor(rng.permutation(6)[: rng.integers(2, 7)])
            index = [(rows[0], columns), (rows[1], columns), ...][rng.integers(3)]
            values = torch.from_numpy(rng.normal(size=(*plain[index].shape, 2))).float()[..., 0]  # not contiguous
            total.add(values, 3.0, index)
            plain[index] += 3.0 * values.double().numpy()
    np.testing.assert_allclose(total.value().numpy(), plain, rtol=1e-14, atol=1e-13)


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from([0, 1, 3, 4, 5, 11, 12]), min_size=1, max_size=6), st.integers(1, 9))
def test_parts_add_up_to_what_their_concatenation_does(seed, sizes, chunk):
    rng = np.random.default_rng(seed)
    parts = [torch.from_numpy(rng.normal(size=(size, 2))).float()[:, 0] for size in sizes]  # not contiguous
    together, one_after_the_other = ExactSum.zeros((sum(sizes),)), ExactSum.zeros((sum(sizes),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact_sum, "_CHUNK", chunk)
        for weight in (3, -2):
            together.add(torch.cat(parts), weight)
            one_after_the_other.add_parts(parts, weight)
    assert one_after_the_other.bounds == together.bounds
    for one, other in zip(one_after_the_other.limbs, together.limbs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("chunk", [1, 32768])
@pytest.mark.parametrize(
    ("parts", "message"),
    [([[1.0], [math.nan, 2.0]], "from nan to nan"), ([[1.0, math.inf], [2.0]], "to inf"), ([[1.0], [2.0]], r"of shape \(3,\)")],
)
def test_no_part_is_added_if_one_cannot_be(monkeypatch, parts, message, chunk):
    monkeypatch.setattr(exact_sum, "_CHUNK", chunk)
    total = added([([1.0, 2.0, 3.0], 2)])
    with pytest.raises(ValueError, match=message):
        total.add_parts([torch.tensor(part) for part in parts])
    assert total.value().tolist() == [2.0, 4.0, 6.0]


def test_the_sum_is_within_3e_14_of_a_plain_one_and_does_not_depend_on_threads():
    values, weights = [torch.randn(70_000) * 0.1 for _ in range(20)], [5 + 3 * number for number in range(20)]
    plain = sum(value.double() * weight for value, weight in zip(values, weights, strict=True))
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            total = ExactSum.zeros((70_000,))
            for value, weight in zip(values, weights, strict=True):
                total.add(value, weight)
            found.append(total.value())
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    assert float((found[0] - plain).abs().max()) < 3e-14 * sum(weights)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_or_of_another_shape_are_refused(value):
    total = added([([1.0, 2.0, 3.0], 2)])
    with pytest.raises(ValueError, match="only finite values can be added, got values from"):
        total.add(torch.tensor([1.0, value, 0.0]))
    with pytest.raises(ValueError, match=r"values of shape \(1,\) cannot be added to entries of shape \(3,\)"):
        total.add(torch.ones(1))
    assert total.value().tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0)])
def test_scalars_and_empty_tensors_can_be_added(shape):
    total = ExactSum.zeros(shape)
    total.add(torch.ones(shape), 3)
    assert torch.equal(total.value(), torch.full(shape, 3.0, dtype=torch.float64))
