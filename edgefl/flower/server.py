"""The server of the Flower app: a run as ``edgefl simulate`` makes it, whose clients are the devices of a federation."""

import logging
from collections.abc import Mapping
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

    ``settings`` is the run configuration of the app: ``out``, ``resume``, ``join-s`` and ``start-s``.

    Raises:
        InputError: the configuration is wrong, or real devices cannot train it. Nothing is written.
    """
    out = str(settings.get("out", ""))
    if not Path(out).is_absolute():
        raise ConfigError(f"out: got {out!r}, expected the absolute path of the run's folder on the computer of the SuperLink")
    waits = Waits(float(settings.get("join-s", Waits.join_s)), float(settings.get("start-s", Waits.start_s)))
    devices = partial(connected, GridLink(grid), waits)
    resume = bool(settings.get("resume", False))
    try:
        result = simulate(RunConfig.load(config, {}), out, resume=resume, on_round=_told, notify=_LOG.info, devices=devices)
    except EdgeflError as error:
        _LOG.error("Error: %s", error)  # Flower's own report of an error is a traceback
        raise error.with_traceback(None) from None
    _LOG.info("run folder: %s (report.html, bundle/, summary.json)", result.folder)


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
