"""Predictions for every rank of the layers: its cost, from two traces, and the bytes of every moment of a step, from some more.

MACs and bytes of a factorized layer grow with its rank, the Frobenius term with its square, and every unit of rank saves the same
activation: two traces tell, of the dense network and of every layer at rank 1.

The peak of a step moves from moment to moment as ranks change, so the bytes at the peak of one plan say little about another plan. Plans
with the same dense layers run the same operations, and a storage's bytes depend on the rank of one layer at most. Traces that change the
ranks of half of the layers each, by the binary digits of the layers' numbers, tell which. Between traced ranks bytes are interpolated.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.cost.memory import Timeline
from edgefl.factor.layers import parameters_of_rank
from edgefl.factor.svd import unroll
from edgefl.fleet.clock import training_spends
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import train_s
from edgefl.methods.ranks import Layer, Ranks
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
    weight_bytes = 4 * (thin.parameter_bytes + thin.optimizer_bytes + thin.peak_gradient_bytes) / thin.parameter_bytes
    units = sum(parameters_of_rank(other, 1) for other in layers.values())
    table = np.zeros((len(ranks) + 1, 6))
    table[:-1, _FORWARD] = ranks * (u.macs_forward + v.macs_forward)
    table[:-1, _SAMPLE] = ranks * (_sample_macs(u) + _sample_macs(v))
    table[:-1, _COMPOSE] = ranks**2 * unit / units * max(0, thin.macs_compose - dense.macs_compose)
    table[:-1, _WEIGHTS] = ranks * unit
    # Two factors take a longer header than one weight: the difference between the networks, shared out.
    header = thin.download_bytes - thin.parameter_bytes - (dense.download_bytes - dense.parameter_bytes)
    table[:-1, _HEADER] = max(0.0, header / len(layers))
    table[:-1, _MEMORY] = ranks * (unit * weight_bytes + u.saved_bytes_at_peak + u.temporary_bytes_at_peak)
    table[-1] = (whole.macs_forward, _sample_macs(whole), 0, numel, 0, numel * weight_bytes)
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


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moments:
    """The moments at which a step may hold most bytes, as far as traces tell.

    Attributes:
        numbers: layer → its number, from 1.
        events: of the timelines that belong here, (events,).
        owner: number of the layer that each storage depends on, 0 for none, (storages,).
        rows: the moments, positions in ``events``, (moments,).
        fixed: bytes that depend on no layer, the most of any trace, (moments,).
        known: layer → rank → bytes of its storages, (moments,).
    """

    numbers: Mapping[str, int]
    events: Ints
    owner: Ints
    rows: Ints
    fixed: Floats
    known: Mapping[str, Mapping[int, Floats]]

    def learned(self, ranks: Ranks, trace: Timeline) -> "Moments | None":
        """Return the moments with what a trace at ``ranks`` adds; None if its step does other operations."""
        if not np.array_equal(trace.events, self.events):
            return None
        changes = np.zeros((len(self.events), len(self.numbers) + 1))
        changes[np.arange(len(changes)), self.owner[np.abs(self.events) - 1]] = trace.changes()
        alive = np.cumsum(changes, axis=0)[self.rows]
        known = {name: {**self.known[name], ranks[name]: alive[:, number]} for name, number in self.numbers.items()}
        return replace(self, fixed=np.maximum(self.fixed, alive[:, 0]), known=known)

    def bytes_of(self, layer: str, ranks: Ints, moments: Ints | slice = slice(None)) -> Floats:
        """Return the bytes of a layer at each of ``ranks`` and ``moments``, (ranks, moments)."""
        traced = sorted(self.known[layer])
        values = np.stack([self.known[layer][rank][moments] for rank in traced])
        if len(traced) == 1:
            return np.repeat(values, len(ranks), axis=0)
        after = np.clip(np.searchsorted(traced, ranks), 1, len(traced) - 1)
        ends = np.array(traced, np.float64)
        share = (ranks - ends[after - 1]) / (ends[after] - ends[after - 1])
        return np.maximum(values[after - 1] + share[:, None] * (values[after] - values[after - 1]), 0.0)

    def bytes_at(self, ranks: Ranks) -> Floats:
        """Return the predicted bytes of each moment, (moments,)."""
        return self.fixed + sum(self.bytes_of(name, np.array([ranks[name]]))[0] for name in self.numbers)


def moments_of(largest: Ranks, timeline_at: Callable[[Ranks], Timeline]) -> Moments | None:
    """Return the moments of plans with ranks up to ``largest``, layer → rank; None if steps at different ranks do different operations.

    ``timeline_at`` traces a plan; log₂(layers) + 1 plans are traced.
    """
    # A rank of 1 may be a case of its own, since a tensor with one channel has any order of dimensions.
    least = {name: 2 if rank > 2 else 1 for name, rank in largest.items()}
    numbers = {name: number for number, name in enumerate(largest, 1)}
    bits = range(len(numbers).bit_length())
    plans = [{name: largest[name] if number >> bit & 1 else least[name] for name, number in numbers.items()} for bit in bits]
    plans = [least, *plans]
    traces = [timeline_at(plan) for plan in plans]
    if any(len(trace.sizes) != len(traces[0].sizes) for trace in traces):
        return None
    owner = sum((trace.sizes != traces[0].sizes).astype(np.int64) << bit for bit, trace in enumerate(traces[1:]))
    events = traces[0].events
    rows = np.flatnonzero((events > 0) & (np.append(events[1:], -1) < 0))
    moments: Moments | None = Moments(
        numbers, events, np.where(owner <= len(numbers), owner, 0), rows, np.zeros(len(rows)), {name: {} for name in numbers}
    )
    for plan, trace in zip(plans, traces, strict=True):
        moments = moments and moments.learned(plan, trace)
    return moments
