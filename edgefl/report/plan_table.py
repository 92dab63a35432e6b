"""Plans for the terminal: what fits, how much of each budget it takes, and the rank of every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from edgefl.report.tables import BUDGETS
from edgefl.util.units import human_budget, human_bytes, human_count, human_percent

if TYPE_CHECKING:
    from edgefl.planning.plan import Planned


def plan_tables(plans: Sequence[Planned]) -> Iterator[Any]:
    """Yield a table of the plans with their budgets, a sentence that compares them, and the ranks by layer."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("plan")
    for head in ("ratio", "params", "MACs fwd", "train memory", "bytes up", "energy kept"):
        table.add_column(head, justify="right")
    for name in plans[0].uses:
        table.add_column(f"{BUDGETS.get(name, name)} used", justify="right")
    for planned in plans:
        cost = planned.cost
        table.add_row(
            planned.kind,
            f"{planned.ratio:g}" if planned.kind == "uniform" else "per layer",
            human_count(cost.params),
            human_count(cost.macs_forward),
            human_bytes(cost.training_memory_bytes),
            human_bytes(cost.upload_bytes),
            human_percent(planned.energy_share),
            *(f"{human_percent(need / have)} of {human_budget(name, have)}" for name, (need, have) in planned.uses.items()),
        )
    yield table
    for planned in plans:
        if planned.gap is not None:
            yield _comparison(plans, planned)
    if any(planned.ranks for planned in plans):
        yield _ranks(plans)


def _comparison(plans: Sequence[Planned], planned: Planned) -> str:
    bound = f"by predicted costs, no plan within these budgets keeps more than {100 * (planned.gap or 0.0):.2g} points beyond it"
    uniform = next((p for p in plans if p.kind == "uniform" and p.energy_share is not None), None)
    if uniform is None or planned.energy_share is None or uniform.energy_share is None:
        return f"A rank per layer fits where no uniform ratio does; {bound}."
    more = 100 * (planned.energy_share - uniform.energy_share)
    return f"A rank per layer keeps {more:.3g} points more of the weights' energy than the uniform ratio; {bound}."


def _ranks(plans: Sequence[Planned]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("layer")
    for planned in plans:
        table.add_column(f"rank, {planned.kind}", justify="right")
    layers = list(dict.fromkeys(name for planned in plans for name in planned.ranks))
    for layer in layers:
        table.add_row(layer, *(str(planned.ranks.get(layer, "dense")) for planned in plans))
    return table
