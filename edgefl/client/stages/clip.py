"""clip: no client changes the model by more than a bound."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch
from torch import Tensor

from edgefl.client.clipping import adapted, change_of, clipped, norm_of
from edgefl.client.stage import AtClient, Leaving, Stage, StagePlace, Turn
from edgefl.records import Expected, Observed, Tier, Update
from edgefl.registry import stage

CLIP = "clip_norm:"
"""Prefix of the adaptive bounds among the server's tensors, by the tier's label."""
NORM = "change_norm"
"""The figure that a process which adds updates up reports: the norm of a change before clipping."""


@stage("clip", needs=("received_weights", "uploads"))
@dataclass(frozen=True)
class Clip(Stage):
    """Changes are scaled down to a fixed norm, or to a bound per tier that follows a quantile of the norms.

    Attributes:
        norm: the fixed bound C; None: the bound adapts.
        start: the adaptive bound of a tier's first round.
        quantile: γ, the share of changes that the adaptive bound leaves whole.
        rate: η_C of the geometric update.
        on_client: whether clients clip, because the server cannot read a single update.
    """

    norm: float | None = None
    start: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    on_client: bool = False

    place = StagePlace.CLIPPED

    def bound(self, memory: Mapping[str, Tensor], tier: Tier) -> float:
        """Return C of ``tier``, given the server's tensors."""
        if self.norm is not None:
            return self.norm
        stored = memory.get(CLIP + tier.label)
        return self.start if stored is None else float(stored)

    def after(self, memory: Mapping[str, Tensor], norms: Mapping[Tier, Iterable[float]]) -> dict[str, Tensor]:
        """Return the adaptive bounds after a round, by name, for the tiers that have changes in ``norms``.

        >>> after = Clip(start=2.0).after({}, {Tier(0.5): [1.0, 2.0, 3.0]})
        >>> round(float(after["clip_norm:0.5"]), 6)  # 2·exp(−0.2·(2/3 − 1/2))
        1.934432
        """
        bounds = {}
        for tier, changes in norms.items() if self.norm is None else ():
            bound, of_tier = self.bound(memory, tier), list(changes)
            within = sum(norm <= bound for norm in of_tier) / len(of_tier)
            bounds[CLIP + tier.label] = torch.tensor(adapted(bound, within, self.quantile, self.rate), dtype=torch.float64)
        return bounds

    def hands(self, session: Expected, weight: int, turn: Turn) -> float | None:
        """Return the bound, if the update is clipped before it reaches the server."""
        assert session.tier is not None  # a client without a tier is sent nothing
        return self.bound(turn.memory, session.tier) if turn.folds or self.on_client else None

    def leave(self, leaving: Leaving, at: AtClient) -> Leaving:
        """Clip the change if nobody can do it later."""
        if not self.on_client or at.handed is None:
            return leaving
        return replace(leaving, tensors=clipped(leaving.tensors, leaving.received, at.handed)[0])

    def folded(self, update: Update, handed: Any) -> Update:
        """Clip the change, and report its norm."""
        if handed is None:
            return update
        tensors, norm = clipped(update.tensors, update.start, handed)
        return replace(update, tensors=tensors, figures={**update.figures, NORM: norm})

    def admit(self, update: Update, turn: Turn) -> Update:
        """Clip the change, if that is still to do, and note its norm."""
        bound = self.bound(turn.memory, update.tier)
        update = update if update.folded else self.folded(update, bound)
        if (norm := update.figures.get(NORM)) is not None:
            turn.note(update, change_norm=norm, clipped=norm > bound)
        return update

    def record(self, turn: Turn) -> Observed:
        """Return the bounds of the tiers with updates; adapt them for the next round, and compare norms."""
        compare(turn)
        turn.after.update(self.after(turn.memory, norms_of(turn)))
        bounds = {tier.label: self.bound(turn.memory, tier) for tier in sorted(set(turn.tiers.values()))}
        return {"clip_norm": bounds} if bounds else {}


@dataclass(frozen=True)
class Measured(Stage):
    """Norms of changes are measured, and nothing is clipped."""

    place = StagePlace.CLIPPED

    @property
    def folds(self) -> bool:
        """True: of an update that is added up, nothing is measured."""
        return True

    def admit(self, update: Update, turn: Turn) -> Update:
        """Note the norm of the change."""
        if not update.folded:
            turn.note(update, change_norm=norm_of(change_of(update.tensors, update.start)))
        return update

    def record(self, turn: Turn) -> Observed:
        """Compare norms."""
        compare(turn)
        return {}


def norms_of(turn: Turn) -> dict[Tier, list[float]]:
    """Return tier → norms of its clients' changes, before clipping."""
    norms: dict[Tier, list[float]] = {}
    for client, screened in turn.found.items():
        if screened.change_norm is not None:
            norms.setdefault(turn.tiers[client], []).append(screened.change_norm)
    return norms


def compare(turn: Turn) -> None:
    """Note each norm's ratio to the median of its tier."""
    medians = {tier: median(norms) for tier, norms in norms_of(turn).items()}
    for client, screened in turn.found.items():
        middle = medians.get(turn.tiers[client], 0.0)
        ratio = None if screened.change_norm is None or not middle else screened.change_norm / middle
        turn.found[client] = replace(screened, norm_ratio=ratio)
