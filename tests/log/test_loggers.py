"""Loggers hold what a run logged, read back with each tool's own reader; one that fails never stops a run."""

from __future__ import annotations

import contextlib
import json
import struct
import sys
import threading

import pytest
from command import edgefl as command
from requirements import require

import edgefl
from edgefl.log import background
from edgefl.registry import loggers

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the tools themselves
ROUNDS = 2
SMALL = {"rounds": ROUNDS, "clients": 3, "local_epochs": 1, "data_share": 0.2, "model": "mlp", "method": "heterofl"}


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    require("tensorboard", "mlflow", "wandb")
    folder = tmp_path_factory.mktemp("logged")
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("WANDB_MODE", "offline")
        patch.setattr(background, "WAIT_S", 300.0)
        patch.chdir(folder)  # MLflow keeps artifacts of a database without a server beside it
        result = edgefl.simulate(
            edgefl.RunConfig(**SMALL, log=("tensorboard", "mlflow", "wandb")), folder / "run", notify=said.append
        )
    assert [line for line in said if "--log" in line] == []
    return result, folder


def expected(result):
    last = result.rounds[-1]
    return {"accuracy/global": last.accuracy["global"], "accuracy/0.5": last.accuracy["0.5"], "energy_j": last.energy_j}


def test_tensorboard_holds_every_round_and_the_costs_of_tiers(logged):
    from tensorboard.backend.event_processing import event_accumulator as events

    result, _ = logged
    found = events.EventAccumulator(str(result.folder / "logs" / "tensorboard"))
    found.Reload()
    for name, value in expected(result).items():
        assert [event.step for event in found.Scalars(name)] == [1, 2]
        assert found.Scalars(name)[-1].value == pytest.approx(value)
    assert found.Scalars("tier/0.5/params")[0].value == result.tiers[1].params
    assert any(tag.startswith("class/") and tag.endswith("/trained") for tag in found.Tags()["scalars"])
    assert "configuration/text_summary" in found.Tags()["tensors"]


def test_mlflow_holds_parameters_metrics_and_artifacts(logged):
    import mlflow

    result, folder = logged
    client = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("edgefl").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["method"] == "heterofl"
    for name, value in expected(result).items():
        history = client.get_metric_history(run.info.run_id, name)
        assert [(metric.step, metric.value) for metric in history][-1] == (ROUNDS, value)
    assert run.data.metrics["tier/0.5/params"] == result.tiers[1].params
    assert {file.path for file in client.list_artifacts(run.info.run_id)} == set(background.ARTIFACTS)


def records_of(content):
    """The records of a .wandb file: a log in LevelDB's format, of 32 KiB blocks, after a header of 7 bytes."""
    place, parts = 7, b""
    while place < len(content):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        _, size, kind = struct.unpack_from("<IHB", content, place)
        parts += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or its last part
            yield parts
            parts = b""


def test_wandb_holds_configuration_history_and_summary(logged):
    from wandb.proto import wandb_internal_pb2 as messages

    result, _ = logged
    (path,) = (result.folder / "logs" / "wandb").glob("offline-run-*/*.wandb")
    records = [messages.Record.FromString(content) for content in records_of(path.read_bytes())]
    rows = [record.history.item for record in records if record.HasField("history")]
    history = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]
    assert [row["_step"] for row in history] == [1, 2]
    for name, value in expected(result).items():
        assert history[-1][name] == pytest.approx(value)
    settings = {item.key: json.loads(item.value_json) for r in records if r.HasField("run") for item in r.run.config.update}
    assert settings["method"] == "heterofl"


LINES = """
import contextlib
from edgefl.extend import logger

class Lines:
    def __init__(self, folder):
        self.path = folder / "lines.txt"

    def round(self, number, metrics):
        self.path.write_text(f"{number} {sorted(metrics)[0]}")

    def end(self, metrics, files):
        pass

@logger("lines", needs="json", extra="lines")
@contextlib.contextmanager
def lines(run):
    yield Lines(run.folder)
"""


def test_a_logger_of_a_plug_in(tmp_path, monkeypatch):
    for names in ("_loaded", "_facts", "_plugged"):  # other tests expect the loggers of the package only
        monkeypatch.setattr(loggers, names, {**getattr(loggers, names)})
    (tmp_path / "lines.py").write_text(LINES)
    edgefl.simulate(edgefl.RunConfig(**SMALL, plugins=[tmp_path / "lines.py"], log=("lines",)), tmp_path / "run")
    assert (tmp_path / "run" / "lines.txt").read_text() == f"{ROUNDS} accuracy/0.25"


@pytest.mark.parametrize("where", ["open", "round", "end"])
def test_a_logger_that_fails_is_said_once_and_the_run_is_the_same(tmp_path, monkeypatch, where):
    require("tensorboard")

    def fails():
        raise ConnectionError("no server at example.org")

    class Fails:
        def round(self, number, metrics):
            if where == "round":
                fails()

        def end(self, metrics, files):
            if where == "end":
                fails()

    @contextlib.contextmanager
    def broken(run):
        if where == "open":
            fails()
        yield Fails()

    monkeypatch.setattr(loggers, "load", lambda name: broken)
    said = []
    result = edgefl.simulate(edgefl.RunConfig(**SMALL, log=("tensorboard",)), tmp_path / "run", notify=said.append)
    told = [line for line in said if "--log" in line]
    assert told == ["--log tensorboard failed, and the run continues without it: ConnectionError: no server at example.org"]
    assert result.summary["rounds"] == ROUNDS


def test_a_logger_that_ends_its_thread_is_said_too(monkeypatch):
    @contextlib.contextmanager
    def leaves(run):
        raise SystemExit("no account")
        yield

    monkeypatch.setattr(loggers, "load", lambda name: leaves)
    said = []
    with background.logs(("wandb",), None, said.append):
        pass
    assert said == ["--log wandb failed, and the run continues without it: SystemExit: no account"]


def test_a_logger_that_hangs_does_not_keep_the_run_and_is_said_once(tmp_path, monkeypatch):
    require("wandb")
    release = threading.Event()

    @contextlib.contextmanager
    def hangs(run):
        release.wait(60)
        raise ConnectionError("too late")
        yield

    monkeypatch.setattr(loggers, "load", lambda name: hangs)
    monkeypatch.setattr(background, "WAIT_S", 0.1)
    said = []
    edgefl.simulate(edgefl.RunConfig(**SMALL, log=("wandb",)), tmp_path / "run", notify=said.append)
    release.set()
    for thread in threading.enumerate():
        if thread.name == "log to wandb":
            thread.join(60)
    assert said == ["--log wandb: has not answered within 0.1 s; its log may be incomplete"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("tensorbord", r"unknown logger 'tensorbord'; did you mean 'tensorboard'"),
        ("wandb,wandb", r"log: expected each name once, got wandb, wandb"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_written(tmp_path, names, message):
    ended = command("simulate", "--log", names, "--out", str(tmp_path / "run"))
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())
    assert not (tmp_path / "run").exists()


def test_a_package_that_is_not_installed_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(
        edgefl.errors.InputError,
        match=r"--log mlflow needs mlflow, which is not installed; run pip install 'edgefl-sim\[mlflow\]'",
    ):
        edgefl.simulate(edgefl.RunConfig(**SMALL, log=("mlflow",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()
