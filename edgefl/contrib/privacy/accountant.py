"""The accountant: ε of Gaussian noise that is added again and again, by dp-accounting's privacy loss distributions.

Two data sets are neighbours if one record is *replaced* by any other: a client's data (levels central and local) or one sample of a client
(level example). If every contribution is at most C long, a replacement moves a sum by up to 2C. Literature that adds or removes a record
has half of this, so that its ε is smaller at the same noise multiplier z.

Three bounds are used, all of dp-accounting:

- Without sampling, k releases with noise N(0, (zC)²) are one Gaussian mechanism with the ratio z/(2√k) of noise to sensitivity, whose ε is
  exact (Balle & Wang 2018, Improving the Gaussian Mechanism, Theorem 8).
- If m of n clients are drawn without replacement and the choice stays secret, a release is dp-accounting's truncated subsampled Gaussian
  with sampling probability 1: everyone is drawn, and the batch is cut to m at random. Its privacy loss distribution is composed k times.
- The second is looser than the first where m is not much smaller than n. The smaller of the two holds. Below z = 0.2 only the first is
  computed: one release alone then spends an ε of 92 (δ = 1e-5), and the time of the second grows with 1/z.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from edgefl.contrib.privacy.guarantee import Sampling
from edgefl.errors import ConfigError

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

INTERVAL = 1e-3
"""The grid of privacy losses. Rounding is towards a larger ε."""
LEAST_NOISE, MOST_EPSILON = 1e-6, 1e6
"""The smallest z that a run may have, and the largest target."""
_LEAST_SAMPLED = 0.2
"""The smallest z for which sampling counts."""
_DIGITS = 4
_SENSITIVITY = 2.0  # of a sum whose terms have norms up to 1, if a term is replaced


def check_installed() -> None:
    """Raise :class:`ConfigError` if dp-accounting is not installed."""
    if importlib.util.find_spec("dp_accounting") is None:
        raise ConfigError("privacy: needs the package dp-accounting, which is not installed; pip install 'edgefl-sim[privacy]'")


def check_noise(noise_multiplier: float) -> None:
    """Raise :class:`ConfigError` if there is so little noise that no ε can be stated."""
    if noise_multiplier < LEAST_NOISE:
        why = "less noise drowns in the rounding of float32 and protects nobody"
        raise ConfigError(f"noise_multiplier: got {noise_multiplier:g}, expected at least {LEAST_NOISE:g}; {why}")


def epsilon(noise_multiplier: float, releases: int, delta: float, sampling: Sampling | None = None) -> float:
    """Return ε(δ) after so many releases of a sum with noise.

    Args:
        noise_multiplier: z, the noise's standard deviation over the longest contribution C, at least 1e-6 (:func:`check_noise`).
        releases: how often a record may have contributed: rounds, uploads of one client, or epochs of one sample.
        delta: δ in (0, 1).
        sampling: how the contributors of each release are drawn; None: whoever contributes may be known.

    >>> round(epsilon(2.0, 1, 1e-5), 4), round(epsilon(2.0, 4, 1e-5), 4)
    (4.3772, 9.9973)
    >>> round(epsilon(2.0, 4, 1e-5, Sampling(1000, 10)), 2)
    0.31
    """
    if releases == 0:
        return 0.0
    bound = _gaussian(noise_multiplier, releases, delta)
    if sampling is None or sampling.drawn >= sampling.population or noise_multiplier < _LEAST_SAMPLED:
        return bound
    release = _subsampled(noise_multiplier, sampling)
    return min(bound, float(release.self_compose(releases).get_epsilon_for_delta(delta)))


def noise_for(target_epsilon: float, releases: int, delta: float, sampling: Sampling | None = None) -> float:
    """Return the smallest z, rounded up to four digits, whose :func:`epsilon` is at most ``target_epsilon``.

    ConfigError for a target above 1e6.

    >>> z = noise_for(8.0, 30, 1e-5)
    >>> z, epsilon(z, 30, 1e-5) <= 8.0 < epsilon(z * 0.999, 30, 1e-5)
    (6.576, True)
    """
    if target_epsilon > MOST_EPSILON:
        raise ConfigError(
            f"target_epsilon: got {target_epsilon:g}, expected at most {MOST_EPSILON:g}; a larger ε protects nobody"
        )
    import dp_accounting

    sigma = float(dp_accounting.get_sigma_gaussian(target_epsilon, delta))  # of one release of sensitivity 1
    enough = _up(_SENSITIVITY * sigma * math.sqrt(releases))
    if sampling is None or sampling.drawn >= sampling.population:
        return enough
    return _smallest(lambda z: epsilon(z, releases, delta, sampling) <= target_epsilon, enough)


def _smallest(fits: Callable[[float], bool], enough: float) -> float:
    """Return about the smallest number that ``fits``, given one that does: bisection, downwards from ``enough``."""
    high, low = enough, enough / 2
    while fits(low):
        high, low = low, low / 2
    while high / low > 1 + 10**-_DIGITS:
        middle = math.sqrt(low * high)
        high, low = (middle, low) if fits(middle) else (high, middle)
    return _up(high)


def _up(value: float) -> float:
    """Return ``value`` rounded up to :data:`_DIGITS` significant digits."""
    unit = 10.0 ** (math.floor(math.log10(value)) - _DIGITS + 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.{_DIGITS}g}")


def _gaussian(noise_multiplier: float, releases: int, delta: float) -> float:
    import dp_accounting  # a second to import, and most runs need none

    return float(dp_accounting.get_epsilon_gaussian(noise_multiplier / (_SENSITIVITY * math.sqrt(releases)), delta))


@cache
def _subsampled(noise_multiplier: float, sampling: Sampling) -> PrivacyLossDistribution:
    """Return the privacy loss distribution of one release to which ``sampling`` applies."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=sampling.population,
        sampling_probability=1.0,
        truncated_batch_size=sampling.drawn,
        noise_multiplier=noise_multiplier,
        value_discretization_interval=INTERVAL,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
