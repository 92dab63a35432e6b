"""Measurements of a made-up device, whose seconds follow from known costs of each kind of work."""

from __future__ import annotations

from edgefl.contrib.calibrate.device import MachineSpread, MachineStep
from edgefl.fleet.figures import Figure
from edgefl.fleet.time_model import Limits, StepCosts
from edgefl.records.work import KINDS, StepWork, Work

TRUE = {
    "convolution_macs": 20e-12, "convolution_backward_macs": 22e-12, "pointwise_macs": 25e-12, "pointwise_backward_macs": 27e-12,
    "grouped_macs": 300e-12, "grouped_backward_macs": 350e-12, "product_macs": 25e-12, "recurrent_macs": 30e-12,
    "grouped_bytes": 90e-12, "product_bytes": 80e-12, "normalization_bytes": 400e-12, "elementwise_bytes": 300e-12,
    "update_bytes": 200e-12, "input_bytes": 1 / 9e9, "kernels": 4e-9, "operations": 5e-6, "packed_weights": 1e-9, "convolutions": 70e-6,
}  # fmt: skip
TRUE_COSTS = tuple(TRUE[kind] for kind in KINDS)
"""Seconds of one count of each kind."""
LIMITS = Limits(160e9, 180e9)


def work(forward: Work, backward: Work, update: Work) -> StepWork:
    """Of a network whose samples go forward and backward; an operation of a pass runs once whatever its samples are."""
    once = Work(operations=12, kernels=1000)
    return StepWork(sample=forward + backward, per_pass=once, forward=forward, per_forward=once, update=update)


def mostly(kind: str, count: int) -> StepWork:
    """Of a network that does mostly one kind of work."""
    split = kind in ("convolution_macs", "pointwise_macs", "grouped_macs")
    backward = {kind.replace("_macs", "_backward_macs") if split else kind: 2 * count}
    if kind == "grouped_bytes":  # in forward passes only
        backward = {"grouped_backward_macs": count}
    forward = {"input_bytes": 400, "elementwise_bytes": 9000} | {kind: count}
    return work(Work(**forward), Work(**backward), Work(update_bytes=20_000, operations=3))


_ALONE = ("update_bytes", "kernels", "operations", "packed_weights", "convolutions")
FORWARD_KINDS = [kind for kind in KINDS if "backward" not in kind and kind not in _ALONE]
WORK = {
    "cnn-digits at batch 8": work(
        Work(convolution_macs=5_000_000), Work(convolution_backward_macs=10_000_000), Work(update_bytes=130_000)
    ),
    "vgg11 at batch 32": work(
        Work(convolution_macs=40_000_000), Work(convolution_backward_macs=80_000_000), Work(update_bytes=18_000_000)
    ),
    "lstm-shakespeare at batch 8": work(
        Work(recurrent_macs=60_000_000), Work(recurrent_macs=120_000_000), Work(update_bytes=1_640_000)
    ),
    **{kind: mostly(kind, 3_000_000 + 1_000_000 * at) for at, kind in enumerate(FORWARD_KINDS)},
    "tiny": StepWork(
        sample=Work(input_bytes=4), per_pass=Work(operations=400), per_forward=Work(operations=200), update=Work(operations=90)
    ),
    "many weights": StepWork(
        per_pass=Work(packed_weights=7_000_000, convolutions=3),
        per_forward=Work(packed_weights=4_000_000),
        update=Work(update_bytes=10_000),
    ),
    "many convolutions": StepWork(
        per_pass=Work(convolutions=30, operations=40),
        per_forward=Work(convolutions=10, operations=15),
        update=Work(update_bytes=10_000),
    ),
    "many kernels": StepWork(
        per_pass=Work(kernels=900_000), per_forward=Work(kernels=900_000), update=Work(update_bytes=2 * 10**7)
    ),
}
INFERRED = {
    "cnn-digits": Work(convolution_macs=5_000_000, operations=9),
    "vgg11": Work(convolution_macs=40_000_000, operations=30),
    "lstm-shakespeare": Work(recurrent_macs=60_000_000, operations=4),
}
"""At 10, 20 and 30 GMAC/s on one thread, at 12, 24 and 36 on all."""
REFERENCES = tuple(name for name in WORK if " at " in name)


def figure(value: float) -> Figure:
    return Figure(value=value, mark="measured", source="measured on it, 2026")


def step(work: StepWork, slower: float = 1.0) -> MachineStep:
    counts = work.of(8, 1, 0), work.update, work.of(0, 0, 0, 8, 1)
    return MachineStep(work, 8, *(slower * one.seconds(TRUE_COSTS) for one in counts))


def constant(value: float) -> MachineSpread:
    return MachineSpread(value, value, value / 2, value * 2, 7)


def step_costs(values: dict[str, float]) -> StepCosts:
    return StepCosts(**{key: figure(values.get(key, 0.0)) for key in StepCosts.model_fields} | {"error": figure(1.2)})


class Known:
    """A profile's rates with costs of kinds."""

    training_gmacs_per_s = figure(2.0)
    training_step = step_costs(
        {
            "convolution_ps_per_mac": 20,
            "convolution_backward_ps_per_mac": 22,
            "product_ps_per_mac": 25,
            "recurrent_ps_per_mac": 30,
            "elementwise_ps_per_byte": 2000,
            "update_ps_per_byte": 1000,
            "operation_us": 5,
        }
    )
