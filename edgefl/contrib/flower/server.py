"""The server of the Flower app: a run as ``edgefl simulate`` makes it, whose clients are the devices of a federation."""

import logging
from collections.abc import Mapping
from contextlib import chdir, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr.app import UserConfig
from flwr.serverapp import Grid

from edgefl.config import RunConfig
from edgefl.contrib.flower.fleet import FlowerFleet, Waits
from edgefl.contrib.flower.rounds import fleet_round
from edgefl.contrib.flower.setups import check_run
from edgefl.contrib.flower.wire import FlowerLink, GridLink
from edgefl.errors import ConfigError, EdgeflError
from edgefl.records import RoundRecord
from edgefl.run.folder import RunFolder
from edgefl.run.guarded import best_of, drop_of
from edgefl.run.run import Run, RunOne
from edgefl.run.simulate import simulate
from edgefl.util.hashes import ROUNDS

_LOG = logging.getLogger("flwr")
MAX_FALL = 0.1
"""So much may a model be worse than the best before it, by default: a run that nobody watches is not ended by a round of few devices."""


def serve(grid: Grid, settings: UserConfig, config: Path) -> None:
    """Train the run of the TOML file ``config`` with the devices of ``grid``.

    ``settings`` is the run configuration of the app: ``out``, ``files``, ``resume``, ``join-s``, ``start-s`` and ``max-drop``.

    Raises:
        InputError: the configuration is wrong, or real devices cannot train it. Nothing is written.
        EdgeflError: the model has become worse by more than ``max-drop`` than it was at best.
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
            watch = Watch(_max_drop(settings), _accuracies(Path(out)) if resume else [])
            result = simulate(
                RunConfig.load(config, {}), out, resume=resume, on_round=watch.round, notify=_LOG.info, devices=devices
            )
    except EdgeflError as error:
        _LOG.error("Error: %s", error)
        _LOG.addFilter(_without_traceback)
        raise
    if reason := result.summary.get("no_bundle"):
        _LOG.info("no bundle: %s", reason)
    _LOG.info("run folder: %s (%s)", result.folder, result.contents)


def _waits(settings: UserConfig) -> Waits:
    seconds = {name: settings.get(f"{name}-s", getattr(Waits, f"{name}_s")) for name in ("join", "start")}
    for name, value in seconds.items():
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ConfigError(f"{name}-s: got {value!r}, expected seconds, a number from 0")
    return Waits(*map(float, seconds.values()))


def _without_traceback(record: logging.LogRecord) -> bool:
    """Let Flower report an error that the user has been told as a line."""
    if record.exc_info and isinstance(record.exc_info[1], EdgeflError):
        record.exc_info = None
    return True


def connected(link: FlowerLink, waits: Waits, run: Run, folder: Path) -> RunOne:
    """Return what runs a round of ``run`` with the devices behind ``link``.

    Raises:
        ConfigError: real devices cannot train the run.
    """
    check_run(run)
    return partial(fleet_round, FlowerFleet(link, run, folder, waits, _LOG.info))


def _max_drop(settings: UserConfig) -> float:
    value = settings.get("max-drop", MAX_FALL)
    if not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"max-drop: got {value!r}, expected a number from 0, such as 0.1 for 10 points of accuracy")
    return float(value)


def _accuracies(out: Path) -> list[Mapping[str, float]]:
    """Return the values of the models after each round of a run so far."""
    return [line.accuracy for line in RunFolder(out).rounds()] if (out / ROUNDS).is_file() else []


@dataclass
class Watch:
    """Tells the user about rounds, and ends a run whose model falls, however slowly: it is compared with the best so far.

    ``before`` are the values of the models after earlier rounds.
    """

    max_drop: float
    before: list[Mapping[str, float]]

    def round(self, record: RoundRecord) -> None:
        """Tell about a round; EdgeflError if a model is worse than the best so far by more than ``max_drop``."""
        _told(record)
        best: dict[str, float] = {}
        for values in self.before:
            best |= best_of(best, values, record.metric)
        for name, value in record.accuracy.items():
            if drop_of(best.get(name, value), value, record.metric) > self.max_drop:
                model = "the global model" if name == "global" else f"the model of tier {name}"
                scores = (
                    f"{record.metric.name} {value:.4f}, {best[name]:.4f} at best, more than max-drop allows ({self.max_drop:g})"
                )
                raise EdgeflError(
                    f"round {record.round}: {model} gets worse on held-out data: {scores}; find out which devices send such updates, then "
                    "begin anew, or continue with resume=true and a larger max-drop"
                )
        self.before = [best, dict(record.accuracy)]


def _told(record: RoundRecord) -> None:
    for client in record.clients:
        if client.screened is not None and client.screened.dropped:
            ratio = client.screened.norm_ratio
            far = "" if ratio is None else f": its change is {ratio:.3g} times the tier's median"
            _LOG.info(
                "round %d: the update of client %d was left out by the defence%s", record.round, client.expected.client, far
            )
    score = record.accuracy.get("global")
    accuracy = "" if score is None else f", {record.metric.name} {score:.4f}"
    statuses = [client.status for client in record.clients]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    _LOG.info("round %d: %.1f s, %s%s", record.round, record.round_s, counts, accuracy)
