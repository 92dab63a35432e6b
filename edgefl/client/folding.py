"""The sums of a round: a process that trains clients adds up their updates, and sends one sum per tier instead of every update."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from edgefl.client.job import Job
from edgefl.client.stage import Stage
from edgefl.client.stages.coded import PLAIN, Coded
from edgefl.errors import WireError
from edgefl.methods.base import Method
from edgefl.methods.personal import download_shapes
from edgefl.methods.tier_sum import TierSum, tier_sum
from edgefl.models.base import Architecture
from edgefl.records import Outcome, Tier, Update
from edgefl.timing.spans import span
from edgefl.wire.payload import decode

Row = Sequence[Any]
"""The sum of a tier without its values, as JSON: ratio, weight, weights by label, and the bounds of each limb."""


@dataclass
class Sums:
    """The sums of updates, by tier. They are exact: sums of several processes add up to the same bits in any order and grouping.

    Attributes:
        stages: what an update passes before it is added, in the order in which it leaves a client; the last one encodes it.
        tiers: the sum of each tier with an update that was added.
    """

    method: Method
    architecture: Architecture
    stages: Sequence[Stage] = (PLAIN,)
    tiers: dict[Tier, TierSum] = field(default_factory=dict)
    _sent: tuple[object, dict[str, Tensor]] = field(default=(None, {}), repr=False)

    def add(self, job: Job, outcome: Outcome) -> Outcome:
        """Add the update of a client that has trained; return its outcome without the update. Other outcomes are returned unchanged.

        Raises:
            WireError: the payload is damaged, or has other tensors than expected; names the client.
            AggregationError: the job's weight is not positive, or a label of the client is no class.
        """
        if outcome.status != "trained" or job.weight is None:
            return outcome
        total = self._of(job.tier)
        with span("aggregate", client=job.client):
            update = Update(
                job.client, job.tier, {}, {}, job.weight, outcome.labels, payload=outcome.payload, figures=outcome.figures
            )
            *stages, encoder = self.stages
            assert isinstance(encoder, Coded)  # others need every update
            update = encoder.opened(update, total.shapes)
            update = replace(update, start=self._sent_to(job)) if job.handed else update
            for stage in reversed(stages):
                update = stage.folded(update, job.handed.get(stage.name))
            total.add(update, job.weight)
        return replace(outcome, payload=b"", summed_bytes=len(outcome.payload), figures=update.figures)

    def written(self) -> tuple[list[Row], list[bytes]]:
        """Return the sums as they travel: a row per tier, and the bytes of all limbs."""
        sums = [(tier.ratio, summed.weight, summed.label_weights, summed.total) for tier, summed in self.tiers.items()]
        limbs = [limb.numpy().tobytes() for *_, total in sums for limb in total.limbs]
        return [(*row, total.bounds) for *row, total in sums], limbs

    def merge(self, rows: Sequence[Row], limbs: Iterable[bytes]) -> None:
        """Add the sums that another process has :meth:`written`; raise :class:`WireError` if they are damaged or of other tensors."""
        left = iter(limbs)
        for row in rows:
            try:
                ratio, weight, label_weights, bounds = row
                summed = self._of(Tier(ratio))
                parts = [torch.frombuffer(bytearray(next(left)), dtype=torch.float64) for _ in bounds]
                total = type(summed.total)(parts, [float(bound) for bound in bounds])
                summed.merge(replace(summed, total=total, weight=int(weight), label_weights=[int(w) for w in label_weights]))
            except (TypeError, ValueError, RuntimeError, StopIteration) as error:
                raise WireError(f"the sum of a tier's updates cannot be read: {error!r}") from None

    def _sent_to(self, job: Job) -> dict[str, Tensor]:
        """Return the tensors of a job's payload. Consecutive jobs with the same payload share them."""
        if self._sent[0] is not job.payload:
            shapes = download_shapes(self.method, self.architecture, job.tier)
            self._sent = job.payload, decode(job.payload, shapes, f"client {job.client}")
        return self._sent[1]

    def _of(self, tier: Tier) -> TierSum:
        if tier not in self.tiers:
            self.tiers[tier] = tier_sum(self.method, self.architecture, tier)
        return self.tiers[tier]
