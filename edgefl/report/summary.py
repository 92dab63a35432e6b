"""Computes the records of ``summary.json``: tiers, device classes, participation, and totals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from operator import eq, ge

from edgefl.fleet.budget import margin_of, use
from edgefl.records import Cost, Group, Tier, Timing
from edgefl.report.cost_rows import OTHER, macs_of_step
from edgefl.report.round_lines import ClientLine, RoundLine
from edgefl.report.run_files import RunTotals
from edgefl.report.run_rows import AssignmentStep, BudgetUse, ClassRow, LayerUse, Participation, TierResult, TierRow
from edgefl.report.words import USEFUL, clients_of, counted, groups_of, useful_and_wasted
from edgefl.server.assignment import Assignment, ClassPlan, Plan
from edgefl.util.unknown import known_sum
from edgefl.version import __version__

MOST_LAYERS = 40


def tier_rows(
    plan: Plan, results: Mapping[Tier, TierResult], rounds: Sequence[RoundLine], trains_smaller: bool, distils: bool = False
) -> list[TierRow]:
    """Return the table of tiers, largest first, each as the class of :meth:`Plan.home_of` trains it.

    ``trains_smaller`` is the method's (:class:`edgefl.methods.base.Method`): an update of a tier then counts for smaller ones, too.
    If the server ``distils``, every tier learns from every update.

    Budgets are checked for the largest shard of the run; time and energy are those of a client with the mean number of samples. The
    measured bytes of training are the largest among the clients that trained the tier with the same assignment.
    """
    trains = ge if trains_smaller else eq
    # A class that fits no tier has groups without one.
    groups = [(group.tier, group) for group in groups_of(rounds) if group.tier is not None]
    rows = []
    for tier in plan.costs:
        home = plan.home_of(tier)
        fit = next((fit for fit in home.options if fit is not None and fit.tier == tier), Assignment(tier))
        cost, timing = plan.cost(fit), plan.timing(home.device, fit, plan.workload.mean_shard)
        training = (group for trained, group in groups if distils or trains(trained, tier.number))
        clients = _trained_as(fit, rounds)
        limiting = max(_budgets(plan, home, fit), key=lambda use: use.share, default=None)
        rows.append(
            TierRow.of(
                cost,
                tier=tier.number,
                micro_batch=fit.micro_batch,
                device=home.device.name,
                device_title=home.device.title,
                clients=sum(c.clients for c in plan.classes if c.tier == tier) if plan.policy.name == "auto" else None,
                updates=counted(training)[USEFUL],
                **asdict(results.get(tier, TierResult())),
                batch_size=cost.batch_size,
                measured_peak_activation_bytes_training=_most(client.measured_peak_activation_bytes for client in clients),
                measured_training_memory_bytes=_most(client.measured_training_memory_bytes for client in clients),
                round_seconds=timing.total_s,
                round_joules=timing.total_j,
                budget_share=limiting.share if limiting else None,
                limiting_budget=limiting.budget if limiting else None,
                layers=layer_uses(cost),
            )
        )
    return rows


def layer_uses(cost: Cost) -> tuple[LayerUse, ...]:
    """Return the costliest layers of a tier by the MACs of a step, in the network's order, and all others summed."""
    rows = [{**vars(layer), "macs_train_step": sum(macs_of_step(cost, layer))} for layer in cost.layers]
    keys = ("layer", "macs_train_step", "parameter_bytes")
    rows = [row for row in rows if row["macs_train_step"] or row["parameter_bytes"]]
    if len(rows) > MOST_LAYERS:
        ranked = sorted(rows, key=lambda row: (row["macs_train_step"], row["parameter_bytes"]), reverse=True)
        rest = ranked[MOST_LAYERS:]
        rows = [row for row in rows if row not in rest]
        rows.append({"layer": OTHER, **{key: sum(row[key] for row in rest) for key in keys[1:]}})
    return tuple(LayerUse(*(row[key] for key in keys)) for row in rows)


def class_rows(plan: Plan) -> list[ClassRow]:
    """Return the table of device classes: the tier of each, its budgets, and the steps of its assignment."""
    rows = []
    for c in plan.classes:
        fit = c.assignment or Assignment(min(plan.costs))
        steps = ((step.assignment, step.refusals) for step in c.attempts)
        rows.append(
            ClassRow(
                device=c.device.name,
                title=c.device.title,
                share=c.share,
                clients=c.clients,
                tier=c.tier.number if c.tier else None,
                micro_batch=fit.micro_batch,
                budgets=() if c.left_out else _budgets(plan, c, fit),
                refusals=c.refusals,
                considered=tuple(AssignmentStep(at.tier.number, at.micro_batch, short, at.recompute) for at, short in steps),
                assumed=tuple(c.device.assumed),
                clock_error=c.device.clock_error,
                recompute=fit.recompute,
                **_power(plan, c, fit),
            )
        )
    return rows


def participation_rows(
    plan: Plan, rounds: Sequence[RoundLine], distinct: Mapping[str, int], accuracies: Mapping[float, float]
) -> list[Participation]:
    """Return how each device took part over all rounds; several classes with one device are one row.

    ``distinct`` is device → how many of its clients trained at least once; ``accuracies`` is a tier's ratio → its accuracy.
    """
    groups: dict[str, list[Group]] = {}
    for group in groups_of(rounds):
        groups.setdefault(group.device, []).append(group)
    rows = []
    for device in dict.fromkeys(c.device.name for c in plan.classes):
        classes = [c for c in plan.classes if c.device.name == device]
        own, tier = groups.get(device, []), classes[0].tier
        statuses, (useful, wasted) = counted(own), useful_and_wasted(own)
        rows.append(
            Participation(
                device=device,
                title=classes[0].device.title,
                share=sum(c.share for c in classes),
                clients=sum(c.clients for c in classes),
                sessions=statuses.total(),
                distinct=distinct.get(device, 0),
                statuses=dict(statuses),
                useful=useful,
                wasted=wasted,
                tier=tier.number if tier else None,
                accuracy=accuracies.get(tier.ratio) if tier else None,
            )
        )
    return rows


def totals(rounds: Sequence[RoundLine]) -> RunTotals:
    """Return what all rounds together took."""
    useful, wasted = useful_and_wasted(groups_of(rounds))
    return RunTotals(
        simulated_s=rounds[-1].clock_s if rounds else 0.0,
        waited_s=sum(line.waited_s for line in rounds),
        host_s=sum(line.host_s for line in rounds),
        energy_j=known_sum(line.energy_j for line in rounds),
        end_to_end_j=known_sum(line.end_to_end_j for line in rounds),
        macs=sum(line.macs for line in rounds),
        download_bytes=sum(line.download_bytes for line in rounds),
        upload_bytes=sum(line.upload_bytes for line in rounds),
        useful=useful,
        wasted=wasted,
        edgefl_version=__version__,
        began=(rounds[0].began or "") if rounds else "",
        last_began=(rounds[-1].began or "") if rounds else "",
    )


def _budgets(plan: Plan, c: ClassPlan, fit: Assignment) -> tuple[BudgetUse, ...]:
    samples, margin = plan.workload.largest_shard, plan.workload.clock_margin
    used = use(plan.cost(fit), plan.timing(c.device, fit, samples, margin), c.budget)
    timing = plan.timing(c.device, fit, samples)
    return tuple(
        BudgetUse(name, need, have, need / have, _deciding(c, timing, name, have), margin_of(name, margin))
        for name, (need, have) in used.items()
    )


def _deciding(c: ClassPlan, timing: Timing, budget: str, have: float) -> float | None:
    """Return the error of seconds or joules if it decides whether a budget is met."""
    error, whole, training = None, 0.0, 0.0
    if budget == "deadline_s":
        error, whole, training = c.device.clock_error, timing.total_s, timing.train_s
    elif budget == "energy_j" and timing.total_j is not None:
        error, whole, training = c.device.energy_error, timing.total_j, timing.train_j
    if error is None or not whole - training + training / error <= have < whole - training + training * error:
        return None
    return error


def _power(plan: Plan, c: ClassPlan, fit: Assignment) -> dict[str, float | None]:
    """Return the watts of a class without work and while it trains, and their error and that of its joules; nothing if unknown."""
    if c.device.energy is None:
        return {}
    timing = plan.timing(c.device, fit, plan.workload.mean_shard)
    watts = timing.train_j / timing.train_s if timing.train_s else None
    errors = {"power_error": c.device.power_error, "energy_error": c.device.energy_error}
    return {"idle_w": c.device.energy.idle_w, "training_w": watts, **errors}


def _trained_as(fit: Assignment, rounds: Iterable[RoundLine]) -> list[ClientLine]:
    """Return the sessions with an assignment."""
    own = fit.tier.number, fit.micro_batch, fit.recompute
    return [client for client in clients_of(rounds) if (client.tier, client.micro_batch, client.recompute) == own]


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
