"""edgefl: which part of a network each class of device can train, at what cost, and what the fleet learns.

The public names load on first use, so that importing the package does not import torch.

>>> import edgefl
>>> edgefl.RunConfig(rounds=3).method
'fedhm'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgefl.comparing import Comparison as Comparison
    from edgefl.comparing import compare as compare
    from edgefl.config import RunConfig as RunConfig
    from edgefl.fedround import FedRound as FedRound
    from edgefl.fedround import fed_round as fed_round
    from edgefl.fleet.budget import Budget as Budget
    from edgefl.planning import plan as plan
    from edgefl.policies import whatif as whatif
    from edgefl.profiling import profile as profile
    from edgefl.rehearsal import dry_run as dry_run
    from edgefl.run import RunResult as RunResult
    from edgefl.run import export as export
    from edgefl.run import simulate as simulate
    from edgefl.run import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "Budget": "edgefl.fleet.budget",
    "FedRound": "edgefl.fedround",
    "fed_round": "edgefl.fedround",
    "Comparison": "edgefl.comparing",
    "compare": "edgefl.comparing",
    "RunConfig": "edgefl.config",
    "plan": "edgefl.planning",
    "whatif": "edgefl.policies",
    "dry_run": "edgefl.rehearsal",
    "RunResult": "edgefl.run",
    "simulate": "edgefl.run",
    "profile": "edgefl.profiling",
    "export": "edgefl.run",
    "verify": "edgefl.run",
}

__all__ = [
    "Budget", "Comparison", "FedRound", "RunConfig", "RunResult", "__version__", "compare", "dry_run", "export", "fed_round", "plan",
    "profile", "simulate", "verify", "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgefl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
