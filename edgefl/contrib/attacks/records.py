"""The records of simulated attacks in a run's files."""

from dataclasses import dataclass, field

from edgefl.registry import added_fields
from edgefl.report.added import SELDOM
from edgefl.report.results import Result
from edgefl.report.run_rows import Whole


@dataclass(frozen=True)
class AttackRow(Result):
    """The adversaries of a run, by their specification.

    Attributes:
        count: how many of the run's clients attack.
        clients: their numbers, ascending; the first hundred if there are more.
    """

    adversary: str
    count: Whole
    clients: tuple[Whole, ...]


@added_fields("attack", of="Summary")
@dataclass(frozen=True, kw_only=True)
class OfAttack:
    """The adversaries of a run; None: every client is honest."""

    attack: AttackRow | None = field(default=None, metadata=SELDOM)


@added_fields("compared-attack", of="ComparisonSummary")
@dataclass(frozen=True, kw_only=True)
class OfComparison:
    """Which clients attack, and how; None: every client is honest."""

    adversary: str | None = None


@added_fields("adversaries", of="RoundLine")
@dataclass(frozen=True, kw_only=True)
class OfRound:
    """The clients of a round that attacked."""

    adversaries: tuple[Whole, ...] = ()
