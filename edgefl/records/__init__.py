"""Frozen records that the stages of a round hand on to each other.

Units are in the names: ``_bytes``, ``_macs``, ``_s`` (simulated seconds; only ``host_s`` is this computer's time), ``_j`` (joules).
"""

from edgefl.records.cost import Added, Cost, Deployed, LayerCost, RoundTrip, Timing
from edgefl.records.data import DataRecord, Preparation
from edgefl.records.metric import ACCURACY, METRICS, WORST_CLIENT, Metric
from edgefl.records.model import Batch, Index, Place, Submodel, Tier, Update
from edgefl.records.node import NodeRecord
from edgefl.records.round import ClientRecord, Group, Observed, RoundRecord, Screened, Totals
from edgefl.records.session import BUDGETS, BudgetName, Ending, Expected, Foreseen, Grouped, Outcome, Shortfall, Status

__all__ = [
    "ACCURACY", "BUDGETS", "METRICS", "WORST_CLIENT", "Added", "Batch", "BudgetName", "ClientRecord", "Cost", "DataRecord", "Deployed",
    "Ending", "Expected", "Foreseen", "Group", "Grouped", "Index", "LayerCost", "Metric", "NodeRecord", "Observed", "Outcome", "Place",
    "Preparation", "RoundRecord", "RoundTrip", "Screened", "Shortfall", "Status", "Submodel", "Tier", "Timing", "Totals", "Update",
]  # fmt: skip
