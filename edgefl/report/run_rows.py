"""Rows of a run's ``summary.json``: budgets, tiers, device classes, participation and policies."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from edgefl.records import Shortfall, Totals
from edgefl.report.cost_rows import CostRow
from edgefl.report.results import Result

Whole = Annotated[int, Field(ge=0)]
Number = Annotated[float, Field(ge=0)]


def _as_written(value: Any, check: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
    found = check(value)
    return value if info.mode == "json" else found


Written = Annotated[float, Field(ge=0), WrapValidator(_as_written)]
"""A number as the file has it: 1 is not 1.0."""
Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A value of a run's metric: the user's own may be negative."""


@dataclass(frozen=True)
class BudgetUse(Result):
    """How much of one budget a device class needs: ``need`` and ``have`` in the unit of the budget's name.

    Attributes:
        clock_error: the factor by which the seconds or joules of training may be wrong, if that decides whether the budget is met.
        clock_margin: the factor on the predicted seconds of training that ``need`` contains.
    """

    budget: str
    need: Number
    have: Number
    share: Number
    clock_error: Number | None = None
    clock_margin: Number = 1.0


@dataclass(frozen=True)
class TierResult:
    """The result of one tier of a run. The measured bytes are onnxruntime's, for the exported file and its training graph.

    Attributes:
        accuracy: of the exported file, run under its device's memory; of the torch module if the run has no bundle. None if it was not
            evaluated.
        torch_accuracy: of the torch module.
        macs_forward_onnx: MACs of one sample's forward pass, counted over the ONNX graph; None if some operator is not counted.
        energy_share: share of the factorized layers' energy, after the last round, in the ranks that this tier has and the next smaller one
            lacks; None if the method truncates no layers.
    """

    accuracy: Finite | None = None
    torch_accuracy: Finite | None = None
    measured_peak_activation_bytes_inference: Whole | None = None
    measured_peak_activation_bytes_onnx: Whole | None = None
    macs_forward_onnx: Whole | None = None
    energy_share: Number | None = None


@dataclass(frozen=True)
class LayerUse:
    """What one layer takes of a tier: MACs of a training step, and bytes of its weights. ``layer`` is "(other)" for the sum of many."""

    layer: str
    macs_train_step: Whole
    parameter_bytes: Whole


@dataclass(frozen=True, kw_only=True)
class TierRow(CostRow, TierResult):
    """One tier of a run, as the device class that it is shown for trains it.

    Attributes:
        micro_batch: samples of one forward and backward pass on that device, None for the run's own number.
        device: a class that takes the tier; if none does, one that could.
        clients: those whose class takes the tier; None if clients draw their tiers.
        measured_training_memory_bytes: the largest that any client measured, as for the activations; None without a measurement.
        round_seconds: simulated seconds of a client with the mean number of samples; ``round_joules`` are its joules, None if unknown.
        layers: the costliest layers in the network's order, and all others summed.
        updates: updates that the server used in all rounds, of clients that trained the tier; None in files of earlier versions.
    """

    tier: Written
    micro_batch: Whole | None  # type: ignore[assignment]  # that of the cost is a number
    device: str | None
    device_title: str | None
    clients: Whole | None
    batch_size: Whole
    measured_peak_activation_bytes_training: Whole | None
    measured_training_memory_bytes: Whole | None
    round_seconds: Number | None
    round_joules: Number | None
    budget_share: Number | None
    limiting_budget: str | None
    layers: tuple[LayerUse, ...] = ()  # type: ignore[assignment]  # of few layers, and few of their figures
    updates: Whole | None = None


@dataclass(frozen=True)
class AssignmentStep(Result):
    """One step of an assignment: a tier, how a device would train it, and the budgets that this does not meet."""

    tier: Written
    micro_batch: Whole | None
    refusals: tuple[Shortfall, ...]
    recompute: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassRow(Result):
    """One class of devices: its share of the population, its tier (None if none fits), and the steps of its assignment.

    ``refusals`` are budgets that refused a tier; ``assumed`` are figures of its profile; its seconds of training may be wrong by the factor
    ``clock_error``, and it takes ``idle_w`` watts while it is on and ``training_w`` while it trains. ``power_error`` is the factor by which
    the latter may be wrong, ``energy_error`` that of its joules (None: its energy is unknown).
    """

    device: str
    title: str
    share: Number
    clients: Whole
    tier: Written | None
    micro_batch: Whole | None
    budgets: tuple[BudgetUse, ...]
    refusals: tuple[Shortfall, ...]
    considered: tuple[AssignmentStep, ...]
    assumed: tuple[str, ...]
    clock_error: Number
    recompute: tuple[str, ...] = ()
    idle_w: Number | None = None
    training_w: Number | None = None
    power_error: Number | None = None
    energy_error: Number | None = None


@dataclass(frozen=True)
class Participation(Result):
    """How a device class took part over all rounds.

    Attributes:
        sessions: its sessions, refused ones included; ``statuses`` counts them by status.
        distinct: clients that trained at least once.
        useful: the sessions whose updates the server used; ``wasted`` are the others, refused ones excluded.
        accuracy: of its tier, None if it was not evaluated.
    """

    device: str
    title: str
    share: Number
    clients: Whole
    sessions: Whole
    distinct: Whole
    statuses: Mapping[str, Whole]
    useful: Totals
    wasted: Totals
    tier: Written | None
    accuracy: Finite | None

    @property
    def used(self) -> int:
        """How many of its sessions the server used."""
        return self.statuses.get("trained", 0)


@dataclass(frozen=True)
class PolicyRow(Result):
    """What an assignment of tiers does to rounds, and to inclusion by device, in the first ``rounds`` of a dry run.

    ``rounds`` is None in files of earlier versions.
    """

    policy: str
    tiers: tuple[Written, ...]
    round_s: Number | None
    useful_share: Number | None
    inclusion: Mapping[str, Number | None]
    rounds: Whole | None = None
