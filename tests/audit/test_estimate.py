"""The empirical ε of planted mechanisms, whose ε is known, and of samples whose losses are known."""

import math

import numpy as np
import pytest

from edgefl.contrib.audit.estimate import distance, epsilon
from edgefl.contrib.audit.membership import judged

pytest.importorskip("dp_accounting")
DELTA, CANARIES, SIZE = 1e-5, 100, 2000


def planted(seed, noise, rounds=1):
    """Return the scores of canaries in sums of signed directions with noise of a known deviation."""
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((CANARIES, SIZE))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    signs = rng.choice([-1.0, 1.0], CANARIES)
    released = rounds * signs @ directions + rng.standard_normal((rounds, SIZE)).sum(0) * noise
    return signs * (directions @ released)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (2.0, 1), (4.0, 10), (8.0, 1)])
def test_the_empirical_epsilon_of_a_gaussian_sum_is_below_the_accounted_one(noise, rounds):
    ratio, found = 2 * math.sqrt(rounds) / noise, [distance(planted(seed, noise, rounds)) for seed in range(100)]
    accounted, measured = epsilon(ratio, DELTA), [one.through(lambda ratio: epsilon(ratio, DELTA)) for one in found]
    assert sum(one.low < accounted for one in measured) >= 95
    assert sum(accounted < one.high for one in measured) >= 95
    # The most likely value has no bias, so it is above what is accounted in half of all audits.
    assert np.mean([one.value for one in found]) == pytest.approx(ratio, rel=0.05)
    assert 30 < sum(one.value > accounted for one in measured) < 70


def test_without_noise_the_estimate_is_far_above_0():
    assert distance(planted(0, noise=0.0)).through(lambda ratio: epsilon(ratio, DELTA)).low > 20


def test_a_quarter_of_the_promised_noise_is_found_with_every_seed():
    assert all(distance(planted(seed, noise=0.5)).low > 2 / 2.0 for seed in range(100))


def test_pure_noise_shows_nothing():
    rng = np.random.default_rng(0)
    found = [distance(rng.standard_normal(CANARIES)) for _ in range(100)]
    assert sum(one.low == 0 for one in found) >= 95
    assert epsilon(0.0, DELTA) == epsilon(1e-9, DELTA) == 0 < epsilon(1e-3, DELTA)


# N(µ, σ²) and N(−µ, σ²): δ(ε) = Φ(r/2 − ε/r) − e^ε Φ(−r/2 − ε/r) with r = 2µ/σ (Balle & Wang 2018, Theorem 8).
@pytest.mark.parametrize("ratio", [0.5, 1.0, 4.0])
def test_epsilon_of_two_normal_distributions_is_the_closed_form(ratio):
    found = epsilon(ratio, DELTA)
    phi = lambda t: math.erfc(-t / math.sqrt(2)) / 2  # noqa: E731
    assert phi(ratio / 2 - found / ratio) - math.exp(found) * phi(-ratio / 2 - found / ratio) == pytest.approx(DELTA, rel=1e-4)


def test_the_interval_contains_the_distance_of_99_of_100():
    rng, hits = np.random.default_rng(1), 0
    for _ in range(2000):
        found = distance(rng.normal(1.5, 1.0, 50))
        hits += found.low <= 3.0 <= found.high
    assert hits / 2000 == pytest.approx(0.99, abs=0.01)


# Two normal losses that are d deviations apart have AUC = Φ(d/√2), and the best threshold is right Φ(d/2) of the time.
def test_an_attack_on_normal_losses_reaches_what_can_be_reached():
    rng = np.random.default_rng(0)
    found = judged(rng.normal(0, 1, 20_000), rng.normal(1, 1, 20_000))
    assert found.auc == pytest.approx(0.7602, abs=0.01)
    assert found.right == pytest.approx(0.6915, abs=0.01)
    assert 0.7 < found.epsilon_low < math.log(found.told / found.mistaken)


def test_an_attack_on_equal_losses_reaches_nothing():
    rng = np.random.default_rng(0)
    found = [judged(rng.normal(size=300), rng.normal(size=100)) for _ in range(100)]
    assert np.mean([one.right for one in found]) == pytest.approx(0.5, abs=0.02)
    assert sum(one.epsilon_low == 0 for one in found) >= 95
