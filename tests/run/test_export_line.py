"""A network that is exported without a run begins a line of rounds: updates of devices come back, with data and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn

import edgefl
from edgefl.bundle import quantize
from edgefl.bundle.labels import licence_of
from edgefl.bundle.manifest_file import read
from edgefl.cli.main import group
from edgefl.data import drawn
from edgefl.errors import BundleError, CheckpointError, ConfigError, DataError
from edgefl.models.custom import CustomArchitecture
from edgefl.models.input_spec import InputSpec
from edgefl.run.device_round import FedRound, fed_round
from edgefl.run.verify import verify_run
from tests.run.device_rounds import AVERAGED

HERE = "tests.run.test_export_line"


def normed() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def wide() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


def auto() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).mean(1))


def trained(factory: Any, path: Path) -> dict[str, torch.Tensor]:
    """Write the weights of a network that has seen data, and return them."""
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    network = factory()
    network.train()(torch.randn(32, 1, 4) + 1 if factory is normed else torch.randn(8, 4))
    tensors = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
    save_file(tensors, path, {"license": "apache-2.0"})
    return tensors


def export(*order: object) -> Any:
    return CliRunner().invoke(group, ["export", *map(str, order)])


def send(bundle: Path, inbox: Path, changes: dict[str, float], label: str = "1") -> None:
    """Write an update of each device: every tensor that was handed out, changed by a number."""
    inbox.mkdir(exist_ok=True)
    manifest = read(bundle)
    train = next(tier.train for tier in manifest.tiers if tier.label == label)
    given = safetensors.numpy.load_file(bundle / train.parameters)
    for client, change in changes.items():
        about = {
            "format": "edgefl-update", "version": "1", "bundle": manifest.manifest_sha256, "round": str(manifest.round), "tier": label,
            "samples": "1", "steps": "1", "client": client,
        }  # fmt: skip
        tensors = {name: given[name] + np.float32(change) for name in train.upload}
        safetensors.numpy.save_file(tensors, inbox / f"{client}.safetensors", about)


def played(bundle: Path, out: Path, changes: dict[str, float], label: str = "1", **more: Any) -> FedRound:
    inbox = out.with_name(f"inbox of {out.name}")
    send(bundle, inbox, changes, label)
    return fed_round(bundle, inbox, out, screening=AVERAGED, **more)


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """The bundle of a network with weights, exported without data."""
    folder = tmp_path_factory.mktemp("line")
    weights = trained(normed, folder / "w.safetensors")
    done = export(
        "--model", f"{HERE}:normed", "--weights", folder / "w.safetensors", "--input", "1x4", "--out", folder / "bundle"
    )
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    assert f"{folder / 'bundle'}-run: round 0; aggregate updates of devices with: edgefl fed-round" in done.output
    return folder / "bundle", weights


def test_updates_of_a_network_without_a_run_come_back_round_after_round(begun: Any, tmp_path: Path) -> None:
    bundle, weights = begun
    manifest = read(bundle)
    (tier,) = manifest.tiers
    assert (manifest.round, manifest.method, tier.device, tier.budget.memory_bytes, tier.accuracy_onnx) == (
        0,
        "fedavg",
        None,
        None,
        None,
    )
    assert not tier.train.no_update
    told: list[str] = []
    first = played(bundle, tmp_path / "next", {"a": 0.1, "b": 0.3}, notify=told.append)
    second = played(first.folder / "bundle", tmp_path / "after", {"a": 1.0})
    assert (first.round, second.round, first.accuracy) == (1, 2, (None, None))
    assert any("--max-drop is not checked" in line for line in told)
    after = safetensors.numpy.load_file(second.folder / "bundle/1/parameters.safetensors")
    for name, tensor in weights.items():
        np.testing.assert_allclose(after[name], tensor + 1.2, atol=1e-6)
    (tier,) = read(second.folder / "bundle").tiers
    assert (tier.device, tier.budget.round_s) == (None, None)


def test_the_command_says_that_nothing_is_evaluated(begun: Any, tmp_path: Path) -> None:
    bundle, _ = begun
    send(bundle, tmp_path / "inbox", {"a": 0.1})
    done = CliRunner().invoke(
        group, ["fed-round", str(bundle), "--updates", str(tmp_path / "inbox"), "--out", str(tmp_path / "next")]
    )
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    assert "global model: not evaluated in round 1, of 1 update" in done.output


def test_the_line_verifies_and_no_simulated_run_continues_it(begun: Any) -> None:
    bundle, _ = begun
    line = bundle.with_name("bundle-run")
    assert verify_run(line).bundle is not None
    with pytest.raises(CheckpointError, match="the result of fed-round, which has no simulated rounds to continue"):
        edgefl.simulate(edgefl.RunConfig(), line, resume=True)


def test_a_line_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own-run").mkdir()
    (tmp_path / "own-run" / "note").write_text("mine")
    with pytest.raises(BundleError, match=r"own-run: exists and is not an empty folder"):
        edgefl.export_network(f"{HERE}:normed", torch.zeros(2, 1, 4), tmp_path / "own")


@pytest.mark.parametrize("method", ["heterofl", "fedhm", "pufferfish"])
def test_methods_aggregate_updates_of_every_tier(method: str, tmp_path: Path) -> None:
    tiers = (0.5,) if method == "pufferfish" else (1.0, 0.5)
    bundle = edgefl.export_network(f"{HERE}:normed", torch.zeros(2, 1, 4), tmp_path / "b", method=method, tiers=tiers, sign=False)
    result = played(bundle, tmp_path / "next", {"a": 0.1}, "0.5", sign=False)
    again = played(result.folder / "bundle", tmp_path / "after", {"a": 0.1}, "0.5", sign=False)
    assert [row.updates for row in again.tiers] == [0] * (len(tiers) - 1) + [1]


def test_data_evaluate_every_round_and_calibrate_8_bit_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "median_seconds", lambda graphs, x: [0.001, 0.0018])
    trained(wide, tmp_path / "w.safetensors")
    rng, y = np.random.default_rng(0), np.arange(60) % 3
    np.savez(tmp_path / "own.npz", x=(rng.normal(size=(60, 1, 4)) + y[:, None, None]).astype(np.float32), y=y)
    order = (
        "--model",
        f"{HERE}:wide",
        "--weights",
        tmp_path / "w.safetensors",
        "--data",
        tmp_path / "own.npz",
        "--out",
        tmp_path / "b",
    )
    refused = export(*order)
    assert isinstance(refused.exception, ConfigError)
    assert "give --preprocessing (none: as they are" in str(refused.exception)
    done = export(*order, "--preprocessing", "none", "--quantize", "int8", "--held-out", 0.5)
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    (tier,) = read(tmp_path / "b").tiers
    assert [variant.kind for variant in tier.variants] == ["int8-static"]
    before = tier.accuracy_onnx
    assert 0 <= before <= 1
    assert f"before training: {100 * before:.1f}" in done.output
    assert (
        "tier 1: int8-static is slower than float32 on this processor: 1.80 ms for a sample on one thread, float32 takes 1.00 ms"
        in (" ".join(done.output.split()))
    )
    shown = {path.name: onnx.load(path) for path in (tmp_path / "b/1").glob("*.onnx")}
    assert shown.keys() == {"forward.onnx", "forward.int8-static.onnx", "predict.onnx", "train.onnx"}
    for name, model in shown.items():
        assert (model.producer_name, model.producer_version, bool(model.graph.name)) == ("edgefl", edgefl.__version__, True)
        about = {entry.key: entry.value for entry in model.metadata_props}
        source = {"tier": "1", "network": f"{HERE}:wide", "method": "fedavg", "dataset": "own", "model_license": "apache-2.0"}
        assert about.items() >= source.items()
        assert ("round" in about) == name.startswith("forward")
    assert shown["train.onnx"].doc_string == (
        f"A training step of {HERE}:wide, tier 1 of the method fedavg on own, with its weights as inputs."
    )
    assert shown["forward.onnx"].doc_string.endswith("with its weights after round 0.")
    result = played(tmp_path / "b", tmp_path / "next", {"a": 0.0}, sign=False)
    assert result.accuracy == (before, before)
    assert (result.folder / "bundle/1/train.onnx").read_bytes() == (tmp_path / "b/1/train.onnx").read_bytes()
    record = json.loads((tmp_path / "b-run" / "fed-round.json").read_text())
    assert record["best"] == {"global": before, "1": before}


def test_a_licence_is_that_of_an_onnx_file(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph([], "none", [], [])
    model = onnx.helper.make_model(graph)
    onnx.helper.set_model_props(model, {"model_license": "MIT"})
    onnx.save(model, tmp_path / "net.onnx")
    for name, licence in (("net.onnx", {"model_license": "MIT"}), ("absent.onnx", {}), ("lab:net", {})):
        spec = str(tmp_path / name)
        assert licence_of(CustomArchitecture("net", inputs={"": InputSpec((4,))}, spec=spec)) == licence


def test_an_autoencoder_has_a_loss_of_its_own(tmp_path: Path) -> None:
    weights = trained(auto, tmp_path / "w.safetensors")
    given = ("--weights", tmp_path / "w.safetensors", "--input", "4", "--loss", "torch.nn.functional:mse_loss")
    done = export("--model", f"{HERE}:auto", *given, "--out", tmp_path / "b", "--unsigned")
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    manifest = read(tmp_path / "b")
    assert (manifest.target_shape, manifest.metric) == ((4,), "mse loss")
    result = played(tmp_path / "b", tmp_path / "next", {"a": 0.5}, sign=False)
    after = safetensors.numpy.load_file(result.folder / "bundle/1/parameters.safetensors")
    np.testing.assert_allclose(after["0.weight"], weights["0.weight"] + 0.5, atol=1e-6)


def test_ids_and_their_vocabulary_are_those_of_the_embedding(tmp_path: Path) -> None:
    done = export("--model", f"{HERE}:Words", "--input", "int64:5", "--out", tmp_path / "b", "--unsigned")
    assert done.exit_code == 0, f"{done.output}{done.exception}"
    config = (tmp_path / "b-run" / "config.toml").read_text()
    assert 'dataset = "drawn:int64:5<9;labels=3"' in config
    assert played(tmp_path / "b", tmp_path / "next", {"a": 0.5}, sign=False).round == 1


def test_devices_prepare_what_is_raw_as_the_command_says() -> None:
    figures = {"scale": 0.5, "mean": 1.0, "std": 2.0}
    data = drawn.load("drawn:ids=int64:2<9,x=3;labels=2", json.dumps(figures))
    assert data.preprocessing == {"ids": {}, "x": {**figures, "raw": "float32"}}
    assert drawn.load("drawn:3;labels=2", json.dumps(figures)).preprocessing == {**figures, "raw": "float32"}
    with pytest.raises(DataError, match=r"dataset: got 'drawn:3', expected the form drawn:3x8x8;labels=4"):
        drawn.load("drawn:3")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--quantize", "int8"), "--quantize needs --data"),
        (("--held-out", "0.5"), "--held-out needs --data"),
        (("--data", "digits"), "--data gives the shape of a sample and the number of classes"),
    ],
)
def test_what_needs_data_says_so(more: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = export("--model", f"{HERE}:normed", "--input", "1x4", *more, "--out", tmp_path / "b")
    assert done.exit_code == 2
    assert message in done.output
    assert not list(tmp_path.iterdir())


def test_a_network_of_python_says_how_its_updates_would_come_back(tmp_path: Path) -> None:
    bundle = edgefl.export_network(auto(), torch.zeros(2, 4), tmp_path / "b", sign=False)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    (tier,) = read(bundle).tiers
    assert "edgefl export --model file.py:factory --weights FILE" in tier.train.no_update
