"""ε against dp-accounting's own published values, against closed forms, and against what must hold of any accountant."""

import math

import pytest

from edgefl.contrib.privacy import accountant
from edgefl.contrib.privacy.accountant import check_noise, epsilon, noise_for
from edgefl.contrib.privacy.guarantee import Privacy, Sampling
from edgefl.errors import ConfigError

dp_accounting = pytest.importorskip("dp_accounting")


def gaussian_delta(ratio, eps):
    """δ of the Gaussian mechanism, closed form: Φ(1/2r − εr) − e^ε Φ(−1/2r − εr), r = noise / sensitivity (Balle & Wang 2018)."""
    phi = lambda t: math.erfc(-t / math.sqrt(2)) / 2  # noqa: E731
    return phi(1 / (2 * ratio) - eps * ratio) - math.exp(eps) * phi(-1 / (2 * ratio) - eps * ratio)


# Of dp-accounting 0.6.0: pld_privacy_accountant_test.py, test_gaussian_basic: three releases with the ratio √3 of noise to sensitivity. A
# replacement has twice the sensitivity, hence twice the noise.
def test_epsilon_is_the_value_that_dp_accounting_publishes_for_gaussian_noise():
    assert epsilon(2 * math.sqrt(3), 3, 0.126936) == pytest.approx(1.0, abs=1e-3)


# Of dp-accounting 0.6.0: pld_privacy_accountant_test.py, test_truncated_subsampled_gaussian_basic.
def test_the_truncated_subsampled_gaussian_has_the_value_that_dp_accounting_publishes():
    found = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-3)
    for size, count in ((4, 3), (3, 2)):
        found.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(size, 0.5, 2, 1.0), count)
    assert found.get_epsilon(1e-6) == pytest.approx(17.904330, abs=1e-3)


@pytest.mark.parametrize(("z", "releases", "delta"), [(1.0, 1, 1e-5), (2.0, 7, 1e-6), (8.0, 30, 1e-3), (0.7, 3, 1e-9)])
def test_without_sampling_epsilon_is_that_of_one_gaussian_mechanism(z, releases, delta):
    assert gaussian_delta(z / (2 * math.sqrt(releases)), epsilon(z, releases, delta)) == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize(("z", "releases"), [(3.0, 1), (6.0, 5)])
def test_without_sampling_the_privacy_loss_distribution_says_the_same(z, releases):
    pld = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_ONE)
    assert epsilon(z, releases, 1e-5) == pytest.approx(
        pld.compose(dp_accounting.GaussianDpEvent(z), releases).get_epsilon(1e-5), rel=1e-5
    )


def test_sampling_is_the_event_of_dp_accounting_and_below_its_renyi_bound():
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    pld = dp_accounting.pld.PLDAccountant(relation, accountant.INTERVAL)
    pld.compose(dp_accounting.TruncatedSubsampledGaussianDpEvent(500, 1.0, 10, 1.5), 20)
    rdp = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    # The Rényi accountant takes the ratio of noise to sensitivity, which is 2 for a replacement.
    rdp.compose(dp_accounting.SampledWithoutReplacementDpEvent(500, 10, dp_accounting.GaussianDpEvent(1.5 / 2)), 20)
    found = epsilon(1.5, 20, 1e-5, Sampling(500, 10))
    assert found == pytest.approx(pld.get_epsilon(1e-5), rel=1e-9)
    assert found < rdp.get_epsilon(1e-5)


def test_sampling_helps_only_where_few_are_drawn():
    plain = epsilon(2.0, 10, 1e-5)
    assert epsilon(2.0, 10, 1e-5, Sampling(1000, 10)) < plain / 10
    assert epsilon(2.0, 10, 1e-5, Sampling(20, 19)) == plain
    assert epsilon(2.0, 10, 1e-5, Sampling(20, 20)) == plain


def test_hardly_any_noise_is_counted_without_sampling_at_once():
    # One release of 3 with z = 0.1 has the ratio 0.1 / (2 √3) of noise to sensitivity.
    assert (
        epsilon(0.1, 3, 1e-5, Sampling(20, 10))
        == epsilon(0.1, 3, 1e-5)
        == dp_accounting.get_epsilon_gaussian(0.05 / 3**0.5, 1e-5)
    )
    assert noise_for(1000.0, 3, 1e-5, Sampling(20, 10)) == noise_for(1000.0, 3, 1e-5) == 0.08516


def test_noise_that_protects_nobody_is_refused():
    with pytest.raises(
        ConfigError, match="noise_multiplier: got 1e-200, expected at least 1e-06; less noise drowns in the rounding"
    ):
        check_noise(1e-200)
    with pytest.raises(ConfigError, match=r"target_epsilon: got 1e\+300, expected at most 1e\+06; a larger ε protects nobody"):
        noise_for(1e300, 3, 1e-5)
    check_noise(noise_for(1e6, 1, 1e-5))
    assert epsilon(1e-6, 1, 1e-5) == pytest.approx(2e12, rel=1e-4)  # 1 / (2 σ²) with σ = z/2


@pytest.mark.parametrize("sampling", [None, Sampling(50, 2)])
def test_the_noise_of_a_target_meets_it_and_little_less_does_not(sampling):
    z = noise_for(4.0, 12, 1e-5, sampling)
    assert epsilon(z, 12, 1e-5, sampling) <= 4.0 < epsilon(z * 0.998, 12, 1e-5, sampling)


def test_epsilon_grows_with_releases_and_falls_with_noise():
    assert epsilon(1.0, 0, 1e-5) == 0.0
    assert epsilon(2.0, 1, 1e-5) < epsilon(2.0, 2, 1e-5) < epsilon(1.0, 2, 1e-5)


def test_a_missing_package_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(accountant.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"dp-accounting, which is not installed; pip install 'edgefl-sim\[privacy\]'"):
        accountant.check_installed()


def test_the_standard_deviation_of_noise():
    assert Privacy("local", clip=0.25, noise_multiplier=6.0, delta=1e-5).noise_std == 1.5
