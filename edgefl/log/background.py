"""Loggers in the background, and what they log: one that is slow, fails or cannot reach its server never stops a run."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.log.contract import LoggedRun, Logger
from edgefl.records import RoundRecord
from edgefl.registry import loggers
from edgefl.util.unknown import known_sum

_OF_ROUND = ("round_s", "waited_s", "clock_s", "trained", "macs", "download_bytes", "upload_bytes", "energy_j")
_OF_CLASS = ("macs", "download_bytes", "upload_bytes", "energy_j", "device_s")


def round_metrics(record: RoundRecord) -> dict[str, float]:
    """Return the figures of a round: totals, ``accuracy/…`` of the global model and of each tier, ``class/DEVICE/…`` of each device class.

    ``class/DEVICE/trained`` counts clients, as does every other status; bytes, joules and seconds include updates that were not used.
    An energy that is unknown is left out.
    """
    line = record.to_json(clients=False)
    metrics = {key: float(line[key]) for key in _OF_ROUND if line[key] is not None}
    metrics |= {f"accuracy/{label}": float(share) for label, share in line["accuracy"].items()}
    if (after := record.accuracy_after_training) is not None:
        metrics["accuracy_after_training"] = after
    of_classes: dict[str, list[float | None]] = {}
    for group in line["groups"]:
        counts = {group["status"]: group["clients"], **{key: group[key] for key in _OF_CLASS}}
        for key, value in counts.items():
            of_classes.setdefault(f"class/{group['device']}/{key}", []).append(value)
    return metrics | {name: float(total) for name, values in of_classes.items() if (total := known_sum(values)) is not None}


def final_metrics(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a finished run from its ``summary.json``: totals, and ``tier/RATIO/…`` with costs and accuracy of each tier."""
    metrics = {f"total/{key}": value for key, value in summary.items() if key != "format" and _is_number(value)}
    for row in summary["tiers"]:
        metrics |= {f"tier/{row['tier']:g}/{key}": value for key, value in row.items() if key != "tier" and _is_number(value)}
    return {key: float(value) for key, value in metrics.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


WAIT_S = 30.0
"""How long the end of a run waits for its loggers."""
ARTIFACTS = ("report.html", "summary.json", "config.toml", "bundle")

_Call = Callable[[Logger], None]


def check_installed(names: Sequence[str]) -> None:
    """Raise InputError if the package of one of the loggers ``names`` is not installed."""
    for name in names:
        loggers.check_installed(name, f"--log {name}")


@contextlib.contextmanager
def logs(names: Sequence[str], run: LoggedRun, say: Callable[[str], None]) -> Iterator[Logs]:
    """Yield what passes figures of ``run`` to the loggers ``names``; at the end, wait for them as long as :data:`WAIT_S`.

    ``say`` is called with one line of text if a logger fails.
    """
    threads = [_LoggerThread(name, run, say) for name in names]
    try:
        yield Logs(threads)
    finally:
        until = time.monotonic() + WAIT_S
        for thread in threads:
            thread.close(until)


class Logs:
    """Passes figures to loggers, which are threads; it does not wait for them."""

    def __init__(self, threads: Sequence[_LoggerThread]) -> None:
        self._threads = threads

    def round(self, record: RoundRecord) -> None:
        """Log a round."""
        if self._threads:
            metrics = round_metrics(record)
            self._send(lambda logger: logger.round(record.round, metrics))

    def end(self, summary: Mapping[str, Any], folder: Path) -> None:
        """Log a finished run with its ``summary``, and the artifacts in its ``folder``."""
        metrics, files = final_metrics(summary), [folder / name for name in ARTIFACTS if (folder / name).exists()]
        self._send(lambda logger: logger.end(metrics, files))

    def _send(self, call: _Call) -> None:
        for thread in self._threads:
            thread.calls.put(call)


NO_LOGS = Logs(())
"""Of a run without loggers."""


class _LoggerThread:
    """One logger, in a thread that ends with the process at the latest."""

    def __init__(self, name: str, run: LoggedRun, say: Callable[[str], None]) -> None:
        self._name, self._run, self._say, self._failed = name, run, say, False
        self.calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"log to {name}", daemon=True)
        self._thread.start()

    def close(self, until: float) -> None:
        """Wait for the logger until a time of the monotonic clock, and say if it does not come to its end."""
        self.calls.put(None)
        self._thread.join(max(0.0, until - time.monotonic()))
        if self._thread.is_alive():
            self._tell(f"--log {self._name}: has not answered within {WAIT_S:g} s; its log may be incomplete")

    def _tell(self, text: str) -> None:
        """Say ``text``, unless something has been said of this logger."""
        if not self._failed:
            self._failed = True
            self._say(text)

    def _work(self) -> None:
        try:
            with loggers.load(self._name)(self._run) as logger:
                while (call := self.calls.get()) is not None:
                    call(logger)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a logger raises, the run continues
            reason = str(error).strip().partition("\n")[0][:300]
            self._tell(f"--log {self._name} failed, and the run continues without it: {type(error).__name__}: {reason}")
