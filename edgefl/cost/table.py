"""A tier's row of costs, and a row per layer, from traces of its training step and inference."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgefl.cost.memory import bytes_of
from edgefl.cost.operations import INPUT, LOSS, OPTIMIZER
from edgefl.cost.step_memory import MemorySplit
from edgefl.cost.trace import RECOMPUTE, Layer, Operation, StepTrace, Subject, Tracer
from edgefl.errors import ConfigError
from edgefl.records import Cost, Deployed, LayerCost
from edgefl.records.work import NO_STEP_WORK, NO_WORK, PARTS, StepWork, Work

_APART = 2  # samples between two traces: one would split unevenly in a step that trains on halves of its batch


def cost_of(
    subject: Subject,
    batch_size: int,
    payload_bytes: tuple[int, int],
    micro_batch: int | None = None,
    recompute: tuple[str, ...] = (),
) -> Cost:
    """Return the cost of a network at ``batch_size``.

    Args:
        subject: the network, its objective, optimizer and input.
        batch_size: samples of a full training step and of an inference.
        payload_bytes: serialised bytes down and up.
        micro_batch: samples of a forward and backward pass; gradients of ``batch_size`` are accumulated before an update.
        recompute: the layers between which the objective of ``subject`` computes activations again, for the record.

    MACs that grow with the batch are per sample; the rest, work on the weights alone, is ``macs_compose``. Two traces that differ by two
    samples tell them apart, operation by operation; in a backward pass, a product whose result has a row for every sample is a gradient
    with respect to an input, one that sums over the samples is a gradient with respect to a weight.
    """
    size = min(micro_batch or batch_size, batch_size)
    tracer, step = traced_step(subject, batch_size, size)
    first, second, samples = _pair(tracer, step, size)
    layers: dict[str, dict[str, int]] = {}
    uncounted = set(step.uncounted_ops)
    update = [operation for operation in step.operations if operation.phase == "update"]
    pairs = [*zip(first, second, strict=True), *zip(update, update, strict=True)]
    for one, more in pairs:
        row = layers.setdefault(one.layer, dict.fromkeys(_KEYS, 0))
        for key, a, b in _parts(one, more):
            # The work, ``_APART`` times: what grows with the batch, per sample, and what does not, per pass or step.
            grown, fixed = b - a, _APART * a - samples * (b - a)
            row[key] += grown
            if fixed < 0:
                uncounted.add(f"{one.name} (grows faster than the batch)")
            else:
                row["elementwise_ops_step" if key.startswith("elementwise") else "macs_compose"] += fixed
    layers = {name: {key: -(-count // _APART) for key, count in row.items()} for name, row in layers.items()}
    works = _works(pairs, samples, {layer.name: layer.kind for layer in step.layers})
    split = step.memory.split
    rows = _rows(step.layers, layers, works, split)
    reading = Work(input_bytes=tracer.input_bytes)
    total: dict[str, Any] = {key: sum(row[key] for row in layers.values()) for key in _KEYS}
    cost = Cost(
        batch_size=batch_size,
        micro_batch=size,
        params=sum(layer.params for layer in step.layers),
        **total,
        peak_activation_bytes_inference=0,  # until an inference is traced
        peak_activation_bytes_training=step.memory.peak_activation_bytes,
        parameter_bytes=split.parameters - step.buffer_bytes,
        buffer_bytes=step.buffer_bytes,
        gradient_bytes=step.memory.gradient_bytes,
        optimizer_bytes=step.memory.optimizer_bytes,
        training_memory_bytes=split.total,
        download_bytes=payload_bytes[0],
        upload_bytes=payload_bytes[1],
        uncounted_ops=tuple(uncounted),
        layers=rows,
        recompute=recompute,
        peak_gradient_bytes=split.gradients,
        peak_saved_bytes=split.saved,
        peak_temporary_bytes=split.temporaries,
        peak_layer_training=split.layer,
        work=sum(works.values(), StepWork(sample=reading, forward=reading)),
    )
    return _inferring(cost, tracer)


def with_inference(cost: Cost, subject: Subject) -> Cost:
    """Return ``cost`` with the inference of the network of ``subject``, which a device runs in place of the one that was counted."""
    return _inferring(cost, Tracer(subject))


def _inferring(cost: Cost, tracer: Tracer) -> Cost:
    inference = tracer.inference(cost.batch_size)
    return replace(
        cost,
        uncounted_ops=tuple(sorted({*cost.uncounted_ops, *inference.uncounted_ops})),
        peak_activation_bytes_inference=inference.peak_bytes,
        peak_layer_inference=inference.layer,
        deployed=_deployed(tracer, inference.macs, cost.batch_size, cost.macs_forward),
        inference_work=inference.work,
    )


def traced_step(subject: Subject, batch_size: int, size: int) -> tuple[Tracer, StepTrace]:
    """Return the trace of a step on ``batch_size`` samples, at most ``size`` of them in a pass, and its tracer."""
    tracer = Tracer(subject, accumulates=size < batch_size)
    return tracer, tracer.step(size, passes=2 if size < batch_size else 1)


def _works(pairs: Iterable[tuple[Operation, Operation]], samples: int, kinds: Mapping[str, str]) -> dict[str, StepWork]:
    """Return layer → its work by kind, from pairs of operations of passes with ``samples`` and ``samples + 2`` samples."""
    parts: dict[str, dict[str, Work]] = {}
    for one, more in pairs:
        a, b = (_recurrent(o.kinds) if any(n in kinds.get(o.layer, "") for n in _RECURRENT) else o.kinds for o in (one, more))
        row = parts.setdefault(one.layer, dict.fromkeys(PARTS, NO_WORK))
        if one.phase == "update":
            row["update"] += a.times(_APART)
            continue
        grown = Work(*(y - x for x, y in zip(a.counts, b.counts, strict=True)))
        fixed = Work(*(max(0, _APART * x - samples * g) for x, g in zip(a.counts, grown.counts, strict=True)))
        row["sample"] += grown
        row["per_pass"] += fixed
        if one.phase == "forward":
            row["forward"] += grown
            row["per_forward"] += fixed
    return {layer: StepWork(**{part: work.times(1, _APART) for part, work in row.items()}) for layer, row in parts.items()}


_RECURRENT = ("LSTM", "GRU", "RNN", "Recurrent", "Gates")


def _recurrent(work: Work) -> Work:
    """Return the work of an operation in a recurrent layer. Its small products are slower than others."""
    return replace(work, product_macs=0, recurrent_macs=work.recurrent_macs + work.product_macs)


_KEYS = (
    "macs_forward", "macs_backward_input", "macs_backward_weight", "macs_compose", "macs_recompute",
    "elementwise_ops", "elementwise_ops_backward", "elementwise_ops_step",
)  # fmt: skip


def _deployed(tracer: Tracer, macs: int, batch_size: int, macs_forward: int) -> Deployed:
    """Return the network of an inference; ``macs`` are those of ``batch_size`` samples, ``macs_forward`` of one sample in training."""
    if macs != batch_size * macs_forward:  # it is another network, or training does more: what grows with the batch counts
        macs_forward = tracer.inference(batch_size + 1).macs - macs
    parameters = list(tracer.deployed.parameters())
    params = sum(parameter.numel() for parameter in parameters)
    return Deployed(params, macs_forward, bytes_of(parameters), bytes_of(tracer.deployed.buffers()))


def _pair(tracer: Tracer, step: StepTrace, size: int) -> tuple[list[Operation], list[Operation], int]:
    """Return the operations of two passes that differ by two samples, and the smaller batch; a batch of one may be a case of its own."""
    smaller = [operation for operation in step.operations if operation.phase != "update"]
    for operations in (lambda count: tracer.quick_operations(count, _names(smaller)), tracer.operations):
        larger = operations(size + _APART)
        if _names(smaller) == _names(larger):
            return smaller, larger, size
    largest = tracer.operations(size + 2 * _APART)
    # Whether autograd copies a gradient or takes it over depends on who else refers to it: such operations may be left out.
    for one, more, samples in ((smaller, larger, size), (larger, largest, size + _APART)):
        one, more = ([o for o in operations if o.work.macs or o.work.elementwise] for operations in (one, more))
        if _names(one) == _names(more):
            return one, more, samples
    sizes = f"{size}, {size + _APART} and {size + 2 * _APART}"
    raise ConfigError(f"the network's operations differ between batches of {sizes}, so its costs per sample are not defined")


def _names(operations: Sequence[Operation]) -> list[str]:
    return [operation.name for operation in operations]


def _parts(one: Operation, more: Operation) -> Iterator[tuple[str, int, int]]:
    """Yield where the work of an operation belongs, the work, and that of the same operation with more samples."""
    a, b = one.work, more.work
    if a.elementwise:
        key = {"forward": "elementwise_ops", "update": "elementwise_ops_step"}.get(one.phase, "elementwise_ops_backward")
        yield key, a.elementwise, b.elementwise
    if a.macs_input is not None and a.macs_weight is not None:
        yield "macs_backward_input", a.macs_input, b.macs_input or 0
        yield "macs_backward_weight", a.macs_weight, b.macs_weight or 0
    elif a.macs:
        if one.phase == RECOMPUTE:
            key = "macs_recompute"
        elif one.phase == "backward":
            key = "macs_backward_input" if more.outputs > one.outputs else "macs_backward_weight"
        else:
            key = "macs_forward" if one.phase == "forward" else "macs_compose"
        yield key, a.macs, b.macs


def _rows(
    network: Sequence[Layer], layers: dict[str, dict[str, int]], works: Mapping[str, StepWork], split: MemorySplit
) -> tuple[LayerCost, ...]:
    """Return a row for every layer that works, holds weights or holds memory at the peak; in the network's own order."""
    rows = []
    for layer in (Layer(INPUT, "", 0, 0), *network, Layer(LOSS, "", 0, 0), Layer(OPTIMIZER, "", 0, 0)):
        counts = layers.get(layer.name)
        saved, temporary = split.layers.get(layer.name, (0, 0))
        if counts or layer.params or saved or temporary:
            fields = (counts or dict.fromkeys(_KEYS, 0)) | {"saved_bytes_at_peak": saved, "temporary_bytes_at_peak": temporary}
            work = works.get(layer.name, NO_STEP_WORK)
            rows.append(LayerCost(layer.name, layer.kind, layer.params, layer.parameter_bytes, **fields, work=work))
    return tuple(rows)
