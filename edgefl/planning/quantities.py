"""What each rank of a layer costs, predicted from two traces: the dense network, and every layer at rank 1.

MACs and bytes of a factorized layer grow with its rank, the Frobenius term with its square, and every unit of rank saves the same
activation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgefl.factor.layers import parameters_of_rank
from edgefl.factor.svd import unroll
from edgefl.fleet.clock import training_spends
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import train_s
from edgefl.methods.ranks import Layer
from edgefl.records import BudgetName, Cost, LayerCost


@dataclass(frozen=True)
class DeviceRound:
    """One client's round on a device, which converts costs into seconds and joules.

    Attributes:
        samples, passes, updates: of training, over all local epochs.
        margin: training takes this many times the predicted seconds.
    """

    device: DeviceProfile
    samples: int
    passes: int
    updates: int
    margin: float = 1.0


_FORWARD, _SAMPLE, _COMPOSE, _WEIGHTS, _HEADER, _MEMORY = range(6)
"""Columns: MACs of a sample's forward pass, and of both; of a pass, on weights alone; weights; bytes that name them in a payload; bytes
at the training peak."""


def quantities(name: str, layer: Layer, dense: Cost, thin: Cost, layers: Mapping[str, Layer]) -> np.ndarray:
    """Return the quantities of each choice of one layer, shape (ranks, 6); the last row is the dense layer."""
    numel, unit = layer.weight.numel(), parameters_of_rank(layer, 1)
    ranks = np.arange(1, min(math.ceil(numel / unit) - 1, *unroll(layer.weight).shape) + 1, dtype=np.float64)
    rows = {row.layer: row for row in (*dense.layers, *thin.layers)}
    u, v, whole = rows[f"{name}.u"], rows[f"{name}.v"], rows[name]
    # What a weight holds: itself, its optimizer state, and its gradient as far as that is alive at the peak.
    held = 4 * (thin.parameter_bytes + thin.optimizer_bytes + thin.peak_gradient_bytes) / thin.parameter_bytes
    units = sum(parameters_of_rank(other, 1) for other in layers.values())
    table = np.zeros((len(ranks) + 1, 6))
    table[:-1, _FORWARD] = ranks * (u.macs_forward + v.macs_forward)
    table[:-1, _SAMPLE] = ranks * (_sample_macs(u) + _sample_macs(v))
    table[:-1, _COMPOSE] = ranks**2 * unit / units * max(0, thin.macs_compose - dense.macs_compose)
    table[:-1, _WEIGHTS] = ranks * unit
    # Two factors take a longer header than one weight: the difference between the networks, shared out.
    header = thin.download_bytes - thin.parameter_bytes - (dense.download_bytes - dense.parameter_bytes)
    table[:-1, _HEADER] = max(0.0, header / len(layers))
    table[:-1, _MEMORY] = ranks * (unit * held + u.saved_bytes_at_peak + u.temporary_bytes_at_peak)
    table[-1] = (whole.macs_forward, _sample_macs(whole), 0, numel, 0, numel * held)
    return table


def _sample_macs(row: LayerCost) -> int:
    return row.macs_forward + row.macs_backward_input + row.macs_backward_weight


def weighting(name: BudgetName, cost: Cost, work: DeviceRound | None) -> np.ndarray:
    """Return the weight of each quantity in a budget, near a plan that costs ``cost``."""
    row = np.zeros(6)
    if name == "memory_bytes":
        row[_MEMORY] = 1
    elif name == "macs_forward":
        row[_FORWARD] = 1
    elif name == "macs_train_step":
        row[_SAMPLE], row[_COMPOSE] = cost.batch_size, -(-cost.batch_size // cost.micro_batch)
    elif name == "download_bytes":
        row[_WEIGHTS], row[_HEADER] = 4, 1
    elif name == "upload_bytes":
        row[_WEIGHTS], row[_HEADER] = _upload_per_weight(cost), 1
    elif work is not None:
        device, link, up = work.device, work.device.link, _upload_per_weight(cost)
        full_rate_s = train_s(device.compute, cost, work.samples, work.passes, work.updates)
        macs_per_s = cost.macs_of(work.samples, work.passes) / full_rate_s
        slower = work.margin * (1.0 if full_rate_s <= device.burst_s else 1 / device.sustained_share)
        macs = np.zeros(6)
        macs[_SAMPLE], macs[_COMPOSE] = work.samples, work.passes
        row = macs * slower / macs_per_s
        fixed_j, watts = training_spends(device, cost.work_of(work.samples, work.passes, work.updates))
        computing = watts * row + fixed_j * macs / cost.macs_of(work.samples, work.passes)
        row[_WEIGHTS] = 4 / link.download_bytes_per_s + up / link.upload_bytes_per_s
        row[_HEADER] = 1 / link.download_bytes_per_s + 1 / link.upload_bytes_per_s
        if name == "energy_j" and (rates := device.energy) is not None:
            row = rates.idle_w * row
            row[[_SAMPLE, _COMPOSE]] = computing[[_SAMPLE, _COMPOSE]]
            row[_WEIGHTS] += 4 * rates.download_byte_j + up * rates.upload_byte_j
            row[_HEADER] += rates.download_byte_j + rates.upload_byte_j
    return row


def _upload_per_weight(cost: Cost) -> float:
    """Return the codec's bytes per weight: the upload without its header, which is about as long as that of the download."""
    header = cost.download_bytes - cost.parameter_bytes
    return max(0.0, cost.upload_bytes - header) / cost.params
