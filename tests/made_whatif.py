"""What-ifs from a few of their figures."""

from collections.abc import Iterable
from typing import Any

from edgefl.report.policies import PolicyOutcome, WhatIf
from edgefl.report.results import Results, adapter

_OUTCOME: dict[str, Any] = {
    "tiers": (1.0,), "deadline_s": None, "over_selection": 1.0, "round_s": 10.0, "inclusion": 1.0, "inclusion_by_class": {},
    "useful_share": 1.0, "wasted_share": 0.0, "weakest": None, "weakest_inclusion": None, "energy_j": None, "rounds_per_hour": 360.0,
}  # fmt: skip
_RESULT: dict[str, Any] = {
    "profile": "phone",
    "method": "fedhm",
    "rounds": 10,
    "clients": 20,
    "per_round": 10,
    "seed": 0,
    "clock_error": 1.0,
}


def outcome_with(label: str = "a", **figures: Any) -> PolicyOutcome:
    """A policy; figures of its classes may be dictionaries."""
    found: PolicyOutcome = adapter(PolicyOutcome).validate_python({"label": label, **_OUTCOME, **figures})
    return found


def whatif_with(rows: Iterable[PolicyOutcome], **values: Any) -> WhatIf:
    """A what-if of policies."""
    return WhatIf(**{**_RESULT, "titles": {}, **values}, rows=Results(rows))
