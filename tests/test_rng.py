"""Numbers drawn for single clients of a population that is stored nowhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgefl.rng import normals, shuffled, uniforms


def test_uniforms_are_uniform_and_independent_of_who_else_is_drawn():
    clients = np.arange(200_000)
    drawn = uniforms(3, clients, 5, "x")
    assert 0 <= drawn.min() < drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 160  # χ² with 99 degrees of freedom: below 160 but for 1 in 10 000
    some = np.array([17, 3, 199_999])
    assert (uniforms(3, some, 5, "x") == drawn[some]).all()


@pytest.mark.parametrize("other", [(4, 5, "x"), (3, 6, "x"), (3, 5, "y")])
def test_seed_round_and_purpose_each_give_other_numbers(other):
    clients = np.arange(1000)
    first, second = uniforms(3, clients, 5, "x"), uniforms(other[0], clients, *other[1:])
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert not (first == second).any()


def test_uniforms_keep_their_values():
    # SplitMix64 in plain integers, set apart by the first word of NumPy's SeedSequence([0, crc32("a")]).
    import zlib

    mask = 2**64 - 1
    word = int(np.random.SeedSequence([0, zlib.crc32(b"a")]).generate_state(1, np.uint64)[0])
    expected = []
    for client in (0, 1, 10**9):
        z = (word + (client + 1) * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(((z ^ (z >> 31)) >> 11) / 2**53)
    assert uniforms(0, np.array([0, 1, 10**9]), "a").tolist() == expected


def test_normals_are_standard_and_rounded():
    drawn = normals(1, np.arange(100_000), "n")
    assert abs(drawn.mean()) < 0.015
    assert abs(drawn.std() - 1) < 0.015
    assert (np.round(drawn, 6) == drawn).all()
    assert np.isfinite(drawn).all()


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**40))
def test_a_shuffle_holds_every_number_once(n, seed):
    assert sorted(shuffled(seed, n, np.arange(n), "s").tolist()) == list(range(n))


def test_a_shuffle_of_millions_is_read_at_single_places():
    places = np.array([0, 999_999_999, 12])
    found = shuffled(0, 10**9, places, "s")
    assert len(set(found.tolist())) == 3
    assert found.tolist() == [int(shuffled(0, 10**9, np.array(place), "s")) for place in places]
    assert ((found >= 0) & (found < 10**9)).all()


def test_a_shuffle_mixes():
    drawn = shuffled(0, 1_000_000, np.arange(20_000), "s")
    counts = np.histogram(drawn, bins=50, range=(0, 1_000_000))[0]
    assert ((counts - 400) ** 2 / 400).sum() < 95  # 49 degrees of freedom
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.05
    others = shuffled(0, 1_000_000, np.arange(20_000), 2, "s")
    assert abs(np.corrcoef(drawn, others)[0, 1]) < 0.05
