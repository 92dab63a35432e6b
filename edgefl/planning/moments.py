"""The bytes of every moment of a training step as functions of the layers' ranks, learned from traces.

The peak of a step moves from moment to moment as ranks change, so the bytes at the peak of one plan say little about another plan. Plans
with the same dense layers run the same operations, and a storage's bytes depend on the rank of one layer at most. Traces that change the
ranks of half of the layers each, by the binary digits of the layers' numbers, tell which. Between traced ranks bytes are interpolated.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edgefl.cost.memory import Timeline
from edgefl.methods.ranks import Ranks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Moments:
    """What is known of the moments at which a step may hold most bytes.

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
    found: Moments | None = Moments(
        numbers, events, np.where(owner <= len(numbers), owner, 0), rows, np.zeros(len(rows)), {name: {} for name in numbers}
    )
    for plan, trace in zip(plans, traces, strict=True):
        found = found and found.learned(plan, trace)
    return found
