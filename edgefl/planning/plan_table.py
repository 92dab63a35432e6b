"""The tables of ``edgefl plan``."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from edgefl.fleet.budget import margin_of
from edgefl.planning.every_method import Tried
from edgefl.planning.fleet_plan import ClassTier
from edgefl.planning.plan import Planned
from edgefl.records import BudgetName
from edgefl.report.tables import Column, PlainTable, text, under
from edgefl.report.words import BUDGETS
from edgefl.util.units import MISSING, human_budget, human_percent, human_range


def plan_tables(plans: Sequence[Planned]) -> Iterator[Any]:
    """Yield a table of the plans with their budgets, a sentence that compares them, and the ranks by layer."""
    ratio = Column("ratio", "", lambda row: f"{row.ratio:g}" if row.kind == "uniform" else "per layer")
    columns = (text("plan", "", "kind"), ratio, *_figures(plans, under("energy kept", energy_share="")))
    yield PlainTable.of(columns, plans)
    for planned in plans:
        if planned.gap is not None:
            yield _comparison(plans, planned)
    layers = list(dict.fromkeys(name for planned in plans for name in planned.ranks))
    if layers:
        heads = [f"rank, {planned.kind}" for planned in plans]
        ranks = ([layer, *(str(planned.ranks.get(layer, "dense")) for planned in plans)] for layer in layers)
        yield PlainTable.of_texts(["layer", *heads], ranks, numeric=heads)


def method_tables(tried: Tried) -> Iterator[PlainTable]:
    """Yield the table of all methods: a row for each with a size that fits, and below it the reasons of the others."""
    plans, refused = list(tried.plans.values()), tried.refused.items()
    columns = (text("method", "", "method"), *under("largest ratio", "{:g}".format, ratio=""), *_figures(plans))
    others = [f"Without a size that fits: {'; '.join(f'{name} ({reason})' for name, reason in refused)}."] if refused else []
    note = "These are the methods that make sub-models of several sizes; --method plans with one, and shows its ranks."
    yield PlainTable.of(columns, plans, note="\n".join([note, *others]))


def _figures(plans: Sequence[Planned], more: tuple[Column, ...] = ()) -> tuple[Column, ...]:
    """Return the columns of costs, and of what is used of each budget."""

    def margin(budget: str) -> str:
        factor = margin_of(budget, plans[0].clock_margin or 1.0)
        return "" if factor == 1 else f", clock margin {factor:g}"

    return (
        *_costs("cost"),
        *more,
        *_sure(plans),
        *(Column(f"{BUDGETS.get(name, name)} used{margin(name)}", "", partial(_used, name)) for name in plans[0].uses),
    )


def _costs(outer: str = "") -> tuple[Column, ...]:
    return (
        *under("params", outer=outer, params=""),
        *under("MACs fwd", outer=outer, macs_forward=""),
        *under("train memory", outer=outer, training_memory_bytes=""),
        *under("bytes up", outer=outer, upload_bytes=""),
    )


def fleet_tables(classes: Sequence[ClassTier]) -> Iterator[PlainTable]:
    """Yield the table of a fleet: a row per class, with its largest tier and the budget that decides it."""
    columns = (
        text("device class", "", "title"),
        *under("of clients", human_percent, share=""),
        Column("largest tier", "", lambda row: MISSING if row.ratio is None else f"{row.ratio:g}"),
        *_costs(),
        Column("a round", "", lambda row: human_range(row.round_seconds_low, row.round_seconds_high) or MISSING),
        Column("tightest budget", "", _tightest, numeric=False),
    )
    none = [f"{row.title}: {row.need}" for row in classes if row.ratio is None]
    note = f"No tier fits {'; '.join(none)}. Shown is the smallest tier." if none else ""
    yield PlainTable.of(columns, classes, note=note)


def _tightest(row: ClassTier) -> str:
    budget, (need, have) = row.tightest, row.uses[row.tightest]
    share = f"{human_percent(need / have)} of " if have else ""
    sure = "" if row.confidence is None else f" ({row.confidence})"
    return f"{BUDGETS.get(budget, budget)}, {share}{human_budget(budget, have)}{sure}"


def _sure(plans: Sequence[Planned]) -> tuple[Column, ...]:
    """Return how sure the limits of seconds and joules are under the error of the device's clock, if there are any."""
    if plans[0].confidence is None:
        return ()
    return (
        Column("clock", "", lambda row: f"{row.confidence} ({human_percent(row.clock_chance)} within limits)", numeric=False),
    )


def _used(budget: BudgetName, row: Planned) -> str:
    need, have = row.uses[budget]
    used = f"{human_percent(need / have)} of {human_budget(budget, have)}"
    within = human_range(row.round_seconds_low, row.round_seconds_high) if budget == "deadline_s" else ""
    return f"{used} (within {within})" if within else used


def _comparison(plans: Sequence[Planned], planned: Planned) -> str:
    bound = f"by predicted costs, no plan within these budgets keeps more than {100 * (planned.gap or 0.0):.2g} points beyond it"
    uniform = next((p for p in plans if p.kind == "uniform" and p.energy_share is not None), None)
    if uniform is None or planned.energy_share is None or uniform.energy_share is None:
        return f"A rank per layer fits where no uniform ratio does; {bound}."
    more = 100 * (planned.energy_share - uniform.energy_share)
    return f"A rank per layer keeps {more:.3g} points more of the weights' energy than the uniform ratio; {bound}."
