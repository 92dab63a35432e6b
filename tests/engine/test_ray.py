"""Engine ray on two real nodes of this computer: the same bits as in one process, whatever is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from command import edgefl
from ray_nodes import RayNodes, kill, ray_nodes, wait_until
from runs import StopError, checkpoint_of, lines_of, stopped_after

import edgefl as package
from edgefl import RunConfig, simulate
from edgefl.client.client import Clients
from edgefl.data.digits import digits
from edgefl.engine.contract import Cluster, in_order, open_engine
from edgefl.engine.pool import TOGETHER, PoolEngine
from edgefl.errors import ConfigError
from edgefl.records import RoundRecord
from edgefl.testing import rules_of_engines as rules
from edgefl.util.compute import one_thread

pytest.importorskip("ray", reason="the extra ray is not installed")

PACKAGE = Path(package.__file__).parent
ROUNDS = 5
RUN = {"profile": "phone", "rounds": ROUNDS, "clients": 10, "per_round": 8, "local_epochs": 1, "eval_every": ROUNDS}


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes() as found:
        found.add()
        yield found


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    return stopped_after(RunConfig(**RUN), tmp_path_factory.mktemp("inline"), ROUNDS)


def on(nodes: RayNodes, **options) -> RunConfig:
    return RunConfig(**{**RUN, "engine": "ray", "ray_address": nodes.address, "workers": 0, **options})


def flags_of(config: RunConfig) -> list[str]:
    keys = {key: value for key, value in config.model_dump(exclude_unset=True).items() if key != "plugins"}
    return ["simulate", *(f"--{key.replace('_', '-')}={value}" for key, value in keys.items())]


def assert_equal(one: Path, other: Path, rounds: int = ROUNDS) -> None:
    assert lines_of(one) == lines_of(other)
    assert checkpoint_of(one, rounds).read_bytes() == checkpoint_of(other, rounds).read_bytes()


def actors(nodes: RayNodes) -> list[psutil.Process]:
    return nodes.processes(b"ray::Node")


def test_two_nodes_share_a_run_and_train_the_model_of_one_process(nodes, inline, tmp_path):
    folder = stopped_after(on(nodes), tmp_path / "run", ROUNDS, trace=tmp_path / "trace.json")
    assert_equal(folder, inline)
    events = json.loads((tmp_path / "trace.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    jobs = Counter(event["pid"] for event in events if event["name"] == "train" and event["pid"])
    assert set(jobs) == {1, 2}
    assert min(jobs.values()) >= 0.3 * jobs.total()
    wait_until(lambda: not actors(nodes))


def test_what_is_killed_runs_elsewhere_to_the_same_bits(nodes, inline, tmp_path, capfd):
    raylet = nodes.processes(b"raylet/raylet")[1]
    after = {
        1: lambda: kill(next(one for one in actors(nodes)[0].children(recursive=True) if not one.children())),
        2: lambda: kill(actors(nodes)[0]),
        3: lambda: kill(raylet),
    }

    def shoot(record: RoundRecord) -> None:
        after.pop(record.round, lambda: None)()
        if record.round == ROUNDS:
            raise StopError

    with pytest.raises(StopError):
        simulate(on(nodes), tmp_path / "run", on_round=shoot)
    assert_equal(tmp_path / "run", inline)
    assert capfd.readouterr() == ("", "")
    nodes.add()


def test_a_killed_run_resumes_on_this_computer(nodes, inline, tmp_path):
    command = [sys.executable, "-m", "edgefl.cli.main", *flags_of(on(nodes)), f"--out={tmp_path}/run"]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(list((tmp_path / "run" / "checkpoints").glob("round-*"))) >= 2)
    driver.kill()
    driver.wait()
    assert len(lines_of(tmp_path / "run")) < ROUNDS
    wait_until(lambda: not actors(nodes))
    assert_equal(stopped_after(RunConfig(**RUN, workers=2), tmp_path / "run", ROUNDS, resume=True), inline)


@pytest.mark.parametrize(
    "options",
    [{"enforce": "hard"}, {"runtime": "onnx", "mode": "async", "method": "pfedpara"}],
    ids=["limits of the system", "onnxruntime, without rounds, clients that store tensors"],
)
def test_other_ways_to_train_equal_those_of_the_pool(nodes, tmp_path, options):
    options |= {"rounds": 2, "eval_every": 2, "clients": 6, "per_round": 4}
    one = stopped_after(on(nodes, **options), tmp_path / "ray", 2)
    other = stopped_after(on(nodes, **options, engine="pool", workers=2), tmp_path / "pool", 2)
    assert_equal(one, other, 2)


def test_the_rules_of_engines(nodes, monkeypatch):
    clients = Clients(rules.TASK, digits())
    with one_thread():
        expected = [clients.run(job) for job in rules.jobs_of(16)]
    with open_engine("ray", 0, clients, Cluster(nodes.address)) as engine:
        monkeypatch.setattr(rules, "opened", lambda name: nullcontext(engine))
        rules.test_every_job_has_one_outcome_and_the_caller_restores_the_order("ray", expected)
        rules.test_jobs_are_pulled_when_there_is_room("ray")
        rules.test_replacements_can_be_asked_for_in_the_middle_of_a_round("ray", expected)
        rules.test_any_job_can_run_again_to_the_same_bits("ray", expected)
        rules.test_a_cancelled_map_leaves_nothing_behind("ray", expected)
        jobs = [job for job in rules.jobs_of(16) if job.tier.ratio == 1 and job.round == 1]
        with PoolEngine(rules.TASK, 1, data=digits(), together=TOGETHER) as group:
            grouped = list(in_order(group, jobs))
        engine._together = TOGETHER
        assert list(in_order(engine, jobs)) == grouped
        assert open_engine("ray-group", 0, clients, Cluster(nodes.address))._together == TOGETHER


# Refusals ----------------------------------------------------------------------------------------------------------------------


def test_a_node_of_another_kind_is_refused_unless_the_user_accepts_it(nodes, tmp_path):
    nodes.add(ATEN_CPU_CAPABILITY="avx2")
    try:
        told = edgefl(*flags_of(on(nodes)), f"--out={tmp_path}/run")
        assert told.returncode == 2
        assert "mixed_nodes: node 127.0.0." in told.stderr
        assert "instructions AVX2 there, AVX512 here" in told.stderr
        assert not (tmp_path / "run").exists()
        accepted = on(nodes, mixed_nodes=True, rounds=1, clients=4, per_round=3, tiers=(0.25,))
        assert simulate(accepted, tmp_path / "run").summary["mixed_nodes"] is True
    finally:
        nodes.remove()


def test_another_release_on_a_node_is_refused(nodes, tmp_path):
    shutil.copytree(PACKAGE, tmp_path / "other" / "edgefl", ignore=shutil.ignore_patterns("__pycache__"))
    with (tmp_path / "other" / "edgefl" / "errors.py").open("a") as file:
        file.write("# another release\n")
    nodes.add(PYTHONPATH=str(tmp_path / "other"))
    try:
        told = edgefl(*flags_of(on(nodes)), f"--out={tmp_path}/run", cwd=tmp_path)
        assert told.returncode == 2
        assert "has edgefl" in told.stderr
        assert "install the same release there" in told.stderr
    finally:
        nodes.remove()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "found no Ray cluster at 127.0.0.1:1 .*; start one with 'ray start --head' here"),
        ("ray://here:1", "expected auto, local or HOST:PORT"),
        ("here", "expected auto, local or HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address, message):
    with pytest.raises(ConfigError, match=message):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster(address)).__enter__()


def test_a_computer_without_ray_is_told_how_to_install_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs Ray, which is not installed; run pip install 'edgefl-sim\[ray\]'"):
        open_engine("ray", 0, Clients(rules.TASK, digits()), Cluster()).__enter__()
