"""Which policies of a what-if meet all requirements, and which of them has the least of something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgefl.errors import InputError
from edgefl.report.policies import PolicyOutcome, Required, WhatIf
from edgefl.report.requirements import QUANTITIES, Requirement, parse_requirement
from edgefl.report.tables import Column
from edgefl.report.words import joined

LEAST = ("joules", "bytes", "round", "waste", "money")
"""The quantities of which a policy may have the least."""


@dataclass(frozen=True)
class Goal:
    """What is asked of a policy.

    Attributes:
        requirements: such as "gateway >= 20 %" and "bytes <= 50MB/month".
        minimize: the quantity of which the policy to take has the least, such as "joules"; "" for none.

    Raises:
        InputError: a requirement or a quantity is none.
    """

    requirements: Sequence[str] = ()
    minimize: str = ""

    def __post_init__(self) -> None:
        if self.minimize and self.minimize not in LEAST:
            raise InputError(f"minimize {self.minimize!r}: expected {', '.join(LEAST[:-1])} or {LEAST[-1]}")
        for text in self.requirements:
            parse_requirement(text)

    def resolved(self, titles: Mapping[str, str], calendar: bool, prices: bool = True) -> list[Requirement]:
        """Return the requirements on a fleet's classes, device → name for people.

        Raises:
            InputError: one is about another class, about a month and rounds have no ``calendar``, or about money without ``prices``.
        """
        found = [parse_requirement(text, titles) for text in self.requirements]
        asked_of = [asked.text for asked in found if asked.quantity == "money"] + ["money"] * (self.minimize == "money")
        if asked_of and not (prices and calendar):
            lacks = "a [calendar] or --rounds-per-day" if prices else 'prices, such as [prices] with energy = "0.30 EUR/kWh"'
            raise InputError(f"{asked_of[0]}: a month has no price yet; give the fleet {lacks}")
        for asked in found:
            if asked.month and not calendar:
                remedy = "give --rounds-per-day, or a fleet with a [calendar]"
                raise InputError(f"requirement {asked.text!r}: a month needs to know when rounds begin; {remedy}")
        return found


NO_GOAL = Goal()


def required(requirements: Sequence[Requirement], minimize: str, result: WhatIf) -> Required:
    """Return what requirements leave of the policies of a what-if; ``minimize`` is a quantity or ""."""
    rows = result.rows
    lacks = {row.label: {r.text: lack for r in requirements if (lack := r.missed(result, row))} for row in rows}
    able = [row for row in rows if not lacks[row.label] and row.inclusion]
    least = [(value, row) for row in able if minimize and (value := QUANTITIES[minimize].of(result, row)) is not None]
    nearest = min(rows, key=lambda row: sum(r.distance(result, row) for r in requirements))
    return Required(
        texts=[r.text for r in requirements],
        minimize=minimize,
        missed={label: lack for label, lack in lacks.items() if lack},
        taken=min(least, key=lambda pair: pair[0])[1].label if least else "",
        nearest="" if able else nearest.label,
    )


def able_rows(result: WhatIf) -> list[PolicyOutcome]:
    """Return the policies under which a client trains and that meet all requirements."""
    missed = {} if result.required is None else result.required.missed
    return [row for row in result.rows if row.round_s is not None and row.inclusion and row.label not in missed]


def taken(result: WhatIf) -> PolicyOutcome | None:
    """Return the policy with the least of what is minimized, of those that meet all requirements; None if there is none."""
    label = None if result.required is None else result.required.taken
    return next((row for row in result.rows if row.label == label), None)


def missing_column(result: WhatIf) -> tuple[Column, ...]:
    """Return the column of what each policy has instead of what is required; nothing without requirements."""
    found = result.required
    if found is None or not found.texts:
        return ()
    return (Column("misses", "", lambda row: _lacks(found.missed.get(row.label, {})) or "–", numeric=False),)


def _lacks(missed: Mapping[str, str]) -> str:
    return "; ".join(f"{text}: {lack}" for text, lack in missed.items())


def required_sentence(result: WhatIf) -> str:
    """Return which policies meet the requirements, and which of them has the least of what is minimized; nothing without them."""
    found = result.required
    if found is None:
        return ""
    if found.nearest:
        lacks = joined([f"“{text}” (it has {lack})" for text, lack in found.missed.get(found.nearest, {}).items()])
        return f"No policy meets all requirements. “{found.nearest}” comes nearest: it misses {lacks}."
    return " ".join(filter(None, (_meeting(result, len(found.texts)), _least(result, found))))


def _meeting(result: WhatIf, count: int) -> str:
    labels = [f"“{row.label}”" for row in able_rows(result)]
    what = "all requirements" if count > 1 else "the requirement"
    return f"{joined(labels)} {'meets' if len(labels) == 1 else 'meet'} {what}." if count else ""


def _least(result: WhatIf, found: Required) -> str:
    row = taken(result)
    if row is None:
        return ""
    quantity = QUANTITIES[found.minimize]
    return f"“{row.label}” has the lowest {quantity.title}: {quantity.human(quantity.of(result, row))}."
