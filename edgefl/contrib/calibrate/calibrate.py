"""Measures this machine and writes its device profile."""

import errno
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from pydantic import ValidationError

from edgefl.contrib.calibrate import bench as timing
from edgefl.contrib.calibrate.device import Inference, MachineFigures, MachineSpread, MachineStep, counted, device_values
from edgefl.contrib.calibrate.meters import MeterFigures, MeterLog, MeterSpan, Sensor, meter_of
from edgefl.contrib.calibrate.probes import Probe, probes
from edgefl.contrib.calibrate.profile_file import to_toml
from edgefl.contrib.calibrate.rows import values_from
from edgefl.errors import ConfigError, ProfileError, StorageError
from edgefl.fleet.load import load_device, load_link, names
from edgefl.fleet.profile import DeviceProfile
from edgefl.models.base import Architecture
from edgefl.planning.network import architecture_of
from edgefl.rng import generator, torch_seeded
from edgefl.util.files import TomlTable, write_bytes
from edgefl.util.machine import Machine, Others, this_machine
from edgefl.util.validation import explain_all

NETWORKS = ("cnn-digits", "vgg11", "lstm-shakespeare")
"""A small network, one with large convolutions, and a recurrent one."""

_BATCHES, _FEWER = (8, 32), (2, 8)
_SLOW_S = 0.02  # share of all seconds: if the first step takes longer, batches are smaller
_STEPS, _INFERENCE, _COPY = 0.65, 0.12, 0.05  # shares of the seconds left; inference runs twice
_PREPARING = 2 / 3  # at most this share of all seconds goes to exports and traces
_EXPORTED = 3  # every third probe is exported
_IDLE, _LEAST_IDLE_S = 0.2, 2.0  # watts without work are read for this share of all seconds, and at least so long

Notify = Callable[[str], None]


def measure(
    seconds: float = 30.0,
    threads: int | None = None,
    notify: Notify = lambda message: None,
    meter: Sensor | MeterLog | None = None,
) -> MachineFigures:
    """Measure this machine for about ``seconds``, on ``threads`` threads (None for every core), with at least five repeats of each figure.

    ``notify`` is called with a line of text per phase. With a ``meter``, watts are read while it does nothing for some seconds, and while
    it trains.
    """
    if meter is None:
        return _timed(seconds, threads, notify)[0]
    with meter.watching():
        notify("reading watts without work")
        begun_s = time.time()
        time.sleep(max(_LEAST_IDLE_S, seconds * _IDLE))
        idle = MeterSpan("idle", begun_s, time.time())
        measured, training = _timed(seconds, threads, notify)
    return replace(measured, watts=MeterFigures.of(meter, idle, training))


def _timed(seconds: float, threads: int | None, notify: Notify) -> tuple[MachineFigures, MeterSpan]:
    """Return what :func:`measure` does without watts, and when it trained."""
    begun, machine, others = time.perf_counter(), this_machine(), Others()
    every = threads or machine.threads
    with torch_seeded(generator(0, "calibrate")), timing.torch_threads(every):
        networks = {name: architecture_of(name) for name in NETWORKS}
        notify(f"{machine.processor}: exporting {', '.join(NETWORKS)}, and small networks")
        steps = _steps(networks, seconds * _SLOW_S)
        exported = networks | {probe.model: probe for probe in probes()[::_EXPORTED]}
        graphs = {name: timing.graph_of(network) for name, network in exported.items()}
        costs = {name: step.cost for name, step in steps.items()}
        tasks = {name: step.task(forward=True) for name, step in steps.items()}
        left_s = max(seconds - (time.perf_counter() - begun), seconds * (1 - _PREPARING))
        notify(f"timing training steps in torch, threads: {every}")
        training_s = time.time()
        trained = timing.interleaved(tasks, left_s * _STEPS)
        training = MeterSpan("training", training_s, time.time())
        products, inference = [], []
        for count in (1, every):
            notify(f"timing matrix products and inference in onnxruntime, threads: {count}")
            torch.set_num_threads(count)
            products.append(_spread(timing.interleaved({"": timing.product_task()}, left_s * _COPY)).rate(timing.SIDE**3))
            of_graph = left_s * _INFERENCE / len(graphs)
            # One session at a time: idle threads of another one would keep spinning.
            runs = ((name, timing.inference_task(graph, exported[name], count)) for name, graph in graphs.items())
            inference.append({name: _spread(timing.interleaved({"": task}, of_graph)) for name, task in runs})
        copied = _spread(timing.interleaved({"": timing.copy_task()}, left_s * _COPY))
    batches = {name: step.batch_size for name, step in steps.items()}
    of_network = {step.architecture.model: costs[name] for name, step in steps.items()}
    figures = MachineFigures(
        **vars(replace(machine, threads=every)),
        source=_source(machine, every),
        product=(products[0], products[1]),
        copied=copied.rate(timing.COPIED_BYTES),
        steps={
            name: [MachineStep(costs[name].work, batches[name], *parts) for parts in rounds] for name, rounds in trained.items()
        },
        inference={
            name: Inference(of_network[name].inference_of(), *(spreads[name] for spreads in inference)) for name in graphs
        },
        references=tuple(name for name, step in steps.items() if not isinstance(step.architecture, Probe)),
        busy=others.share(),
    )
    return figures, training


def calibrate(
    out: Path,
    *,
    name: str | None = None,
    title: str | None = None,
    link: str | None = None,
    like: str = "laptop",
    rows: Path | None = None,
    seconds: float = 30.0,
    threads: int | None = None,
    power: str | None = None,
    notify: Notify = lambda message: None,
) -> tuple[TomlTable, MachineFigures | None]:
    """Measure this machine and write its device profile to ``out``, whole or not at all.

    ``rows`` is a CSV file of steps that were measured elsewhere: the profile is fitted to them, and nothing is measured.

    By default the profile has the ``name`` of the file, and a ``title`` that says how it was made. Its ``link`` (a name or file) is that
    of ``like``, whose throttling and power are assumed. ``power`` names a meter, see :func:`edgefl.contrib.calibrate.meters.meter_of`: with
    ``rows`` it is a CSV file with states. A link that does not ship with edgefl is written into the profile. The other arguments are those
    of :func:`measure`.

    Returns:
        The content of the file, and all measurements; None with ``rows``.

    Raises:
        InputError: a link, profile or name is wrong, or ``out`` cannot be written; raised before anything is measured. Or ``rows`` give
            figures that no device has.
    """
    stand_in = load_device(like)
    chosen = load_link(link) if link else stand_in.link
    named = name or out.stem
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", named):
        raise ConfigError(f"name: got {named!r}, expected letters, digits, dots, dashes and underscores, such as my-device")
    if title is not None and not title.strip():
        raise ConfigError("title: got none, expected a device's name for people, such as 'Meter of the garage'")
    _check_writable(out)
    shipped = chosen.name in names("links") and load_link(chosen.name) == chosen
    of_link = chosen.name if shipped else chosen.model_dump(exclude_none=True)
    meter, measured = None if power is None else meter_of(power), None
    if rows is None:
        measured = measure(seconds, threads, notify, meter)
        values = device_values(measured, named, of_link, stand_in)
    else:
        if isinstance(meter, Sensor):
            raise ConfigError(f"power: {power} measures this machine; for steps of another one give the CSV file of a meter")
        watts = None if meter is None else MeterFigures.of(meter, MeterSpan("idle"), MeterSpan("training"))
        values = values_from(rows, named, of_link, stand_in, notify, watts)
    if title is not None:
        values["title"] = title
    try:
        DeviceProfile.model_validate({**values, "link": chosen})
    except ValidationError as error:
        lines = explain_all(error.errors()).splitlines()
        where = f"{rows or out}: the figures are those of no device"
        question = "; are seconds in seconds, and counts those of one step?" if rows else ""
        raise ProfileError("\n".join([f"{where}{question}", *(f"  {line}" for line in lines)])) from None
    write_bytes(out, to_toml(values).encode())
    return values, measured


def _check_writable(out: Path) -> None:
    """Raise before the measurement what writing would raise after it."""
    folder = next(parent for parent in out.absolute().parents if parent.exists())
    try:
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(f"{out}: cannot be written ({error.strerror}); give another --out FILE") from error


def _steps(networks: Mapping[str, Architecture], slow_s: float) -> dict[str, timing.TrainedBench]:
    """Return what is trained: reference networks at two batch sizes, and probes."""
    steps: dict[str, timing.TrainedBench] = {}
    for name, network in networks.items():
        batches = _BATCHES if sum(timing.TrainedBench(network, _BATCHES[0]).task()()) <= slow_s else _FEWER
        steps |= {f"{name} at batch {batch}": timing.TrainedBench(network, batch) for batch in batches}
    return steps | {probe.model: timing.TrainedBench(probe, probe.batch_size) for probe in probes()}


def _spread(readings: timing.Readings) -> MachineSpread:
    (rounds,) = readings.values()
    return MachineSpread.of_seconds([s for (s,) in rounds])


def _source(machine: Machine, threads: int) -> str:
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, numpy {np.__version__}"
    return f"edgefl calibrate on {machine.processor}; {counted(threads)} where not one; {versions}"
