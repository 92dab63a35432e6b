"""Times training steps and inference of every tier of a bundle, as rows for ``edgefl calibrate --from``.

Needs onnxruntime, NumPy and safetensors. ``python calibrate.py BUNDLE --steps steps.csv`` runs it.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, fields, replace
from typing import Any

import numpy as np
from edgefl_bundle import Bundle, ClientError, InputError, Table, Tensors, check_keys, inputs_of
from edgefl_steps import Objective, Steps, fitting, options, run
from edgefl_training import first_inputs

Clock = Callable[[], float]
Spread = Callable[[Callable[[], object], float], list[float]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Case:
    """One kind of run that is timed.

    Attributes:
        phase: ``step`` for a training step, ``forward`` for the inference of a batch.
        macs: multiply-accumulates of one step or inference; None if the manifest does not have them.
        run: does ``times`` steps or inferences: one per training graph.
    """

    tier: str
    phase: str
    batch: int
    macs: int | None
    run: Callable[[], object]
    times: int = 1


@dataclass(frozen=True)
class Row:
    """A row of the file: seconds of one step or inference, for a whole batch. The attributes are the columns.

    Attributes:
        seconds: median of the repeats; ``low_seconds`` and ``high_seconds`` are the fastest and the slowest.
        sustained_seconds: median after minutes of load; None if that was not measured.
        input: shape of one sample, such as ``1x28x28``; of several inputs such as ``ids=int64:80,image=float32:1x28x28``.
        optimizer: of a training step; None for inference.
        macs: multiply-accumulates of one step or inference; None if the manifest does not have them.
    """

    network: str
    method: str
    tier: str
    batch: int
    phase: str
    seconds: float
    sustained_seconds: float | None
    low_seconds: float
    high_seconds: float
    repeats: int
    input: str
    classes: int
    optimizer: str | None
    macs: int | None


COLUMNS = tuple(field.name for field in fields(Row))


def measure(
    bundle: Bundle, threads: int, seconds: float, sustained_s: float, spread: Spread, say: Say, clock: Clock = time.monotonic
) -> list[Row]:
    """Return a row for each tier, phase and batch size.

    Args:
        bundle: its manifest must have ``model``, ``method`` and ``tiers``.
        threads: threads of onnxruntime.
        seconds: about how long one measurement of all rows takes; slow networks take longer.
        sustained_s: seconds of load before the second measurement; 0: there is none.
        spread: returns the sorted seconds of repeats of a run that last about a given number of seconds.
        say: receives a line of text per row.
        clock: returns seconds; it decides when the load ends.

    Raises:
        InputError: the bundle is wrong. ClientError: onnxruntime cannot run a graph.
    """
    path = bundle.folder / "manifest.json"
    check_keys(bundle.manifest, {"model": str, "method": str}, str(path))
    for number, entry in enumerate(bundle.manifest["tiers"]):
        check_keys(entry, {"label": str, "forward": str, "reference": str, "batch_size": int}, f"{path}: tiers.{number}")
        if train := entry.get("train"):
            check_keys(train, {"reference": str}, f"{path}: tiers.{number}: train")
    labels = [entry["label"] for entry in bundle.manifest["tiers"]]
    if not labels:
        raise InputError(f"{path}: tiers: none, expected at least one model to run")
    for label in labels:
        if not bundle.tier(label).get("train"):
            say(f"tier {label}: the bundle has no training graph for it; only inference is measured")
    rows = _burst(bundle, labels, threads, seconds, spread, say)
    if not sustained_s:
        return rows
    _load(bundle, labels[0], threads, sustained_s, say, clock)
    say("measuring again, under load")
    after = {(row.tier, row.phase, row.batch): row.seconds for row in _burst(bundle, labels, threads, seconds, spread, say)}
    return [replace(row, sustained_seconds=after.get((row.tier, row.phase, row.batch))) for row in rows]


def to_csv(rows: list[Row]) -> str:
    """Return the rows as the text of a CSV file with :data:`COLUMNS`; a figure that was not measured is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(map(_text, astuple(row)) for row in rows)
    return out.getvalue()


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _burst(bundle: Bundle, labels: list[str], threads: int, seconds: float, spread: Spread, say: Say) -> list[Row]:
    """Measure every case once; only one session exists at a time, because threads of idle ones would take part of the processor."""
    rows, share = [], seconds / (4 * len(labels))
    manifest = bundle.manifest
    several = manifest.get("inputs") or {}
    shapes = {name: "x".join(map(str, entry["shape"])) for name, entry in inputs_of(manifest).items()}
    shape = ",".join(f"{name}={entry['dtype']}:{shapes[f'x.{name}']}" for name, entry in several.items()) or shapes["x"]
    for label in labels:
        optimizer = (bundle.tier(label).get("train") or {}).get("optimizer")
        for case in _cases(bundle, label, threads, say):
            found = [s / case.times for s in spread(case.run, share)]
            low, middle, high = found[0], statistics.median(found), found[-1]
            measured = middle, None, low, high, len(found)
            about = shape, manifest["classes"], optimizer if case.phase == "step" else None, case.macs
            rows.append(Row(manifest["model"], manifest["method"], label, case.batch, case.phase, *measured, *about))
            span = f"{low:.4g} to {high:.4g}, {len(found)} repeats"
            say(f"tier {label}: {case.phase} at batch {case.batch}: {middle:.4g} s ({span})")
    return rows


def _load(bundle: Bundle, label: str, threads: int, seconds: float, say: Say, clock: Clock) -> None:
    """Run the first case of a tier, its training step if it has one, for that long."""
    case = next(_cases(bundle, label, threads, say))
    say(f"keeping the device under load for {seconds / 60:g} min: tier {label}, {case.phase} at batch {case.batch}")
    begun, minute = clock(), 1
    while (past := clock() - begun) < seconds:
        if past >= 60 * minute:
            say(f"{minute} of {seconds / 60:g} min")
            minute = int(past / 60) + 1
        case.run()


def _cases(bundle: Bundle, label: str, threads: int, say: Say) -> Iterator[Case]:
    """Yield what is timed of a tier; each session is freed before the next one is made."""
    entry = bundle.tier(label)
    if entry.get("train"):
        yield from _training(bundle, label, threads, say)
    size = int((entry.get("train") or entry)["batch_size"])
    session = bundle.session(entry["forward"], options(threads))
    batch = fitting(session, _repeated(bundle, entry["reference"], size, "logits"))
    macs = entry.get("costs", {}).get("macs_inference", entry.get("costs", {}).get("macs_forward"))
    for count in dict.fromkeys((size, 1)):
        feeds = {name: value[:count] for name, value in batch.items()}
        run(session, feeds)  # a graph that does not run is an error, which names it
        yield Case(label, "forward", count, None if macs is None else count * macs, functools.partial(session.run, None, feeds))


def _training(bundle: Bundle, label: str, threads: int, say: Say) -> Iterator[Case]:
    """Yield the training step at the bundle's batch size, and at a quarter of it if the graphs allow it.

    The learning rate is 0: the work is the same, and the weights stay finite for any number of steps.
    """
    table = bundle.training(label)
    given, size, graphs = bundle.parameters(label), int(table["batch_size"]), len(table["graphs"])
    batch = _repeated(bundle, table["reference"], size, "losses")
    feeds = first_inputs(table, given, Objective(table, given, {}), 0.0, np.ones(bundle.manifest["classes"], bool))
    steps = Steps(bundle, table["graphs"], feeds, batch, threads, None)

    def every_graph(count: int) -> float:
        some = {name: value[:count] for name, value in batch.items()}
        return sum(steps.step(some, number) for number in range(graphs))

    for count in dict.fromkeys((size, max(1, size // 4))):
        try:
            loss = every_graph(count)
        except ClientError as error:
            if count == size:
                raise
            say(f"tier {label}: batch {count} is left out: {error}")
            continue
        if not math.isfinite(loss):
            raise ClientError(f"tier {label}: the loss of a step of {count} samples is {loss}, expected a finite number")
        macs = _step_macs(bundle.tier(label).get("costs", {}), count)
        yield Case(label, "step", count, macs, functools.partial(every_graph, count), graphs)


def _step_macs(costs: Table, count: int) -> int | None:
    """Return the MACs of a training step of ``count`` samples, or None if the manifest has none."""
    try:
        of_sample = costs.get("macs_drawn") or costs["macs_forward"] + costs["macs_backward"]
        return int(count * of_sample + costs["macs_compose"])
    except KeyError:
        return None


def _repeated(bundle: Bundle, path: str, count: int, result: str) -> Tensors:
    """Return ``count`` samples of a reference, repeated: all of its tensors except ``result``, which is computed from them."""
    stored = {name: value for name, value in bundle.tensors(path).items() if name != result and not name.startswith("after:")}
    if wrong := [name for name, value in stored.items() if not value.ndim or not len(value)]:
        raise InputError(f"{bundle.folder / path}: {wrong[0]}: no sample, expected at least one")
    return {name: value[np.arange(count) % len(value)] for name, value in stored.items()}
