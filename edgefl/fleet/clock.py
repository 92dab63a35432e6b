"""Simulated seconds and joules: from a tier's own work and bytes and a profile's costs, the same on every host, to the last bit."""

from dataclasses import replace

from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import train_s
from edgefl.records import Cost, RoundTrip, Timing
from edgefl.records.work import Work


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
