"""The server of the Flower app: a run as ``edgefl simulate`` makes it, whose clients are the devices of a federation."""

import logging
from collections.abc import Mapping
from contextlib import chdir, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from edgefl.config import RunConfig
from edgefl.errors import ConfigError, EdgeflError
from edgefl.flower.fleet import FlowerFleet, Waits
from edgefl.flower.rounds import fleet_round
from edgefl.flower.setups import check_run
from edgefl.flower.wire import GridLink, Link
from edgefl.records import RoundRecord
from edgefl.run.run import Run, RunOne
from edgefl.run.simulate import simulate

_LOG = logging.getLogger("flwr")


def serve(grid: Grid, settings: Mapping[str, Any], config: Path) -> None:
    """Train the run of the TOML file ``config`` with the devices of ``grid``.

    ``settings`` is the run configuration of the app: ``out``, ``files``, ``resume``, ``join-s`` and ``start-s``.

    Raises:
        InputError: the configuration is wrong, or real devices cannot train it. Nothing is written.
    """
    try:
        out, files = str(settings.get("out", "")), Path(str(settings.get("files", "")))
        if not Path(out).is_absolute():
            raise ConfigError(
                f"out: got {out!r}, expected the absolute path of the run's folder on the computer of the SuperLink"
            )
        devices = partial(connected, GridLink(grid), _waits(settings))
        resume = bool(settings.get("resume", False))
        with chdir(files) if files.is_dir() else nullcontext():
            result = simulate(RunConfig.load(config, {}), out, resume=resume, on_round=_told, notify=_LOG.info, devices=devices)
    except EdgeflError as error:
        _LOG.error("Error: %s", error)
        _LOG.addFilter(_without_traceback)
        raise
    if reason := result.summary.get("no_bundle"):
        _LOG.info("no bundle: %s", reason)
    _LOG.info("run folder: %s (%s)", result.folder, result.contents)


def _waits(settings: Mapping[str, Any]) -> Waits:
    found = {name: settings.get(f"{name}-s", getattr(Waits, f"{name}_s")) for name in ("join", "start")}
    for name, value in found.items():
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigError(f"{name}-s: got {value!r}, expected seconds, a number from 0")
    return Waits(*map(float, found.values()))


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let Flower report an error that the user has been told as a line."""
    if record.exc_info and isinstance(record.exc_info[1], EdgeflError):
        record.exc_info = None
    return True


def connected(link: Link, waits: Waits, run: Run, folder: Path) -> RunOne:
    """Return what runs a round of ``run`` with the devices behind ``link``.

    Raises:
        ConfigError: real devices cannot train the run.
    """
    check_run(run)
    return partial(fleet_round, FlowerFleet(link, run, folder, waits, _LOG.info))


def _told(record: RoundRecord) -> None:
    found = record.accuracy.get("global")
    accuracy = "" if found is None else f", {record.metric.name} {found:.4f}"
    statuses = [client.status for client in record.clients]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    _LOG.info("round %d: %.1f s, %s%s", record.round, record.round_s, counts, accuracy)
