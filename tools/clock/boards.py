"""The costs of the measured boards: fitted to the rows marked ``fit``, bounded by the hardware, and written as tables of their profiles."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from clock.errors import factor_of
from clock.networks import network_of
from clock.rows import Row
from edgefl.fleet.load import load_device
from edgefl.fleet.time_model import Limits, Measurement, fit, key_of, unit_of
from edgefl.records.work import KINDS, Work

_SOURCE = "jafermarq/federated-embedded-vision (2023-12): training steps of timm networks, PyTorch 1.13.1, batch 16"
_ASSUMED = "no published figure: a placeholder to be calibrated on one's own device"
_PRODUCT, _RECURRENT = KINDS.index("product_macs"), KINDS.index("recurrent_macs")


@dataclass(frozen=True)
class Board:
    """A measured board.

    Attributes:
        name: its profile.
        limits: what its hardware can do at most.
        peaks: the arithmetic of these limits, of MACs and of bytes.
        operation_s: the seconds of an operation, which the measured networks cannot tell apart.
        operation_note: where they come from.
        shaped_by: the board whose costs draw this one's; None if there are rows enough for each cost.
    """

    name: str
    limits: Limits
    peaks: tuple[str, str]
    operation_s: float
    operation_note: str
    shaped_by: Board | None = None


PI_4 = Board(
    "raspberry-pi-4",
    Limits(28.8e9, 12.8e9),
    ("28.8 GMAC/s: 4 cores × 1.8 GHz × 4 float32", "12.8 GB/s: 32 bits × 3,200 MT/s"),
    60e-6,
    "PyTorch dispatches an operation in tens of microseconds. The measured networks are too large to show this time.",
)
PI_5 = Board(
    "raspberry-pi-5",
    Limits(76.8e9, 17.1e9),
    ("76.8 GMAC/s: 4 cores × 2.4 GHz × 8 float32", "17.1 GB/s: 32 bits × 4,267 MT/s"),
    28e-6,
    "raspberry-pi-4's 60 us over 2.13, the median ratio of the two boards' fitted steps",
    PI_4,
)
BOARDS = (PI_4, PI_5)
_RECURRENT_RATIO = 2
FITTED = (
    "convolution_macs", "convolution_backward_macs", "pointwise_macs", "pointwise_backward_macs", "grouped_macs",
    "grouped_backward_macs", "product_macs", "grouped_bytes", "product_bytes", "normalization_bytes", "elementwise_bytes",
    "update_bytes", "input_bytes", "kernels",
)  # fmt: skip
"""The kinds with a cost of their own on the boards, chosen by leaving out families; further kinds of the package are contained in them."""
_CHARGED = (*FITTED, "recurrent_macs", "operations")
_REFERENCE = "resnet34"


def costs_of(board: Board, rows: Iterable[Row]) -> tuple[float, ...]:
    """Return the costs in seconds, in the order of the kinds, that fit the steps of ``board`` in ``rows`` best."""
    rows = tuple(rows)
    shape = None if board.shaped_by is None else costs_of(board.shaped_by, rows)
    measured = [Measurement(work, seconds) for _, work, seconds in steps_of(board.name, rows)]
    known = {kind: 0.0 for kind in KINDS if kind not in FITTED} | {"operations": board.operation_s}
    found = list(fit(measured, board.limits, shape, known))
    found[_RECURRENT] = _RECURRENT_RATIO * found[_PRODUCT]
    return tuple(found)


def steps_of(device: str, rows: Iterable[Row]) -> Iterator[tuple[Row, Work, float]]:
    """Yield row, work and seconds of the measured training steps and of the forward passes of a device."""
    for row in rows:
        if row.device == device:
            work = network_of(row.network).work
            if row.step_s:
                yield row, work.of(row.batch, 1, 1), row.step_s
            if row.forward_s:
                yield row, work.of(0, 0, 0, row.batch, 1), row.forward_s


def left_out(rows: Sequence[Row]) -> dict[str, list[float]]:
    """Return board → predicted over measured seconds of each training step marked ``fit``, by a fit without its family."""
    own = [row for row in rows if row.split == "fit"]
    found: dict[str, list[float]] = {board.name: [] for board in BOARDS}
    for family in sorted({row.family for row in own}):
        others, tested = ([row for row in own if (row.family == family) == inside] for inside in (False, True))
        for board in BOARDS:
            costs = costs_of(board, others)
            works = ((row, network_of(row.network).work.of(row.batch, 1, 1)) for row in tested if row.device == board.name)
            found[board.name] += [work.seconds(costs) / row.step_s for row, work in works if row.step_s]
    return found


def table_of(board: Board, rows: Sequence[Row]) -> str:
    """Return the tables of ``board`` for its profile, in TOML: one rate of MACs, and a cost of every kind."""
    own = [row for row in rows if row.split == "fit" and row.device == board.name]
    costs = costs_of(board, [row for row in rows if row.split == "fit"])
    steps = sum(row.step_s is not None for row in own) + sum(row.forward_s is not None for row in own)
    networks = len({row.network for row in own})
    fitted = f"fitted to {steps} steps of {networks} networks" + (
        f", and drawn towards {board.shaped_by.name}'s shape" if board.shaped_by else ""
    )
    lines = [_single_rate(own), "", "[compute.training_step]  # python tools/validate_clock.py --fit"]
    rounded = []
    for kind, cost in zip(KINDS, costs, strict=True):
        key = key_of(kind)
        value = float(f"{cost / unit_of(key):.3g}")
        rounded.append(value * unit_of(key))
        if kind in _CHARGED:
            lines.append(f"{key} = {_figure(value, *_known_by(board, kind, cost, fitted))}")
    held = [row for row in rows if row.split == "held-out" and row.device == board.name and row.step_s]
    ratios = [network_of(row.network).work.of(row.batch, 1, 1).seconds(rounded) / row.step_s for row in held if row.step_s]
    factor = math.ceil(100 * factor_of(ratios)) / 100
    note = f"Nine in ten of {len(held)} held-out steps are within this factor. They were not used in the fit."
    lines.append(f"error = {_figure(factor, 'measured', note)}")
    return "\n".join(lines)


def _single_rate(own: Sequence[Row]) -> str:
    row = next(row for row in own if row.network == _REFERENCE)
    assert row.step_s is not None
    macs = network_of(row.network).work.of(row.batch, 1, 1).macs
    note = (
        f"ResNet-34, batch {row.batch}: {macs / 1e9:.0f} GMAC in {row.step_s:.2f} s. The table training_step replaces this rate."
    )
    return f"training_gmacs_per_s = {_figure(float(f'{macs / row.step_s / 1e9:.3g}'), 'measured', note)}"


def _known_by(board: Board, kind: str, cost: float, fitted: str) -> tuple[str, str]:
    if kind == "operations":
        return "derived" if board.shaped_by else "assumed", board.operation_note
    if kind == "recurrent_macs":
        return (
            "assumed",
            f"{_RECURRENT_RATIO} x product_ps_per_mac, because a recurrent step multiplies small matrices. "
            "No measured network has recurrent layers.",
        )
    if cost <= board.limits.least(kind) * 1.001:
        return (
            "derived",
            f"The cost at the hardware's limit, {board.peaks[kind.endswith('_bytes')]}. A fit without limits goes below it.",
        )
    return "measured", fitted


def _figure(value: float, mark: str, note: str) -> str:
    source = _ASSUMED if mark == "assumed" else _SOURCE
    return f'{{ value = {value:g}, mark = "{mark}", source = "{source}", note = "{note}" }}'


def differences(board: Board, rows: Sequence[Row]) -> list[str]:
    """Return the keys of the shipped profile of ``board`` that are not what the fit gives."""
    compute = load_device(board.name).compute.model_dump(exclude_none=True)
    fitted = tomllib.loads(f"[compute]\n{table_of(board, rows)}")["compute"]
    shipped, own = compute.get("training_step", {}), fitted["training_step"]
    wrong = [f"compute.training_step.{key}" for key in own if not _same(shipped.get(key), own[key])]
    rate = "training_gmacs_per_s"
    return wrong + ([] if _same(compute[rate], fitted[rate]) else [f"compute.{rate}"])


def _same(shipped: dict[str, object] | None, fitted: dict[str, object]) -> bool:
    """Compare figures; solvers on other processors may differ in the last of three digits."""
    if shipped is None or shipped["mark"] != fitted["mark"]:
        return False
    return math.isclose(float(str(shipped["value"])), float(str(fitted["value"])), rel_tol=0.005)
