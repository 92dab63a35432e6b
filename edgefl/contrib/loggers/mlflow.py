"""MLflow: a run in the experiment ``edgefl``, on the server or in the file that MLFLOW_TRACKING_URI names."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from edgefl.log.contract import LoggedRun, Logger
from edgefl.registry import logger

EXPERIMENT = "edgefl"
_LONGEST_VALUE, _MOST_PARAMS, _MOST_METRICS = 6000, 100, 1000
"""Limits of one request."""


@logger("mlflow", needs="mlflow", extra="edgefl-sim[mlflow]")
@contextlib.contextmanager
def mlflow(run: LoggedRun) -> Iterator[Logger]:
    """Log to one run of MLflow. ``logs/mlflow`` in the run's folder holds its identifier, by which a resumed run continues it."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    entities = importlib.import_module("mlflow.entities")
    client = importlib.import_module("mlflow").MlflowClient()
    file = run.folder / "logs" / "mlflow"
    if file.exists():
        identifier = client.get_run(file.read_text(encoding="utf-8")).info.run_id
        client.update_run(identifier, status="RUNNING")
    else:
        existing = client.get_experiment_by_name(EXPERIMENT)
        experiment = client.create_experiment(EXPERIMENT) if existing is None else existing.experiment_id
        identifier = client.create_run(experiment, run_name=run.name).info.run_id
        file.parent.mkdir(exist_ok=True)
        file.write_text(identifier, encoding="utf-8")
        params = [entities.Param(key, str(value)[:_LONGEST_VALUE]) for key, value in run.settings.items()]
        for place in range(0, len(params), _MOST_PARAMS):
            client.log_batch(identifier, params=params[place : place + _MOST_PARAMS])
    run_log = _Mlflow(client, identifier, entities.Metric)
    try:
        yield run_log
    finally:
        client.set_terminated(identifier, "FINISHED" if run_log.ended else "KILLED")


class _Mlflow:
    def __init__(self, client: Any, identifier: str, metric: Any) -> None:
        self._client, self._identifier, self._metric, self.ended = client, identifier, metric, False

    def round(self, number: int, metrics: Mapping[str, float]) -> None:
        now_ms = int(1000 * time.time())
        values = [self._metric(name, value, now_ms, number) for name, value in metrics.items()]
        for place in range(0, len(values), _MOST_METRICS):
            self._client.log_batch(self._identifier, metrics=values[place : place + _MOST_METRICS])

    def end(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        self.round(0, metrics)
        for file in files:
            if file.is_dir():
                self._client.log_artifacts(self._identifier, str(file), file.name)
            else:
                self._client.log_artifact(self._identifier, str(file))
        self.ended = True
