"""edgefl simulates federated learning: what part of a network each class of device can train, at what cost, and how well a fleet learns.

The public names load on first use, so that importing the package does not import torch.

>>> import edgefl
>>> edgefl.RunConfig(rounds=3).method
'fedhm'
"""

import os
from typing import TYPE_CHECKING, Any

from edgefl.version import __version__ as __version__

if TYPE_CHECKING:
    from edgefl.bundle.verify import verify as verify
    from edgefl.config import RunConfig as RunConfig
    from edgefl.consent import trust_code as trust_code
    from edgefl.data.sources import Dataset as Dataset
    from edgefl.errors import EdgeflError as EdgeflError
    from edgefl.fleet.budget import Budget as Budget
    from edgefl.planning.fleet_plan import plan_fleet as plan_fleet
    from edgefl.planning.inspect import inspect as inspect
    from edgefl.planning.plan import plan as plan
    from edgefl.planning.profile import profile as profile
    from edgefl.report.required import Goal as Goal
    from edgefl.report.run_budget import RunBudget as RunBudget
    from edgefl.run.compare import compare as compare
    from edgefl.run.compare_finished import compare_runs as compare_runs
    from edgefl.run.comparison_result import Comparison as Comparison
    from edgefl.run.comparison_result import load_comparison as load_comparison
    from edgefl.run.device_round import FedRound as FedRound
    from edgefl.run.device_round import fed_round as fed_round
    from edgefl.run.dry_run import dry_run as dry_run
    from edgefl.run.export import export as export
    from edgefl.run.export_network import export_network as export_network
    from edgefl.run.inspect_data import inspect_data as inspect_data
    from edgefl.run.result import RunResult as RunResult
    from edgefl.run.result import load_run as load_run
    from edgefl.run.simulate import simulate as simulate
    from edgefl.run.whatif import whatif as whatif

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
"""onnxruntime would send figures of models and of this computer to its maker. It reads the variable when it is imported."""

_HOMES = {
    "Budget": "edgefl.fleet.budget",
    "FedRound": "edgefl.run.device_round",
    "fed_round": "edgefl.run.device_round",
    "Comparison": "edgefl.run.comparison_result",
    "load_comparison": "edgefl.run.comparison_result",
    "compare": "edgefl.run.compare",
    "compare_runs": "edgefl.run.compare_finished",
    "Goal": "edgefl.report.required",
    "RunBudget": "edgefl.report.run_budget",
    "RunConfig": "edgefl.config",
    "Dataset": "edgefl.data.sources",
    "trust_code": "edgefl.consent",
    "EdgeflError": "edgefl.errors",
    "plan": "edgefl.planning.plan",
    "plan_fleet": "edgefl.planning.fleet_plan",
    "inspect": "edgefl.planning.inspect",
    "inspect_data": "edgefl.run.inspect_data",
    "whatif": "edgefl.run.whatif",
    "dry_run": "edgefl.run.dry_run",
    "RunResult": "edgefl.run.result",
    "load_run": "edgefl.run.result",
    "simulate": "edgefl.run.simulate",
    "profile": "edgefl.planning.profile",
    "export": "edgefl.run.export",
    "export_network": "edgefl.run.export_network",
    "verify": "edgefl.bundle.verify",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'edgefl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
