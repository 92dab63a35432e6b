"""Simulated seconds and joules, the same on every host, to the last bit, and the chance that they stay within a limit.

They follow from a tier's own work and bytes and a profile's costs. A profile states the factor f that holds nine in ten predictions:
measured / f ≤ predicted ≤ measured · f. Here the true seconds of training are the predicted ones times a log-normal factor with these
limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from edgefl.fleet.budget import Budget
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import train_s
from edgefl.records import Cost, RoundTrip, Timing
from edgefl.records.work import Work
from edgefl.rng import generator


def trip_s(device: DeviceProfile, trip: RoundTrip, link_share: float = 1.0) -> float:
    """Return the seconds of a round trip on the device's link with its bytes both ways."""
    link = device.link
    down_s = trip.download_bytes / (link.download_bytes_per_s * link_share)
    return link.rtt_s + down_s + trip.upload_bytes / (link.upload_bytes_per_s * link_share)


def added_s(device: DeviceProfile, cost: Cost) -> float:
    """Return the seconds of the element-wise work that stages add to a session, at the device's full rate.

    A device whose profile has only one rate of MACs is not charged.
    """
    costs, added_bytes = device.compute.training_step, cost.added.elementwise_bytes
    return 0.0 if costs is None or not added_bytes else Work(elementwise_bytes=added_bytes).seconds(costs.seconds)


def with_joules(device: DeviceProfile, timing: Timing, download_bytes: int, upload_bytes: int) -> Timing:
    """Return the timing with the joules of its seconds and ``train_j``, and of the bytes that went over.

    ``compute_j`` is ``train_j``, and idle power times all other seconds. The radio takes nJ/byte times the bytes, and its tail after each
    transfer, the first one until training ends. Joules on the device are None if the profile lacks the figures.
    """
    network_j, rates = (download_bytes + upload_bytes) * device.link.network_j_per_byte, device.energy
    if rates is None:
        return replace(timing, compute_j=None, radio_j=None, network_j=network_j, train_j=0.0)
    tail_s, tail_w = device.link.tail
    on_s = (min(tail_s, timing.train_s) if download_bytes else 0.0) + (tail_s if upload_bytes else 0.0)
    radio_j = download_bytes * rates.download_byte_j + upload_bytes * rates.upload_byte_j + tail_w * on_s
    compute_j = timing.train_j + rates.idle_w * (timing.total_s - timing.train_s)
    parts = timing.download_s, timing.train_s, timing.upload_s, compute_j, radio_j, network_j
    return Timing(*parts, timing.agree_s, timing.unmask_s, timing.train_j)  # once per session: replace() takes twice as long


def round_timing(
    device: DeviceProfile,
    cost: Cost,
    samples: int,
    passes: int,
    updates: int,
    evaluated: int = 0,
    speed: float = 1.0,
    margin: float = 1.0,
) -> Timing:
    """Return the simulated round of one client whose link gives its typical rate.

    With link rate b (bytes/s) and round-trip time rtt::

        download_s = rtt + download_bytes / b_down          upload_s = rtt + upload_bytes / b_up
        train_s    = the full rate for ``burst_s``, ``sustained_share`` of it after

    ``speed`` is the share of its computing rate that the device has. ``margin`` is a factor on the seconds of training, which include
    throttling. :func:`edgefl.fleet.time_model.train_s` describes the other arguments.
    """
    work_s = train_s(device.compute, cost, samples, passes, updates, evaluated) / speed + added_s(device, cost) / speed
    down_bytes, up_bytes = cost.model_bytes
    link = device.link
    download_s, upload_s = link.rtt_s + down_bytes / link.download_bytes_per_s, link.rtt_s + up_bytes / link.upload_bytes_per_s
    parts = download_s, throttled_s(device, work_s) * margin, upload_s
    agree_s, unmask_s = trips_s(device, cost)
    fixed_j, watts = training_spends(device, cost.work_of(samples, passes, updates, evaluated))
    timing = Timing(*parts, 0.0, 0.0, 0.0, agree_s, unmask_s, fixed_j + watts * parts[1])
    return with_joules(device, timing, cost.download_bytes, cost.upload_bytes)


def trips_s(device: DeviceProfile, cost: Cost, link_share: float = 1.0) -> tuple[float, float]:
    """Return the seconds of round trips before the model is sent, and after its update has arrived, without waiting for others."""
    before, after = (sum((trip_s(device, t, link_share) for t in trips), 0.0) for trips in (cost.added.before, cost.added.after))
    return before, after


def within(timing: Timing, error: float) -> tuple[float, float]:
    """Return the least and the most seconds of a round, if training takes from 1 / ``error`` to ``error`` times the prediction.

    >>> within(Timing(1.0, 10.0, 2.0, 0.0, 0.0), 1.25)
    (11.0, 15.5)
    """
    sent_s = timing.download_s + timing.upload_s + timing.agree_s + timing.unmask_s
    return sent_s + timing.train_s / error, sent_s + timing.train_s * error


def throttled_s(device: DeviceProfile, full_rate_s: float) -> float:
    """Return how long work takes that would last ``full_rate_s`` at the full rate: what exceeds the burst runs slower."""
    burst_s, share = device.burst_s, device.sustained_share
    return full_rate_s if full_rate_s <= burst_s else burst_s + (full_rate_s - burst_s) / share


def inference_s(device: DeviceProfile, cost: Cost) -> float:
    """Return the seconds of an inference of one sample, all threads, not throttled."""
    costs = device.compute.inference_step
    return cost.macs_inference / device.inference_macs_per_s if costs is None else cost.inference_of(1).seconds(costs.seconds)


def inference_j(device: DeviceProfile, cost: Cost) -> float | None:
    """Return the joules of an inference of one sample, all threads; None if they are unknown."""
    if device.power is None or device.energy is None:
        return None
    fixed_j, watts = device.power.spends(device.compute.inference_step, cost.inference_of(1))
    return fixed_j + watts * inference_s(device, cost)


def training_spends(device: DeviceProfile, work: Work) -> tuple[float, float]:
    """Return the joules of training ``work`` apart from its seconds, and the watts during them; 0 if they are unknown."""
    return (0.0, 0.0) if device.power is None else device.power.spends(device.compute.training_step, work)


DRAWS = 200
_NINE_IN_TEN = 1.6448536269514722
"""Standard deviations of a normal variable that hold nine draws in ten."""

Confidence = Literal["safe", "likely", "open"]
"""How sure it is that limits of time hold: in 95 % of cases or more, in 75 % or more, or less."""
_SAFE, _LIKELY = 0.95, 0.75

Draws = Mapping[str, np.ndarray]
"""Device → a factor on its seconds of training per draw, and :func:`power_of` the device → one on its watts; float64, (draws,)."""


def power_of(device: str) -> str:
    """Return the name that the watts of a device have among :data:`Draws`."""
    return f"{device}, power"


def drawn_factors(errors: Mapping[str, float], draws: int) -> dict[str, np.ndarray]:
    """Return the factors on the seconds of training of each device; ``errors`` is device → stated error.

    A device has the same factors wherever it occurs, so whatever is compared is compared under the same draws.

    >>> drawn = drawn_factors({"a": 2.0, "b": 1.0}, 1000)
    >>> float(np.mean((drawn["a"] > 0.5) & (drawn["a"] < 2))).__round__(1), drawn["b"].max()
    (0.9, np.float64(1.0))
    """
    normal = {device: generator(0, "clock error", device).standard_normal(draws) for device in errors}
    return {device: error ** (normal[device] / _NINE_IN_TEN) for device, error in errors.items()}


def chance_within(slack: float, error: float) -> float:
    """Return the chance that training takes at most ``slack`` times the predicted seconds, with the stated ``error``.

    >>> round(chance_within(1.18, 1.18), 3), chance_within(1.0, 1.18), chance_within(-1.0, 2.0), chance_within(1.0, 1.0)
    (0.95, 0.5, 0.0, 1.0)
    """
    if slack <= 0:
        return 0.0
    if error == 1 or slack == math.inf:
        return float(slack >= 1)
    return 0.5 * (1 + math.erf(math.log(slack) / math.log(error) * _NINE_IN_TEN / math.sqrt(2)))


def chance_of(device: DeviceProfile, timing: Timing, budget: Budget) -> float | None:
    """Return the chance that a round with the predicted ``timing`` meets the limits of seconds and joules; None without such a limit."""
    chances = []
    if budget.deadline_s is not None:
        slack = (budget.deadline_s - timing.total_s + timing.train_s) / timing.train_s
        chances.append(chance_within(slack, device.clock_error))
    if budget.energy_j is not None and device.energy_error is not None and timing.total_j is not None:
        spare_j = budget.energy_j - timing.total_j
        slack = 1 + spare_j / timing.train_j if timing.train_j else math.inf if spare_j >= 0 else 0.0
        chances.append(chance_within(slack, device.energy_error))
    return min(chances, default=None)


def confidence_of(chance: float | None) -> Confidence | None:
    """Return how sure a limit is.

    >>> confidence_of(0.95), confidence_of(0.75), confidence_of(0.5), confidence_of(None)
    ('safe', 'likely', 'open', None)
    """
    if chance is None:
        return None
    return "safe" if chance >= _SAFE else "likely" if chance >= _LIKELY else "open"
