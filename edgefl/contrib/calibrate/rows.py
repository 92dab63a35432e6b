"""Fits a profile to training steps that were measured elsewhere: rows of a CSV file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from edgefl.contrib.calibrate.device import factor_of, table_of
from edgefl.contrib.calibrate.meters import MeterFigures, csv_lines, number_of
from edgefl.contrib.calibrate.profile_file import assumed, figure, power_of
from edgefl.errors import EdgeflError, InputError
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.time_model import Limits, Measurement, StepCosts, fit
from edgefl.methods.create import create
from edgefl.planning.network import architecture_of
from edgefl.planning.profile import training_for
from edgefl.planning.tier_costs import tier_cost
from edgefl.records import Tier
from edgefl.records.work import KINDS, NO_WORK, Work
from edgefl.util.files import TomlTable
from edgefl.util.ratios import check_ratios

_NEEDED = ("batch", "seconds")
_APART = 3
"""Rows of the same work may differ by this factor."""
_NO_LIMITS = Limits(1e15, 1e15)


@dataclass(frozen=True)
class MeasuredStep:
    """A row: its line, what was measured, and its seconds; ``sustained_s`` is after minutes of load."""

    line: int
    name: str
    phase: str
    measured: Measurement
    sustained_s: float | None


def read_rows(path: Path) -> list[MeasuredStep]:
    """Return the rows of a CSV file.

    It has the columns ``network`` (a reference network, with ``method``, ``tier``, ``input``, ``classes`` and ``optimizer`` where they
    are given) or a column for every kind of work that occurs, such as ``product_macs``; ``batch``, ``seconds``, and maybe ``phase``
    (``step`` or ``forward``) and ``sustained_seconds``.

    Raises:
        InputError: the file cannot be read, a column is missing, a value is wrong, or rows contradict each other.
    """
    columns, lines = csv_lines(path)
    missing = [column for column in _NEEDED if column not in columns]
    if not ({"network", *KINDS} & set(columns)):
        missing.insert(0, "network")
    if missing:
        raise InputError(f"{path}: no column {' and no column '.join(missing)}; got {', '.join(columns) or 'an empty file'}")
    rows = [_row(path, number, line) for number, line in lines]
    if not rows:
        raise InputError(f"{path}: no rows below the header")
    for a, b in combinations(rows, 2):
        ratio = a.measured.seconds / b.measured.seconds
        if a.measured.work == b.measured.work and a.phase == b.phase and max(ratio, 1 / ratio) > _APART:
            raise InputError(
                f"{path}: lines {a.line} and {b.line} contradict each other: {a.name} takes {a.measured.seconds:g} s and "
                f"{b.measured.seconds:g} s, more than {_APART} times as long; remove the wrong one"
            )
    return rows


def _row(path: Path, line: int, values: Mapping[str, str]) -> MeasuredStep:
    where = f"{path}: line {line}"
    seconds = number_of(where, "seconds", values["seconds"])
    sustained = values.get("sustained_seconds", "")
    batch = _whole(where, "batch", values["batch"])
    phase = values.get("phase") or "step"
    if phase not in ("step", "forward"):
        raise InputError(f"{where}: phase: expected step or forward, got {phase!r}")
    if name := values.get("network", ""):
        work = _traced(where, name, batch, phase, values)
    else:
        work = Work(**{kind: int(number_of(where, kind, values[kind], least=0)) for kind in KINDS if values.get(kind)})
        name = "the work of this line"
    if work == NO_WORK:
        raise InputError(f"{where}: no network and no work: fill in a column such as network or product_macs")
    return MeasuredStep(
        line, name, phase, Measurement(work, seconds), number_of(where, "sustained_seconds", sustained) if sustained else None
    )


def _whole(where: str, key: str, text: str) -> int:
    value = number_of(where, key, text)
    if value != int(value):
        raise InputError(f"{where}: {key}: expected a whole number, got {text!r}")
    return int(value)


def _traced(where: str, name: str, batch: int, phase: str, values: Mapping[str, str]) -> Work:
    classes = _whole(where, "classes", values["classes"]) if values.get("classes") else None
    tier = Tier(number_of(where, "tier", values.get("tier") or "1", least=0))
    try:
        network = architecture_of(name, values["input"].split(",") if values.get("input") else None, classes)
        training = training_for(batch, None, values.get("optimizer") or "momentum")  # type: ignore[arg-type]  # it checks the name
        check_ratios((tier.ratio,))
        cost = tier_cost(create(values.get("method") or "fedavg"), network, tier, training)
    except (EdgeflError, ValueError) as error:
        raise InputError(f"{where}: {error}") from error
    return cost.work_of(batch, 1, 1) if phase == "step" else cost.inference_of(batch)


def costs_of(rows: Sequence[MeasuredStep], like: DeviceProfile, path: Path) -> tuple[tuple[float, ...], str, str]:
    """Return the costs that fit rows of training steps, their mark, and how they were fitted.

    With fewer rows than costs, the costs of ``like`` are scaled by one speed: they are derived, not measured.

    Raises:
        InputError: there are fewer rows than costs, and ``like`` has no costs; or those of ``like`` make the work of a row free.
    """
    measured = [row.measured for row in rows]
    kinds = sum(any(getattr(step.work, kind) for step in measured) for kind in KINDS)
    table = like.compute.training_step
    if table is not None and (free := [row.line for row in rows if not row.measured.work.seconds(table.seconds)]):
        raise InputError(
            f"{path}: line {free[0]}: {like.name} spends no time on such work; give another --like, or remove the line"
        )
    if len(measured) >= kinds:
        costs = fit(measured, _NO_LIMITS, None if table is None else table.seconds)
        return costs, "measured", f"{len(measured)} rows, a cost for each kind"
    if table is None:
        raise InputError(
            f"{path}: {len(measured)} rows of steps, expected at least {kinds}, one for each kind of work in them; or give "
            f"--like a profile with a table compute.training_step: {like.name} has none"
        )
    speed = median(step.work.seconds(table.seconds) / step.seconds for step in measured)
    how = f"{len(measured)} rows, fewer than {kinds} kinds of work: {like.name}'s costs, {speed:.3g} times as fast"
    return tuple(cost / speed for cost in table.seconds), "derived", how


def values_from(
    path: Path,
    name: str,
    link: str | TomlTable,
    like: DeviceProfile,
    notify: Callable[[str], None] = lambda message: None,
    watts: MeterFigures | None = None,
) -> TomlTable:
    """Return the content of a profile's TOML file fitted to the rows of ``path``; what is not known from them is that of ``like``."""
    rows = read_rows(path)
    steps = [row for row in rows if row.phase == "step"]
    if not steps:
        raise InputError(f"{path}: no row has the phase step: training cannot be fitted to inferences")
    costs, mark, how = costs_of(steps, like, path)
    rates = [row.measured.work.macs / row.measured.seconds for row in steps if row.measured.work.macs]
    if not rates:
        raise InputError(f"{path}: no step has MACs, which give training_gmacs_per_s; add one of a network, such as mlp")
    source = f"edgefl calibrate --from {path.name}"
    notify(f"fitted to {how}")
    fitted = table_of(StepCosts, costs, factor_of((row.measured, costs) for row in steps), source, f"fitted to {how}")
    if like.compute.training_step is not None:
        # Rows that were fitted say too little about others: the error of the family holds at least.
        fitted["error"]["value"] = max(fitted["error"]["value"], like.compute.training_step.error.value)
    fitted = {key: entry | {"mark": mark} for key, entry in fitted.items()}
    compute = assumed(like.compute, like) | {
        "training_gmacs_per_s": figure(median(rates) / 1e9, source, f"median of {len(rates)} steps"),
        "training_step": fitted,
    }
    values = {
        "name": name,
        "title": f"fitted to {path.name}",
        "reference_hardware": f"where {path.name} was measured",
        "link": link,
        "memory": assumed(like.memory, like),
        "compute": compute,
        **power_of(watts, like, True, source),
    }
    slower = [row.measured.seconds / row.sustained_s for row in steps if row.sustained_s is not None]
    if slower:
        share = figure(min(1.0, median(slower)), source, "seconds over sustained_seconds, the median of the rows that have both")
        burst = (
            assumed(like.thermal, like)["burst_s"]
            if like.thermal
            else figure(600.0, source, "placeholder: not in the file") | {"mark": "assumed"}
        )
        return values | {"thermal": {"burst_s": burst, "sustained_share": share}}
    return values | ({"thermal": assumed(like.thermal, like)} if like.thermal else {})
