"""Measures this machine and writes its device profile."""

from __future__ import annotations

import errno
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from edgefl.calibrate import bench as timing
from edgefl.calibrate.device import Measured, Spread, counted, device_values, to_toml
from edgefl.errors import ConfigError, StorageError
from edgefl.fleet.load import load_device, load_link
from edgefl.fleet.profile import DeviceProfile
from edgefl.fleet.rates import Step, work_of
from edgefl.models.base import Architecture
from edgefl.planning.network import architecture_of
from edgefl.rng import generator, torch_seeded
from edgefl.util.files import write_bytes
from edgefl.util.machine import Machine, Others, this_machine

NETWORKS = ("cnn-digits", "vgg11", "lstm-shakespeare")
"""A small network, one with large convolutions, and a recurrent one: together they separate the kinds of work."""

_BATCHES, _FEWER = (8, 32), (2, 8)
_SLOW_S = 0.02  # share of all seconds: if the first step takes longer, batches are smaller
_STEPS, _INFERENCE, _KERNELS, _COPY = 0.55, 0.1, 0.1, 0.05  # shares of the seconds left; inference and kernels run twice
_PREPARING = 2 / 3  # at most this share of all seconds goes to exports and traces

Notify = Callable[[str], None]


def measure(seconds: float = 30.0, threads: int | None = None, notify: Notify = lambda message: None) -> Measured:
    """Measure this machine for about ``seconds``, on ``threads`` threads (None for every core), with at least five repeats of each figure.

    ``notify`` is called with a line of text per phase.
    """
    begun, machine, others = time.perf_counter(), this_machine(), Others()
    every = threads or machine.threads
    networks = {name: architecture_of(name) for name in NETWORKS}
    with torch_seeded(generator(0, "calibrate")), timing.torch_threads(every):
        notify(f"{machine.processor}: exporting {', '.join(NETWORKS)}")
        graphs = {name: timing.graph_of(network) for name, network in networks.items()}
        steps, works, macs = _steps(networks, seconds * _SLOW_S)
        left_s = max(seconds - (time.perf_counter() - begun), seconds * (1 - _PREPARING))
        notify(f"timing training steps in torch, threads: {every}")
        trained = timing.interleaved(steps, left_s * _STEPS)
        kernels: dict[int, timing.Readings] = {}
        inference: dict[int, dict[str, Any]] = {}
        for count in dict.fromkeys((1, every)):
            notify(f"timing matrix products, convolutions and inference in onnxruntime, threads: {count}")
            torch.set_num_threads(count)
            kernels[count] = timing.interleaved(timing.kernel_tasks(), left_s * _KERNELS)
            inference[count] = {}
            for name, graph in graphs.items():  # one session at a time: idle threads of another one would keep spinning
                task = timing.inference_task(graph, networks[name], count)
                inference[count] |= timing.interleaved({name: task}, left_s * _INFERENCE / 3)
        copied = timing.interleaved({"copy": timing.copy_task()}, left_s * _COPY)
    return Measured(
        processor=machine.processor,
        system=machine.system,
        threads=every,
        total_bytes=machine.total_bytes,
        free_bytes=machine.free_bytes,
        battery=machine.battery,
        source=_source(machine, every),
        kernels={name: _rates(count, name, kernels, every) for name, count in timing.KERNELS.items()},
        copied=Spread.of_seconds([s for (s,) in copied["copy"]]).rate(timing.COPIED_BYTES),
        steps={name: [Step(works[name], *parts) for parts in repeats] for name, repeats in trained.items()},
        inference={name: _rates(count, name, inference, every) for name, count in macs.items()},
        busy=others.share(),
    )


def calibrate(
    out: Path,
    *,
    name: str | None = None,
    link: str | None = None,
    like: str = "laptop",
    seconds: float = 30.0,
    threads: int | None = None,
    notify: Notify = lambda message: None,
) -> tuple[dict[str, Any], Measured]:
    """Measure this machine and write its device profile to ``out``, whole or not at all.

    The profile has the ``name`` of the file by default, its ``link`` (a name or file; a link from a file is written into the profile) is
    that of ``like``, and the power and throttling of ``like`` are assumed. The other arguments are those of :func:`measure`.

    Returns:
        The content of the file, and all measurements.

    Raises:
        InputError: a link, profile or name is wrong, or ``out`` cannot be written; raised before anything is measured.
    """
    stand_in = load_device(like)
    chosen = load_link(link or stand_in.link.name)
    named = name or out.stem
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", named):
        raise ConfigError(f"name: got {named!r}, expected letters, digits, dots, dashes and underscores, such as my-device")
    _check_writable(out)
    measured = measure(seconds, threads, notify)
    shipped = chosen.name if chosen.name == (link or stand_in.link.name) else chosen.model_dump(exclude_none=True)
    values = device_values(measured, named, shipped, stand_in)
    DeviceProfile.model_validate({**values, "link": chosen})
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


def _steps(networks: Mapping[str, Architecture], slow_s: float) -> tuple[dict[str, timing.Task], dict[str, Any], dict[str, int]]:
    """Return tasks and works of training steps, by network and batch, and the MACs of an inference, by network."""
    tasks, works, macs = {}, {}, {}
    for name, network in networks.items():
        batches = _BATCHES if sum(timing.step_task(network, _BATCHES[0])()) <= slow_s else _FEWER
        for batch in batches:
            label = f"{name} at batch {batch}"
            cost = timing.step_cost(network, batch)
            tasks[label], works[label] = timing.step_task(network, batch), work_of(cost, batch, 1)
            macs[name] = cost.macs_inference
    return tasks, works, macs


def _source(machine: Machine, threads: int) -> str:
    versions = f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}, numpy {np.__version__}"
    return f"edgefl calibrate on {machine.processor}; {counted(threads)} where not one; {versions}"


def _rates(macs: int, name: str, readings: Mapping[int, timing.Readings], every: int) -> tuple[Spread, Spread]:
    one, all_ = (Spread.of_seconds([s for (s,) in readings[count][name]]).rate(macs) for count in (1, every))
    return one, all_
