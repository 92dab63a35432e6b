"""``summary.json``: one record of a whole run, from which tables, charts and scripts are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgefl import __version__
from edgefl.fleet.budget import use
from edgefl.records import Cost, Tier
from edgefl.server.plan import ClassPlan, Plan

COST_KEYS = (
    "params", "params_inference",
    "macs_forward", "macs_backward_input", "macs_backward_weight", "macs_backward", "macs_compose", "macs_drawn", "macs_train_step",
    "macs_inference", "elementwise_ops", "elementwise_ops_backward", "elementwise_ops_step",
    "peak_activation_bytes_inference", "peak_activation_bytes_training", "parameter_bytes", "buffer_bytes", "gradient_bytes",
    "optimizer_bytes", "training_memory_bytes", "weights_bytes_inference", "inference_memory_bytes", "peak_gradient_bytes",
    "peak_saved_bytes", "peak_temporary_bytes", "peak_layer_training", "peak_layer_inference", "download_bytes", "upload_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class TierResult:
    """How one tier came out: accuracy as an exported file under its device's memory and as a torch module, and what that file held."""

    accuracy: float
    torch_accuracy: float
    measured_peak_activation_bytes_inference: int | None


def cost_row(cost: Cost) -> dict[str, Any]:
    """Return a cost under the names that every table and file uses."""
    return {key: getattr(cost, key) for key in COST_KEYS} | {"uncounted_ops": list(cost.uncounted_ops)}


def tier_rows(plan: Plan, results: Mapping[Tier, TierResult], rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table of tiers, largest first.

    ``round_seconds`` and ``round_joules`` are those of a client with the mean number of samples; the budgets are planned for the largest.
    The measured bytes of training are the largest that a client's meter saw in the run, None where nobody trained the tier; those of
    inference are onnxruntime's own for the exported file.
    """
    rows = []
    for tier, cost in plan.costs.items():
        home = plan.home_of(tier)
        timing = plan.timing(home.device, tier, plan.mean_shard)
        used = _budgets(plan, home, tier)
        limiting = max(used, key=lambda row: row["share"], default=None)
        rows.append(
            {
                "tier": tier.number,
                "device": home.device.name,
                "device_title": home.device.title,
                "clients": sum(c.clients for c in plan.classes if c.tier == tier),
                **asdict(results[tier]),
                **cost_row(cost),
                "batch_size": cost.batch_size,
                "measured_peak_activation_bytes_training": _measured(rounds, tier, "measured_peak_activation_bytes"),
                "measured_training_memory_bytes": _measured(rounds, tier, "measured_training_memory_bytes"),
                "round_seconds": timing.total_s,
                "round_joules": timing.total_j,
                "budget_share": limiting["share"] if limiting else None,
                "limiting_budget": limiting["budget"] if limiting else None,
            }
        )
    return rows


def class_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the table of device classes: the tier each takes, its budgets, and why it takes no larger one."""
    rows = []
    for c in plan.classes:
        tier = c.tier or min(plan.costs)
        rows.append(
            {
                "device": c.device.name,
                "title": c.device.title,
                "share": c.share,
                "clients": c.clients,
                "tier": c.tier.number if c.tier else None,
                "budgets": _budgets(plan, c, tier),
                "refusals": [asdict(shortfall) for shortfall in c.refusals],
                "assumed": list(c.device.assumed),
            }
        )
    return rows


def _budgets(plan: Plan, c: ClassPlan, tier: Tier) -> list[dict[str, Any]]:
    timing = plan.timing(c.device, tier, plan.largest_shard)
    used = use(plan.costs[tier], timing, c.budget)
    return [{"budget": name, "need": need, "have": have, "share": need / have} for name, (need, have) in used.items()]


def _measured(rounds: Sequence[Mapping[str, Any]], tier: Tier, key: str) -> int | None:
    peaks = [
        client[key]
        for line in rounds
        for client in line["clients"]
        if client["tier"] == tier.number and client.get(key) is not None
    ]
    return max(peaks, default=None)


def totals(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all rounds together took, host time apart from simulated time."""
    return {
        "simulated_s": rounds[-1]["clock_s"] if rounds else 0.0,
        "host_s": sum(line["host_s"] for line in rounds),
        "energy_j": sum(line["energy_j"] for line in rounds),
        "macs": sum(line["macs"] for line in rounds),
        "download_bytes": sum(line["download_bytes"] for line in rounds),
        "upload_bytes": sum(line["upload_bytes"] for line in rounds),
        "edgefl_version": __version__,
    }
