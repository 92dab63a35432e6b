"""``summary.json``: one record of a whole run, from which tables, charts and scripts are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgefl import __version__
from edgefl.fleet.budget import use
from edgefl.records import Cost, Tier
from edgefl.report.statuses import USEFUL, work_of
from edgefl.server.assignment import ClassPlan, Fit, Plan

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

    accuracy: float | None = None
    torch_accuracy: float | None = None
    measured_peak_activation_bytes_inference: int | None = None
    measured_peak_activation_bytes_onnx: int | None = None


def cost_row(cost: Cost) -> dict[str, Any]:
    """Return a cost under the names that every table and file uses."""
    return {key: getattr(cost, key) for key in COST_KEYS} | {"uncounted_ops": list(cost.uncounted_ops)}


def tier_rows(plan: Plan, results: Mapping[Tier, TierResult], rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the table of tiers, largest first; a tier without a result has dashes where its accuracies would be.

    A row speaks of the tier as the class of :meth:`Plan.home_of` takes it: ``micro_batch`` is how many samples go through the network
    there at once, None where it is the run's own number. ``round_seconds`` and ``round_joules`` are those of a client with the mean
    number of samples; the budgets are planned for the largest. The measured bytes of training are the largest that the meter of a
    client saw that took the tier in this way, None where nobody did; those of inference are onnxruntime's own for the exported file.
    """
    rows = []
    for tier in plan.costs:
        home = plan.home_of(tier)
        fit = _as_taken(home, tier)
        cost, timing = plan.cost(fit), plan.timing(home.device, fit, plan.mean_shard)
        used = _budgets(plan, home, fit)
        limiting = max(used, key=lambda row: row["share"], default=None)
        rows.append(
            {
                "tier": tier.number,
                "micro_batch": fit.micro_batch,
                "device": home.device.name,
                "device_title": home.device.title,
                "clients": sum(c.clients for c in plan.classes if c.tier == tier),
                **asdict(results.get(tier, TierResult())),
                **cost_row(cost),
                "batch_size": cost.batch_size,
                "measured_peak_activation_bytes_training": _measured(rounds, fit, "measured_peak_activation_bytes"),
                "measured_training_memory_bytes": _measured(rounds, fit, "measured_training_memory_bytes"),
                "round_seconds": timing.total_s,
                "round_joules": timing.total_j,
                "budget_share": limiting["share"] if limiting else None,
                "limiting_budget": limiting["budget"] if limiting else None,
            }
        )
    return rows


def class_rows(plan: Plan) -> list[dict[str, Any]]:
    """Return the table of device classes: the tier each takes, its budgets, and the steps of planning that led there."""
    rows = []
    for c in plan.classes:
        fit = c.fit or Fit(min(plan.costs))
        rows.append(
            {
                "device": c.device.name,
                "title": c.device.title,
                "share": c.share,
                "clients": c.clients,
                "tier": c.tier.number if c.tier else None,
                "micro_batch": fit.micro_batch,
                "budgets": _budgets(plan, c, fit),
                "refusals": [asdict(shortfall) for shortfall in c.refusals],
                "considered": [
                    {
                        "tier": step.fit.tier.number,
                        "micro_batch": step.fit.micro_batch,
                        "refusals": [asdict(shortfall) for shortfall in step.refusals],
                    }
                    for step in c.considered
                ],
                "assumed": list(c.device.assumed),
            }
        )
    return rows


def _as_taken(home: ClassPlan, tier: Tier) -> Fit:
    return next((fit for fit in home.options if fit is not None and fit.tier == tier), Fit(tier))


def _budgets(plan: Plan, c: ClassPlan, fit: Fit) -> list[dict[str, Any]]:
    timing = plan.timing(c.device, fit, plan.largest_shard)
    used = use(plan.cost(fit), timing, c.budget)
    return [{"budget": name, "need": need, "have": have, "share": need / have} for name, (need, have) in used.items()]


def _measured(rounds: Iterable[Mapping[str, Any]], fit: Fit, key: str) -> int | None:
    peaks = [
        client[key]
        for line in rounds
        for client in line.get("clients", ())
        if client["tier"] == fit.tier.number and client.get("micro_batch") == fit.micro_batch and client.get(key) is not None
    ]
    return max(peaks, default=None)


def totals(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all rounds together took, host time apart from simulated time.

    ``energy_j`` is spent on devices; ``end_to_end_j`` is that and the network path's. ``useful`` is what the clients took whose updates
    the server used, ``wasted`` what the others took; ``waited_s`` is how long the server waited for clients to become eligible.
    """
    return {
        "simulated_s": rounds[-1]["clock_s"] if rounds else 0.0,
        "waited_s": sum(line.get("waited_s", 0.0) for line in rounds),
        "host_s": sum(line["host_s"] for line in rounds),
        "energy_j": sum(line["energy_j"] for line in rounds),
        "end_to_end_j": sum(line.get("end_to_end_j", 0.0) for line in rounds),
        "macs": sum(line["macs"] for line in rounds),
        "download_bytes": sum(line["download_bytes"] for line in rounds),
        "upload_bytes": sum(line["upload_bytes"] for line in rounds),
        "useful": work_of(rounds, lambda status: status == USEFUL),
        "wasted": work_of(rounds, lambda status: status not in (USEFUL, "refused")),
        "edgefl_version": __version__,
    }
