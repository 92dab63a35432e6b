"""Engine ray on two real nodes of this computer: the same bits as in one process, whatever is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, chdir, nullcontext
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import torch
from ray_nodes import PATIENCE_S, kill, wait_until
from ray_runs import ROUNDS, RUN, actors, assert_equal, on, words_of
from requirements import require
from runs import lines_of, stopped_after
from texts import write_texts

import edgefl as package
from edgefl import RunConfig
from edgefl.client.client import Clients
from edgefl.client.folding import Sums
from edgefl.client.job import Job
from edgefl.contrib.ray.engine import RayEngine
from edgefl.contrib.ray.members import RayMember
from edgefl.data.digits import digits
from edgefl.engine.contract import Cluster, in_order, open_engine
from edgefl.engine.fingerprint import Fingerprint
from edgefl.engine.pool import TOGETHER, PoolEngine
from edgefl.records import Outcome
from edgefl.run.folder import RunFolder
from edgefl.testing import rules_of_engines as rules
from edgefl.timing.spans import drain
from edgefl.util.compute import one_thread

require("ray")

PACKAGE = Path(package.__file__).parent


@pytest.fixture(scope="module")
def inline(tmp_path_factory) -> Path:
    return stopped_after(RunConfig(**RUN), tmp_path_factory.mktemp("inline"), ROUNDS)


DRIVER = """
import json, os, signal, sys, psutil
from edgefl import RunConfig, simulate

keys, folder, pids = json.loads(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])

def actor():
    return next(one for one in psutil.Process(pids["head"]).children(recursive=True) if "ray::Node" in " ".join(one.cmdline()))

after = {
    1: lambda: next(one for one in actor().children(recursive=True) if not one.children()).pid,  # a worker
    2: lambda: actor().pid,
    3: lambda: pids["raylet"],
    4: os.getpid,
}
simulate(RunConfig.of(keys), folder, on_round=lambda record: os.kill(after[record.round](), signal.SIGKILL))
"""
"""A run that kills what trains it, one after the other, and at last itself."""


def test_two_nodes_train_the_model_of_one_process_whatever_is_killed(nodes, inline, tmp_path):
    keys = on(nodes).model_dump(mode="json", exclude_unset=True)
    pids = {"head": nodes.nodes[0].process.pid, "raylet": nodes.raylet(1).pid}
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(keys), str(tmp_path / "run"), json.dumps(pids)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (driver.returncode, driver.stdout, driver.stderr) == (-signal.SIGKILL, "", "")
    assert lines_of(tmp_path / "run") == lines_of(inline)[: ROUNDS - 1]
    wait_until(lambda: not actors(nodes))
    assert_equal(stopped_after(RunConfig(**RUN, workers=2), tmp_path / "run", ROUNDS, resume=True), inline)


def test_other_ways_to_train_have_the_same_bits_as_in_the_pool(nodes, tmp_path):
    """Limits of the system, onnxruntime, a network of two inputs, no rounds, and clients that store tensors, all in one run."""
    options = {"enforce": "hard", "runtime": "onnx", "mode": "async", "method": "fedper", **write_texts(tmp_path)}
    options |= {"rounds": 2, "eval_every": 2, "clients": 4, "per_round": 4}
    one = stopped_after(on(nodes, **options), tmp_path / "ray", 2)
    assert_equal(one, stopped_after(RunConfig(**{**RUN, **options}, engine="pool"), tmp_path / "pool", 2), 2)


@pytest.fixture(scope="class")
def clients() -> Clients:
    return Clients(rules.TASK, digits())


@pytest.fixture(scope="class")
def expected(clients) -> list[Outcome]:
    with one_thread():
        return [clients.run(job) for job in rules.jobs_of(16)]


@pytest.fixture(scope="class")
def opened(cluster, clients, tmp_path_factory) -> Iterator[RayEngine]:
    cluster.mend()
    with ExitStack() as stack:
        with chdir(tmp_path_factory.mktemp("elsewhere")):  # Ray lets nodes import from this folder before others
            found = stack.enter_context(open_engine("ray", 0, clients, Cluster(cluster.address, mixed=True)))
        yield found
    wait_until(lambda: not actors(cluster))


@pytest.fixture
def engine(nodes, opened) -> RayEngine:
    """The engine when it has noticed which nodes were lost, and both nodes are ready."""
    list(in_order(opened, rules.jobs_of(16)))
    wanted = sorted(node.address for node in nodes.nodes)

    def here() -> bool:
        opened.serve(1.0)
        return sorted(member.place.title.partition(" ")[0] for member in opened._members.ready) == wanted

    wait_until(here)
    return opened


class TestOneEngine:
    """What does not need a run: an engine that runs the jobs of several tests."""

    def test_the_rules_of_engines(self, engine, expected, monkeypatch, clients):
        monkeypatch.setattr(rules, "opened", lambda name: nullcontext(engine))
        rules.test_every_job_has_one_outcome_and_the_caller_restores_the_order("ray", expected)
        rules.test_jobs_are_pulled_when_there_is_room("ray")
        rules.test_replacements_can_be_asked_for_in_the_middle_of_a_round("ray", expected)
        rules.test_any_job_can_run_again_to_the_same_bits("ray", expected)
        rules.test_sums_of_updates_are_those_of_one_process("ray", expected)
        rules.test_a_cancelled_map_leaves_nothing_behind("ray", expected)
        jobs = [job for job in rules.jobs_of(16) if job.tier.ratio == 1 and job.round == 1]
        with PoolEngine(rules.TASK, 1, data=digits(), together=TOGETHER) as group:
            grouped = list(in_order(group, jobs))
        monkeypatch.setattr(engine, "_together", TOGETHER)
        assert list(in_order(engine, jobs)) == grouped
        assert open_engine("ray-group", 0, clients, Cluster())._together == TOGETHER

    def test_nodes_share_the_work_and_what_jobs_share_is_put_once(self, engine, monkeypatch):
        put = []
        original = engine._ray.put
        monkeypatch.setattr(engine._ray, "put", lambda content: (put.append(len(content)), original(content))[1])
        engine._put.clear()
        drain()
        list(in_order(engine, rules.jobs_of(40)))
        share = Counter(span.worker for span in drain() if span.name == "train")
        assert share.total() == 40
        assert len(share) == 2
        assert min(share.values()) >= 0.3 * 40
        assert len(put) == 2 * len(rules.TIERS)  # a setup and a payload of each tier

    def test_the_sums_of_nodes_that_are_lost_are_made_again_elsewhere(self, engine, expected, nodes, monkeypatch):
        """An actor dies in the middle, a raylet before it is asked for its sums: updates are added once, no outcome is repeated."""
        jobs = [replace(job, weight=1 + number) for number, job in enumerate(rules.jobs_of(16))]
        wanted, found = (Sums(jobs[0].method, rules.TASK.architecture) for _ in range(2))
        bare = [wanted.add(job, outcome) for job, outcome in zip(jobs, expected, strict=True)]
        received, lost, outcomes = [], [], []

        def shoot(head: bool) -> None:
            while not (
                victims := [m for m in engine._members.live if m.folded and m.place.title.startswith("127.0.0.2 ") == head]
            ):
                engine.serve(1.0)
            lost.append(len(victims[0].folded))
            kill(nodes.actor(0) if head else nodes.raylet(1))

        merge, collect = Sums.merge, RayEngine.collect
        monkeypatch.setattr(Sums, "merge", lambda self, rows, limbs: (received.append(len(rows)), merge(self, rows, limbs)))
        monkeypatch.setattr(RayEngine, "collect", lambda self, fold: (len(lost) == 1 and shoot(head=False), collect(self, fold)))
        for outcome in in_order(engine, jobs, found):
            outcomes.append(outcome)
            if len(outcomes) == 3:
                shoot(head=True)
        assert min(lost) >= 1
        assert len(lost) == 2
        assert outcomes == bare
        for tier, of in wanted.tiers.items():
            assert of.weight == found.tiers[tier].weight
            assert torch.equal(of.total.value(), found.tiers[tier].total.value())
        assert max(received) <= len(rules.TIERS)  # one sum per tier, not per client
        assert not any(member.folded or member.batches for member in engine._members.live)

    def test_nodes_that_join_in_the_middle_get_jobs_if_they_have_this_release(self, opened, head, tmp_path, caplog):
        """One trains to other bits, which this cluster may; one has another release, and is left out."""
        before = {member.place for member in opened._members.ready}
        head.add({"ATEN_CPU_CAPABILITY": "avx2"}, {"PYTHONPATH": str(other_release(tmp_path))})

        def joined() -> list[RayMember]:
            return [member for member in opened._members.ready if member.place not in before]

        def jobs() -> Iterator[Job]:
            until_s = time.monotonic() + PATIENCE_S
            for job in cycle(rules.jobs_of(16)):
                if any(member.batches for member in joined()) and "a node that joined is not used" in caplog.text:
                    return
                assert time.monotonic() < until_s
                yield job

        drain()
        for _ in in_order(opened, jobs()):
            pass
        (member,) = joined()
        assert any(span.worker == member.first + 1 for span in drain() if span.name == "train")
        assert "has edgefl" in caplog.text
        assert "install the same release there" in caplog.text
        (other,) = [node for node in opened.nodes if node.differences]
        assert other.node == member.place.title
        assert other.fingerprint["pins"] == "ATEN_CPU_CAPABILITY=avx2"
        assert "pins ATEN_CPU_CAPABILITY=avx2 there, none here" in other.differences


def other_release(folder: Path) -> Path:
    """Return a folder with a copy of the package that differs in a comment."""
    shutil.copytree(PACKAGE, folder / "edgefl", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "edgefl" / "errors.py").open("a") as file:
        file.write("# another release\n")
    return folder


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short name: sockets lie in it."""
    with TemporaryDirectory(prefix="r") as name:
        yield Path(name)


def test_a_cluster_of_its_own_has_the_bits_of_the_pool_and_leaves_no_process_and_no_file(short_folder):
    """``--ray-address local`` with limits of the system, in torch. Nobody else uses its folders of the user and for temporary files."""
    own = {name: short_folder / name for name in ("home", "tmp", "here")}
    for folder in own.values():
        folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XDG_"))}
    environment |= {"HOME": str(own["home"]), "TMPDIR": str(own["tmp"])}
    run = {**RUN, "rounds": 1, "eval_every": 1, "clients": 3, "per_round": 2, "enforce": "hard", "workers": 1}
    words = [*words_of(RunConfig(**run, engine="ray", ray_address="local")), "--tiers=1"]
    ran = subprocess.run(
        [sys.executable, "-m", "edgefl.cli.main", *words, "--mixed-nodes", "--out=run"],
        cwd=own["here"], env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    (node,) = RunFolder(own["here"] / "run").summary()["nodes"]
    assert (node["differences"], node["fingerprint"]["edgefl"]) == ([], Fingerprint.own().edgefl)
    assert_equal(own["here"] / "run", stopped_after(RunConfig(**run, tiers=(1.0,), engine="pool"), short_folder / "pool", 1), 1)
    assert [path.name for path in own["here"].iterdir()] == ["run"]
    assert {path.name for path in own["home"].iterdir()} <= {".cache", ".config"}  # of pages and onnxruntime, and the own key
    wait_until(
        lambda: not [one for one in psutil.process_iter(["cmdline"]) if str(own["tmp"]) in " ".join(one.info["cmdline"] or ())]
    )
    left = [
        path.name for path in own["tmp"].iterdir() if path.name.startswith(("edgefl", "ray"))
    ]  # torch and onnxruntime leave others
    assert not left
