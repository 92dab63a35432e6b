"""Screening: what the server does with updates before the method aggregates them.

The order is: cap on samples, clipping of the change, robust defence. Differential privacy builds on clipped updates and comes after them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, median_low
from typing import Literal

import torch
from torch import Tensor

from edgefl.client.clipping import adapted, change_of, clipped, norm_of
from edgefl.errors import AggregationError
from edgefl.methods.base import Method
from edgefl.methods.state import GlobalState
from edgefl.records import Outcome, Screened, Tier, Update
from edgefl.server.coordinates import Changes
from edgefl.server.defence import Defence
from edgefl.server.defences.none import UNDEFENDED
from edgefl.server.outliers import cosines

CLIP = "clip_norm:"
"""Prefix of the adaptive bounds among the server's tensors, by the tier's label."""
CLAIMS = 3
"""A claimed number of samples counts up to so many times the median of the round."""


@dataclass(frozen=True)
class Clipping:
    """How changes are clipped: at a fixed norm, or at a bound per tier that follows a quantile of the norms.

    Attributes:
        norm: the fixed bound C; None: the bound adapts.
        start: the adaptive bound of a tier's first round.
        quantile: γ, the share of changes that the adaptive bound leaves whole.
        rate: η_C of the geometric update.
    """

    norm: float | None = None
    start: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2

    def bound(self, memory: Mapping[str, Tensor], tier: Tier) -> float:
        """Return C of ``tier``, given the server's tensors."""
        if self.norm is not None:
            return self.norm
        stored = memory.get(CLIP + tier.label)
        return self.start if stored is None else float(stored)

    def after(self, memory: Mapping[str, Tensor], norms: Mapping[Tier, Iterable[float]]) -> dict[str, Tensor]:
        """Return the adaptive bounds after a round, by name, for the tiers that have changes in ``norms``.

        >>> after = Clipping(start=2.0).after({}, {Tier(0.5): [1.0, 2.0, 3.0]})
        >>> round(float(after["clip_norm:0.5"]), 6)  # 2·exp(−0.2·(2/3 − 1/2))
        1.934432
        """
        found = {}
        for tier, of in norms.items() if self.norm is None else ():
            bound, own = self.bound(memory, tier), list(of)
            within = sum(norm <= bound for norm in own) / len(own)
            found[CLIP + tier.label] = torch.tensor(adapted(bound, within, self.quantile, self.rate), dtype=torch.float64)
        return found


@dataclass(frozen=True)
class Screening:
    """What the server believes of updates, the same in all rounds of a run.

    Attributes:
        sample_cap: most samples that an update counts for; "auto": :data:`CLAIMS` times the median of the claims, and no cap on counts
            that the server knows; None: no cap.
        clipping: how changes are clipped; None: they are not.
        defence: the robust aggregation.
        outliers: whether each update is compared with the others of its tier.
    """

    sample_cap: int | Literal["auto"] | None = "auto"
    clipping: Clipping | None = None
    defence: Defence = UNDEFENDED
    outliers: bool = False

    @property
    def holds(self) -> bool:
        """Whether the server needs all updates of a round at once, so that workers cannot add them up."""
        return self.outliers or not self.defence.passes

    def cap(self, claims: Iterable[int] = ()) -> int | None:
        """Return the cap on samples in a round in which clients make these ``claims``; none: the server knows the counts. None: no cap.

        The lower median is taken: with two claims, the smaller one decides.

        >>> Screening().cap([100, 120, 10**9]), Screening().cap([100, 10**9]), Screening().cap(), Screening(50).cap([100])
        (360, 300, None, 50)
        """
        known = sorted(claims)
        if self.sample_cap != "auto":
            return self.sample_cap
        return CLAIMS * median_low(known) if known else None


NO_SCREENING = Screening()


@dataclass
class Screen:
    """The screening of one round: what was found in each update.

    Attributes:
        memory: the server's tensors before the round.
        cap: most samples that an update of this round counts for; None: no cap.
        measures: whether norms are measured even if nothing is clipped.
        found: client → what was found in its update.
    """

    rules: Screening
    memory: Mapping[str, Tensor]
    cap: int | None = None
    measures: bool = False
    found: dict[int, Screened] = field(default_factory=dict)
    _tiers: dict[int, Tier] = field(default_factory=dict)
    _held: list[Update] = field(default_factory=list)

    def bound(self, tier: Tier) -> float | None:
        """Return the longest change of ``tier`` in this round; None: any."""
        return None if self.rules.clipping is None else self.rules.clipping.bound(self.memory, tier)

    def counted(self, samples: int) -> int:
        """Return the samples that an update counts for."""
        return samples if self.cap is None else min(samples, self.cap)

    def admitted(self, update: Update, sent: Mapping[str, Tensor]) -> Update:
        """Return the update of a client that was sent ``sent``, capped and clipped."""
        samples, tensors, norm, bound = self.counted(update.samples), update.tensors, None, self.bound(update.tier)
        if bound is not None:
            tensors, norm = clipped(tensors, sent, bound)
        elif self.measures or self.rules.holds:
            norm = norm_of(change_of(tensors, sent))
        self._note(update.client, update.tier, norm, samples if samples < update.samples else None)
        if self.rules.holds:
            self._held.append(replace(update, sent=sent))
        return replace(update, tensors=tensors, samples=samples)

    def summed(self, tier: Tier, outcome: Outcome, samples: int) -> None:
        """Note the outcome of a client that claims ``samples``. Its update was capped, clipped and summed where it trained."""
        counted = self.counted(samples)
        self._note(outcome.client, tier, outcome.change_norm, counted if counted < samples else None)

    def _note(self, client: int, tier: Tier, norm: float | None, counted: int | None) -> None:
        bound = self.bound(tier)
        if norm is None and counted is None:
            return
        self.found[client] = Screened(norm, norm is not None and bound is not None and norm > bound, counted_samples=counted)
        self._tiers[client] = tier

    def defended(self, method: Method, state: GlobalState, updates: Iterator[Update]) -> Iterator[Update]:
        """Yield the updates that the defence leaves; AggregationError if an update cannot be aggregated.

        Without a defence they pass one by one. With one, all of them are read first.
        """
        if self.rules.defence.passes:
            yield from updates
            return
        arrived = sorted(method.checked(state, updates), key=lambda update: update.client)
        sent = {update.client: update.sent for update in self._held}
        changes = Changes(
            tuple(replace(update, sent=sent[update.client]) for update in arrived),
            state.tensors,
            method.label_rows(state.architecture),
        )
        left: object = self.rules.defence.defended(changes)
        if not isinstance(left, Sequence) or not left or not all(isinstance(update, Update) for update in left):
            got = "no updates" if isinstance(left, Sequence) and not left else type(left).__name__
            raise AggregationError(f"defence {self.rules.defence.name}: defended returned {got}, expected a list of updates")
        clients = {update.client for update in left}
        for client in sent.keys() - clients:
            self.found[client] = replace(self.found[client], dropped=True)
        yield from (replace(update, sent={}) for update in left)

    def bounds_after(self) -> dict[str, Tensor]:
        """Return the server's tensors that screening changed in this round."""
        return {} if self.rules.clipping is None else self.rules.clipping.after(self.memory, self.norms())

    def report(self) -> dict[int, Screened]:
        """Return client → what was found in its update, compared with the others of its tier."""
        medians = {tier: median(norms) for tier, norms in self.norms().items()}
        towards = cosines(self._held) if self.rules.outliers else {}
        found = {}
        for client, of in sorted(self.found.items()):
            middle = medians.get(self._tiers[client], 0.0)
            ratio = None if of.change_norm is None or not middle else of.change_norm / middle
            found[client] = replace(of, norm_ratio=ratio, cosine=towards.get(client))
        return found

    def observed(self) -> dict[str, object]:
        """Return the round's figures: the bounds, and how many updates were clipped, dropped and capped."""
        bounds = {tier.label: bound for tier in sorted(set(self._tiers.values())) if (bound := self.bound(tier)) is not None}
        counts = {
            "clipped": sum(of.clipped for of in self.found.values()),
            "dropped": sum(of.dropped for of in self.found.values()),
            "capped": sum(of.counted_samples is not None for of in self.found.values()),
        }
        return {**({"clip_norm": bounds} if bounds else {}), "screening": counts} if self.found else {}

    def norms(self) -> dict[Tier, list[float]]:
        """Return tier → norms of its clients' changes, before clipping."""
        norms: dict[Tier, list[float]] = {}
        for client, of in self.found.items():
            if of.change_norm is not None:
                norms.setdefault(self._tiers[client], []).append(of.change_norm)
        return norms
