"""A rank for every layer under a budget, with the least truncation error of given weights.

The costs of a plan come from its own trace. Between traces they are predicted from two of them: the dense network, and every layer at
rank 1. MACs and bytes of a factorized layer grow with its rank, the Frobenius term with its square, and every unit of rank saves the
same activation. Each trace corrects the prediction. Plans are made and traced until one fits and repeats.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from edgefl.factor.layers import parameters_of_rank
from edgefl.factor.plan import Allocation, LayerChoices, allocate
from edgefl.factor.svd import factorize, unroll
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import train_s
from edgefl.methods.ranks import Layer, Ranks
from edgefl.records import BudgetName, Cost, LayerCost

Uses = Mapping[BudgetName, tuple[float, float]]  # budget → what is needed and what there is

ATTEMPTS = 8


@dataclass(frozen=True)
class DeviceRound:
    """One client's round on a device, which converts costs into seconds and joules.

    Attributes:
        samples, passes: of training, over all local epochs.
        margin: training takes this many times the predicted seconds.
    """

    device: DeviceProfile
    samples: int
    passes: int
    margin: float = 1.0


@dataclass(frozen=True)
class Spectral:
    """A plan with a rank per layer.

    Attributes:
        ranks: layer → rank; dense layers are missing.
        cost: its traced cost.
        energy_share: share of the layers' energy that it keeps, in [0, 1].
        gap: upper bound of what a better plan could add to that share.
    """

    ranks: Ranks
    cost: Cost
    energy_share: float
    gap: float


def energies(layers: Mapping[str, Layer], weights: Mapping[str, Tensor], relative: bool = False) -> dict[str, np.ndarray]:
    """Return Σ_{i≤r} σᵢ² of every layer's unrolled weight for r = 1, 2, …, float64, from weights named ``layer.weight``.

    ``relative`` divides by the layer's own energy, so that layers with small weights count as much as others.
    """
    squares = {name: factorize(unroll(weights[f"{name}.weight"]), 1).values.numpy() ** 2 for name in layers}
    sums = {name: np.cumsum(of_layer) for name, of_layer in squares.items()}
    return {name: kept / kept[-1] if relative and kept[-1] > 0 else kept for name, kept in sums.items()}


def share_kept(energy: Mapping[str, np.ndarray], ranks: Mapping[str, int]) -> float:
    """Return the share of all layers' energy that ``ranks`` keep; layers without a rank are dense."""
    total = math.fsum(float(e[-1]) for e in energy.values())
    kept = math.fsum(float(e[ranks[name] - 1] if name in ranks else e[-1]) for name, e in energy.items())
    return kept / total if total > 0 else 1.0


def spectral(
    layers: Mapping[str, Layer],
    energy: Mapping[str, np.ndarray],
    start: Ranks,
    cost_at: Callable[[Ranks], Cost],
    uses_of: Callable[[Cost], Uses],
    work: DeviceRound | None,
) -> Spectral | None:
    """Return the plan that keeps the most energy within the budgets, at least as much as the plan ``start`` if that fits.

    ``layers`` may be factorized, with the cumulative ``energy`` of :func:`energies`. ``cost_at`` traces a plan, ``uses_of`` returns need
    and have of every budget of a cost, and ``work`` is the device and round behind budgets in seconds and joules.
    """
    whole, least = Ranks(), dict.fromkeys(layers, 1)
    tables = {name: _quantities(name, layer, cost_at(whole), cost_at(least), layers) for name, layer in layers.items()}
    search = _Search(energy, tables, cost_at, uses_of, work)
    # The moment of the peak moves with the plan, so a budget of memory is searched from its other side as well.
    starts = [start, least, whole] if "memory_bytes" in uses_of(cost_at(start)) else [start]
    found = [search.improved(at) for at in starts]
    best = max((plan for plan, _ in found if plan is not None), key=lambda plan: plan.energy_share, default=None)
    if best is None:
        return None
    total = math.fsum(float(e[-1]) for e in energy.values())
    gap = max(0.0, max(bound for _, bound in found) / total - best.energy_share) if total > 0 else 0.0
    return replace(best, gap=gap)


@dataclass(frozen=True)
class _Search:
    """What a search for ranks knows: each layer's cumulative energy and quantities, how to trace a plan, and the budgets."""

    energy: Mapping[str, np.ndarray]
    tables: Mapping[str, np.ndarray]
    cost_at: Callable[[Ranks], Cost]
    uses_of: Callable[[Cost], Uses]
    work: DeviceRound | None

    def improved(self, at: Ranks) -> tuple[Spectral | None, float]:
        """Plan and trace in turn from ``at`` on; return the best plan that fits, if any, and the bound of all plans."""
        best: Spectral | None = None
        bound = 0.0
        margins: dict[BudgetName, float] = {}
        for _ in range(ATTEMPTS):
            cost = self.cost_at(at)
            share = share_kept(self.energy, at)
            left = {name: have - need for name, (need, have) in self.uses_of(cost).items()}
            if min(left.values(), default=0.0) >= 0 and (best is None or share > best.energy_share):
                best = Spectral(at, cost, share, 0.0)
            # If a plan needs more than was predicted, the next plans get a larger margin.
            margins = {name: margins.get(name, 0.0) + max(0.0, -room) for name, room in left.items()}
            allocation = self.next(at, cost, {name: room - margins[name] for name, room in left.items()})
            if allocation is None:
                break
            bound = max(bound, allocation.bound)
            chosen = {name: rank for name, rank in allocation.ranks.items() if rank < len(self.tables[name])}
            if chosen == at:
                break
            at = chosen
        return best, bound

    def next(self, at: Ranks, cost: Cost, limits: Mapping[BudgetName, float]) -> Allocation | None:
        """Return the best plan by costs predicted around ``at``, whose trace is ``cost``; ``limits`` is the rest of each budget."""
        weighting = np.array([_weighting(name, cost, self.work) for name in limits]).reshape(len(limits), 6)
        choices, used = [], np.zeros(len(limits))
        for name, table in self.tables.items():
            costs = table @ weighting.T
            kept = np.append(self.energy[name][: len(table) - 1], self.energy[name][-1])
            used += costs[at[name] - 1 if name in at else -1]
            choices.append(LayerChoices(name, tuple(range(1, len(table) + 1)), kept, costs))
        return allocate(choices, used + np.array(list(limits.values())))


_FORWARD, _SAMPLE, _COMPOSE, _WEIGHTS, _HEADER, _MEMORY = range(6)
"""Columns: MACs of a sample's forward pass, and of both; of a pass, on weights alone; weights; bytes that name them in a payload; bytes
at the training peak."""


def _quantities(name: str, layer: Layer, dense: Cost, thin: Cost, layers: Mapping[str, Layer]) -> np.ndarray:
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


def _weighting(name: BudgetName, cost: Cost, work: DeviceRound | None) -> np.ndarray:
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
        full_rate_s = work.margin * train_s(device.compute, cost, work.samples, work.passes)
        macs_per_s = cost.macs_of(work.samples, work.passes) / full_rate_s
        slower = 1.0 if full_rate_s <= device.burst_s else 1 / device.sustained_share
        macs = np.zeros(6)
        macs[_SAMPLE], macs[_COMPOSE] = work.samples, work.passes
        row = macs * slower / macs_per_s
        row[_WEIGHTS] = 4 / link.download_bytes_per_s + up / link.upload_bytes_per_s
        row[_HEADER] = 1 / link.download_bytes_per_s + 1 / link.upload_bytes_per_s
        if name == "energy_j":
            row = device.idle_w * row + device.joules_per_mac * macs
            row[_WEIGHTS] += 4 * link.download_j_per_byte + up * link.upload_j_per_byte
            row[_HEADER] += link.download_j_per_byte + link.upload_j_per_byte
    return row


def _upload_per_weight(cost: Cost) -> float:
    """Return the codec's bytes per weight: the upload without its header, which is about as long as that of the download."""
    header = cost.download_bytes - cost.parameter_bytes
    return max(0.0, cost.upload_bytes - header) / cost.params
