"""A SuperLink and three SuperNodes as processes, with TLS and keys: runs over the wire, kills, and nodes that may not join."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from federation import Processes, processes, wait, write_key
from runs import lines_of, stopped_after
from small_fleet import write_device, write_fleet

from edgefl import RunConfig, RunResult, simulate
from edgefl.bundle.verify import verify
from edgefl.contrib.flower.new import new_app, write_shards
from edgefl.run.folder import RunFolder
from edgefl.run.prepare import prepare

NODES = ("node0", "node1", "node2")
VICTIM = "victim"
"""Flower refuses the key of a node that was killed until it has missed its heartbeats, for a minute."""
STRANGER, LOST = "stranger", "lost"
PATIENCE_S = 600.0
"""A loaded computer takes many times longer than a quiet one."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A fleet of a phone, a laptop and a Pi, which have room for every tier."""
    home = tmp_path_factory.mktemp("fleet")
    devices = {"raspberry-pi-4": 0.34, "mid-range-phone": 0.33, "laptop": 0.33}
    for name in devices:
        write_device(home, name)
    return write_fleet(home, devices)


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink that knows the keys of three nodes."""
    with processes(tmp_path_factory.mktemp("federation")) as found:
        found.superlink()
        keys = [write_key(found.home / f"{name}.key") for name in (*NODES, VICTIM)]
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda key: found.flwr("supernode", "register", str(key), "test"), keys))
        write_key(found.home / f"{STRANGER}.key")
        shutil.copy(found.home / f"{NODES[0]}.key", found.home / f"{LOST}.key")
        # On a device, whatever imports torch or edgefl fails.
        for name in ("torch", "edgefl"):
            (found.home / "device" / name).mkdir(parents=True)
            (found.home / "device" / name / "__init__.py").write_text("raise ImportError('a device has none')")
        yield found
    assert found.left() == []
    assert not found.listens()
    assert {str(path.relative_to(found.user)) for path in found.user.glob("*/*")} <= {".cache/edgefl"}


@pytest.fixture(scope="module")
def config(fleet):
    return RunConfig(
        method="fedhm", tiers=(1.0, 0.5, 0.25), tier_assignment="uniform", clients=3, per_round=3, conditions="ideal", profile=fleet,
        partition="iid", local_epochs=2, rounds=3, deadline_s=200.0, defence="none",
    )  # fmt: skip


@pytest.fixture(scope="module")
def twin(config, tmp_path_factory) -> RunResult:
    """The simulation of the same run, in this process."""
    return simulate(config, tmp_path_factory.mktemp("twin") / "run", on_round=lambda record: None)


@pytest.fixture(scope="module")
def data(config, tmp_path_factory) -> Path:
    """The samples of each client."""
    return write_shards(config, tmp_path_factory.mktemp("data") / "of")[0].parent


def start(federation: Processes, config: RunConfig, data: Path, trainer: str, nodes: Sequence[str] = NODES) -> Path:
    """Write the app as ``home/TRAINER``, start its devices and return the folder of its run."""
    home, of = federation.home / trainer, prepare(config)
    new_app(config, home / "app", home / "run")
    for client, node in enumerate(nodes):
        device = of.forecast.class_plan_of(client, 1).device.name
        own = f'device="{device}" data="{data}/client-{client}.npz" state="{home}/{node}" trainer="{trainer}"'
        federation.supernode(
            node, own, "--root-certificates", "ca.crt", path=federation.home / "device" if trainer == "onnx" else None
        )
    return home / "run"


def rounds(folder: Path) -> list[dict]:
    path = folder / "rounds.jsonl"
    return (
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []
    )


def finished(federation: Processes, name: str, folder: Path) -> dict:
    """Run the app ``NAME/app`` to its end and return what Flower says of it."""
    number = federation.run(f"{name}/app")
    wait((folder / "summary.json").exists, PATIENCE_S, "the run writes its summary")

    def done() -> dict | None:
        status = federation.status(number)
        return status if str(status["status"]).startswith("finished") else None

    found = wait(done, PATIENCE_S, "the run ends")
    assert found["status"] == "finished:completed", federation.log("superlink")
    return found


@pytest.fixture
def stopped(federation):
    yield
    for name in [name for name in federation.running if name != "superlink"]:
        federation.stop(name)


def test_nodes_that_may_not_join_end_with_status_1_and_say_why(federation, stopped):
    """One has a key that is not registered, the other does not know the authority that has signed the certificate."""
    reasons = {STRANGER: "Failed to activate SuperNode", LOST: "CERTIFICATE_VERIFY_FAILED"}
    started = {
        name: federation.supernode(name, 'device="laptop"', *more, "--max-retries", "1")
        for name, more in ((STRANGER, ("--root-certificates", "ca.crt")), (LOST, ()))
    }
    for name, process in started.items():
        assert process.wait(PATIENCE_S) == 1
        assert reasons[name] in federation.log(name)


def test_devices_with_onnxruntime_make_the_bits_of_the_simulation_and_survive_the_death_of_a_node_and_of_the_superlink(
    federation, stopped, config, twin, data, tmp_path
):
    config = config.model_copy(update={"deadline_s": 45.0, "rounds": 5})
    folder = start(federation, config, data, "onnx", (*NODES[:2], VICTIM))
    federation.run("onnx/app")
    wait(lambda: len(rounds(folder)) >= 3, PATIENCE_S, "three rounds")
    wait(lambda: federation.trains(VICTIM), PATIENCE_S, "the fourth round")
    federation.kill(VICTIM)
    wait(lambda: [*folder.glob("checkpoints/round-000004-*.safetensors")], PATIENCE_S, "the checkpoint of the round of the kill")
    federation.kill("superlink")
    federation.superlink()
    federation.run("onnx/app", "--run-config", "resume=true join-s=5.0")
    wait((folder / "summary.json").exists, PATIENCE_S, "the resumed run ends")
    found = rounds(folder)
    statuses = [{client["client"]: client["status"] for client in one["clients"]} for one in found]
    assert statuses[:3] == [dict.fromkeys(range(3), "trained")] * 3
    assert statuses[3] == {0: "trained", 1: "trained", 2: "dropped"}
    # The round waits for the device until the deadline, or until Flower has had no sign of life of it for too long.
    assert max(line["round_s"] for line in found[:3]) < found[3]["round_s"] < 60.0
    assert set(statuses[4].values()) == {"trained"}
    verify(folder / "bundle")
    assert RunFolder(folder).summary()["global_accuracy"] == found[4]["accuracy"]["global"]
    simulated = lines_of(stopped_after(config.model_copy(update={"runtime": "onnx"}), tmp_path / "simulated", 5))
    assert [losses(line) for line in found[:3]] == [losses(line) for line in simulated[:3]]
    assert [line["accuracy"] for line in found[:3]] == [line["accuracy"] for line in simulated[:3]]
    assert abs(found[2]["accuracy"]["global"] - lines_of(twin.folder)[2]["accuracy"]["global"]) < 0.01


def losses(line: dict) -> dict[int, float]:
    return {client["client"]: client["train_loss"] for client in line["clients"]}


def test_devices_with_torch_make_the_bits_of_the_simulation_and_are_counted_to_the_byte(federation, stopped, config, twin, data):
    folder = start(federation, config, data, "torch")
    traffic = finished(federation, "torch", folder)["network-traffic"]
    # The manifest names the checkpoint, and the checkpoint has the clock; the signature is the manifest's.
    clocked = {"manifest.json", "manifest.sig"}
    paths = [path for path in (twin.folder / "bundle").rglob("*") if path.is_file() and path.name not in clocked]
    written = [path.relative_to(twin.folder) for path in paths]
    assert len(written) >= 12
    assert {path for path in written if (folder / path).read_bytes() != (twin.folder / path).read_bytes()} == set()
    summary, found = RunFolder(folder).summary(), rounds(folder)
    assert len(found) == 3
    assert (summary["download_bytes"], summary["upload_bytes"]) == (twin.summary["download_bytes"], twin.summary["upload_bytes"])
    sent = summary["download_bytes"] + sum(one["observed"]["setup_bytes"] for one in found)
    assert 1 <= traffic["outbound-bytes"] / sent < 1.03
    assert 1 <= traffic["inbound-bytes"] / summary["upload_bytes"] < 1.03
