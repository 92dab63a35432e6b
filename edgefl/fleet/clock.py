"""Simulated seconds and joules: from a tier's own MACs and bytes and a profile's rates, the same on every host, to the last bit."""

from __future__ import annotations

from edgefl.fleet.profile import DeviceProfile
from edgefl.records import Cost, Timing


def round_timing(device: DeviceProfile, cost: Cost, samples: int, passes: int, evaluated: int = 0) -> Timing:
    """Return the simulated round of one client: download, then training, then upload.

    Args:
        device: rates and powers.
        cost: the tier's costs.
        samples: samples seen over all local epochs.
        passes: forward and backward passes over all local epochs.
        evaluated: samples that go forward only, besides.

    With link rate b (bytes/s), round-trip time rtt, MACs m = ``cost.macs_of(samples, passes, evaluated)``::

        download_s = rtt + download_bytes / b_down          upload_s = rtt + upload_bytes / b_up
        train_s    = seconds(m): the full rate for ``burst_s``, ``sustained_share`` of it after
        compute_j  = m · pJ/MAC + idle_w · (download_s + train_s + upload_s)
        radio_j    = download_bytes · nJ/byte down + upload_bytes · nJ/byte up

    Joules are the device's own; the network's and the server's are not in them.
    """
    link, macs = device.link, cost.macs_of(samples, passes, evaluated)
    download_s = link.rtt_s + cost.download_bytes / link.download_bytes_per_s
    upload_s = link.rtt_s + cost.upload_bytes / link.upload_bytes_per_s
    train_s = throttled_s(device, macs / device.training_macs_per_s)
    total_s = download_s + train_s + upload_s
    return Timing(
        download_s=download_s,
        train_s=train_s,
        upload_s=upload_s,
        compute_j=energy_j(device, macs, total_s),
        radio_j=cost.download_bytes * link.download_j_per_byte + cost.upload_bytes * link.upload_j_per_byte,
    )


def throttled_s(device: DeviceProfile, full_rate_s: float) -> float:
    """Return how long work takes that would last ``full_rate_s`` at the full rate: what exceeds the burst runs slower."""
    burst_s, share = device.burst_s, device.sustained_share
    return full_rate_s if full_rate_s <= burst_s else burst_s + (full_rate_s - burst_s) / share


def inference_s(device: DeviceProfile, macs: int) -> float:
    """Return the seconds of an inference of ``macs`` multiply-accumulates, all threads, not throttled."""
    return macs / device.inference_macs_per_s


def energy_j(device: DeviceProfile, macs: int, seconds: float) -> float:
    """Return the joules of ``macs`` multiply-accumulates and of being on for ``seconds``, radio apart."""
    return macs * device.joules_per_mac + device.idle_w * seconds
