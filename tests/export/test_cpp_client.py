"""The client in C++, compiled against onnxruntime's C++ API: what it computes against the Python client, and what it refuses.

It compiles once, 10 s of processor time; it skips where the compiler or the headers are missing.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime
import pytest
import safetensors.numpy
import torch
from edgefl_bundle import State
from edgefl_client import Training, infer, read_bundle, train, update
from edgefl_keys import signed
from handmade import Regression, changed, changed_file, samples, without_defaults
from python_client import header
from requirements import INCLUDES, require, unavailable
from signing import device_key, of_round, sign_bundle
from test_resuming import MODELS
from torch import nn
from users_home import left_in_home

from edgefl import export_network
from edgefl.util.files import shared
from edgefl.util.keys import SigningKey

SOURCE = shared("export") / "cpp" / "main.cpp"
WITHIN = 1e-5


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """The compiled client, linked with the library that Python's onnxruntime brings."""
    require("g++", "the headers of OpenSSL", "the headers of onnxruntime")
    folder = tmp_path_factory.mktemp("cpp")
    found = next(iter(Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")), None)
    if found is None:
        unavailable("libonnxruntime.so", "this build of onnxruntime has none")
    library = folder / "libonnxruntime.so.1"  # its name inside
    library.symlink_to(found)
    out = folder / "edgefl-client"
    command = ["g++", "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", *INCLUDES, SOURCE, "-o", out, library]
    built = subprocess.run([*command, f"-Wl,-rpath,{folder}", "-lcrypto"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[:4000]
    return out


@pytest.fixture(scope="module")
def network(tmp_path_factory) -> Path:
    """A bundle of a small network with statistics and dropout, in two tiers."""
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(), nn.Linear(16, 5)
    )
    out = tmp_path_factory.mktemp("network") / "bundle"
    return export_network(module, torch.randn(2, 1, 6, 6), out, method="heterofl", tiers=(1, 0.5), sign=False)


def called(program: Path, *arguments: object, key: Path | None = None) -> subprocess.CompletedProcess[str]:
    trust = ["--allow-unsigned"] if key is None else ["--key", str(key)]
    return subprocess.run([program, *map(str, arguments), *trust], capture_output=True, text=True, check=False)


def stored(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    path = folder / "data.safetensors"
    safetensors.numpy.save_file({"x": x, "y": y}, path)
    return path


def content(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return metadata and tensors of an update."""
    with safetensors.safe_open(path, "numpy") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize(
    "model",
    [
        Regression(),
        Regression(optimizer="adam", present=True, keys={"labels": True}),
        Regression(optimizer="sgd", objective="prox", strength=0.5),
        Regression(personal=("fc.bias",)),
        Regression(width=2, shape=(1, 2, 3), keys={"augment": "flip"}),
    ],
    ids=["momentum", "adam, labels", "sgd, prox", "personal", "two graphs, flipped"],
)
def test_an_update_has_the_tensors_and_metadata_of_the_python_client(program, tmp_path, model):
    bundle = model.write(tmp_path / "bundle")
    x, y = samples(10)
    out = tmp_path / "update"
    path, seed = stored(tmp_path, x, y), 2**40 + 9
    ran = called(program, "train", bundle, "0.5", path, "--out", out, "--epochs", 3, "--client", "me", "--seed", seed)
    assert ran.returncode == 0, ran.stderr
    state = train(read_bundle(bundle), "0.5", x, y, Training(epochs=3, max_seconds=0, seed=seed), client="me")
    expected = tmp_path / "expected"
    expected.write_bytes(update(state))
    (about, tensors), (about_expected, tensors_expected) = content(out), content(expected)
    assert about == about_expected
    assert tensors.keys() == tensors_expected.keys()
    for name, tensor in tensors_expected.items():
        np.testing.assert_allclose(tensors[name], tensor, rtol=0, atol=WITHIN, err_msg=name)


def test_a_network_infers_and_trains_as_in_the_python_client(program, tmp_path, network):
    loaded = read_bundle(network)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 1, 6, 6)).astype(np.float32), rng.integers(5, size=20)
    data = stored(tmp_path, x, y)
    ran = called(program, "check", network)
    assert ran.returncode == 0, ran.stderr
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == ["tier 1", "tier 0.5"]
    ran = called(program, "infer", network, "0.5", data)
    logits = np.array([line.split("\t")[1:] for line in ran.stdout.splitlines()], np.float64)
    powers = np.exp(logits)
    np.testing.assert_allclose(powers / powers.sum(1, keepdims=True), infer(loaded, "0.5", x), rtol=0, atol=WITHIN)
    # The server cannot aggregate updates of this bundle.
    state, out = tmp_path / "state", tmp_path / "update"
    run = ("train", network, "0.5", data, "--state", state, "--epochs", 2, "--batch-size", 8)
    ran = called(program, *run, "--out", out)
    assert (ran.returncode, out.exists(), state.exists()) == (2, False, False)
    assert "cannot be aggregated outside of a simulation: " in ran.stderr
    assert "; leave out --out, and give --state FILE" in ran.stderr
    ran = called(program, *run[:4])
    assert (ran.returncode, "got neither --out UPDATE nor --state FILE" in ran.stderr) == (2, True)
    ran = called(program, *run)
    assert ran.returncode == 0, ran.stderr
    same_state(state, train(loaded, "0.5", x, y, Training(epochs=2, batch_size=8, max_seconds=0)))


def same_state(path: Path, expected: State) -> None:
    """Check that a state of the C++ client has the tensors, and says what the Python client's does."""
    found = State.of_file(path)
    said, expected_said = ({**state.about, "upload": json.loads(state.about["upload"])} for state in (found, expected))
    assert float(said.pop("lr_sum")) == pytest.approx(float(expected_said.pop("lr_sum")))
    assert said == {**expected_said, "client": said["client"]}
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        np.testing.assert_allclose(found.tensors[name], tensor, rtol=0, atol=WITHIN, err_msg=name)


@pytest.mark.parametrize("name", ["momentum, flipped, two graphs", "adam"])
def test_two_trainings_are_one_and_states_move_between_clients(program, tmp_path, name):
    model = MODELS[name]
    bundle, (x, y) = model.write(tmp_path / "bundle"), samples(10)
    data, loaded, how = stored(tmp_path, x, y), read_bundle(bundle), Training(epochs=1, batch_size=4, seed=5, max_seconds=0)
    run = ("train", bundle, "0.5", data, "--batch-size", 4, "--epochs")
    whole, parts, mixed = (tmp_path / name for name in ("whole", "parts", "mixed"))
    half = train(loaded, "0.5", x, y, how)
    mixed.write_bytes(half.to_bytes())
    for path, epochs, seed in ((whole, 2, 5), (parts, 1, 5), (parts, 1, None), (mixed, 1, None)):
        ran = called(program, *run, epochs, "--state", path, *(() if seed is None else ("--seed", seed)))
        assert (ran.returncode, ran.stderr) == (0, "")
    assert (tensors := safetensors.numpy.load_file(whole)).keys() == safetensors.numpy.load_file(parts).keys()
    assert all(np.array_equal(tensors[name], value) for name, value in safetensors.numpy.load_file(parts).items())
    expected = train(loaded, "0.5", x, y, replace(how, epochs=2))
    for path in (parts, mixed):
        same_state(path, expected)
    further = train(loaded, "0.5", x, y, replace(how, seed=None), State.of_file(parts))
    assert (further.note, further.about["steps"]) == ("", "9")
    ran = called(program, *run, 1, "--state", parts, "--seed", 6)
    assert (ran.returncode, ran.stderr) == (0, "--state: of seed 5, not 6: training shuffles the samples anew\n")
    for key, value in (("round", "x"), ("labels", "0,x"), ("order", "5 99 1 1 1"), ("format", "x")):
        safetensors.numpy.save_file(safetensors.numpy.load_file(whole), tmp_path / "bad", {**header(whole), key: value})
        ran = called(program, *run, 1, "--state", tmp_path / "bad")
        assert (ran.returncode, "damaged" in ran.stderr) == (2, True), ran.stderr
    other = replace(model, seed=3).write(tmp_path / "other")
    ran = called(program, "train", other, "0.5", data, "--state", parts)
    assert (ran.returncode, "it is of round 3 of another bundle, this one is of round 3" in ran.stderr) == (2, True)


def test_a_divergence_has_the_number_of_the_training_also_when_it_was_resumed(program, tmp_path):
    bundle, data = MODELS["momentum, flipped, two graphs"].write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    train = (
        "train",
        bundle,
        "0.5",
        data,
        "--batch-size",
        4,
        "--epochs",
        500,
        "--lr",
        "1e37",
        "--allow-unsigned",
        "--state",
        tmp_path / "state",
    )
    progress = tmp_path / "progress"
    first, again = (called(program, *train, "--checkpoint", progress, "--checkpoint-every", 3) for _ in range(2))
    assert (first.returncode, again.returncode) == (1, 1)
    done = len(safetensors.numpy.load_file(progress)["losses"])
    assert done >= 3
    assert int(re.search(r"step (\d+): .*training diverged", first.stderr)[1]) > done
    assert again.stderr == first.stderr


@pytest.mark.parametrize("name", ["momentum, flipped, two graphs", "adam"])
def test_a_training_that_is_killed_continues_to_the_same_bits(program, tmp_path, name):
    bundle, data = MODELS[name].write(tmp_path / "bundle"), stored(tmp_path, *samples(10))
    whole, parts, progress = (tmp_path / name for name in ("whole", "parts", "progress"))
    train = ("train", bundle, "0.5", data, "--batch-size", 4, "--epochs", 500, "--seed", 5, "--allow-unsigned")
    run = [program, *map(str, train), "--state", parts, "--checkpoint", progress, "--checkpoint-every", "7"]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL) as process:
        while not progress.exists():
            assert process.poll() is None
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert not parts.exists()
    done = len(safetensors.numpy.load_file(progress)["losses"])
    assert (done % 7, 0 < done < 1500) == (0, True)
    kept = progress.read_bytes()
    ran = called(program, "train", bundle, "0.5", data, "--epochs", 3, "--state", parts, "--checkpoint", progress)
    assert (ran.returncode, "progress: of another training: bundle, tier, data or settings differ; delete it" in ran.stderr) == (
        2,
        True,
    )
    assert progress.read_bytes() == kept
    resumed = subprocess.run(run, capture_output=True, text=True, check=True)
    assert called(program, *train[:-1], "--state", whole).stdout == resumed.stdout
    assert not progress.exists()
    assert header(whole) == {**header(parts), "client": header(whole)["client"]}
    one, other = (safetensors.numpy.load_file(path) for path in (whole, parts))
    assert one.keys() == other.keys()
    assert all(np.array_equal(value, other[name]) for name, value in one.items())
    for bad in (kept[:-9], b"", kept.replace(b"losses", b"lasses")):
        progress.write_bytes(bad)
        ran = called(program, *train[:-1], "--state", tmp_path / "none", "--checkpoint", progress)
        assert (ran.returncode, "progress: not the progress of a training (" in ran.stderr) == (2, True), ran.stderr


def test_a_regression_prints_its_outputs_alone(program, tmp_path, network):
    data = stored(tmp_path, np.ones((3, 1, 6, 6), np.float32), np.zeros(3, np.int64))
    classes = called(program, "infer", network, "1", data).stdout.splitlines()
    bundle = Path(shutil.copytree(network, tmp_path / "bundle"))
    changed(bundle, target_shape=[5], class_names=[])
    ran = called(program, "infer", bundle, "1", data)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [line.partition("\t")[2] for line in classes]
    assert len(ran.stdout.split()) == 3 * 5


def test_keys_with_a_default_may_be_missing(program, tmp_path):
    path, sent = stored(tmp_path, *samples(10)), []
    for name in ("whole", "brief"):
        bundle = Regression().write(tmp_path / name)
        if name == "brief":
            without_defaults(bundle)
        done = called(program, "train", bundle, "0.5", path, "--out", tmp_path / f"{name}.update", "--client", "c1")
        assert done.returncode == 0, done.stderr
        sent.append(content(tmp_path / f"{name}.update")[1])
    assert all((sent[1][name] == value).all() for name, value in sent[0].items())


def test_an_enrolled_device_signs_as_the_server_expects(program, tmp_path):
    bundle, key = Regression().write(tmp_path / "bundle"), device_key(tmp_path, 7)
    out = tmp_path / "update"
    path = stored(tmp_path, *samples(8))
    ran = called(program, "train", bundle, "0.5", path, "--out", out, "--seed", 5, "--device-key", tmp_path / "device-7.pem")
    assert ran.returncode == 0, ran.stderr
    about, tensors = content(out)
    unsigned = {name: value for name, value in about.items() if name not in ("key", "signature")}
    assert signed(unsigned, tensors, key) == about


def test_onnxruntime_sends_nothing(program, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    data = stored(tmp_path, *samples(10))
    assert left_in_home([program, "infer", bundle, "0.5", data, "--allow-unsigned"], tmp_path) == []


def test_a_manifest_that_would_fill_the_stack_is_refused(program, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    (bundle / "manifest.json").write_text("[" * 200_000)
    ran = called(program, "check", bundle)
    assert (ran.returncode, ran.stderr) == (2, "Error: manifest.json: nested deeper than 200 levels\n")


def test_the_updates_of_a_bundle_that_will_expire_say_until_when_they_count(program, tmp_path):
    path, out, key = stored(tmp_path, *samples(8)), tmp_path / "update", SigningKey.new(tmp_path / "owner.pem")
    odd, late = "freshness.json: expected a time in UTC", "expired at 2020-01-31T00:00:00Z; get the newest bundle"
    cases = (("2999-01-31T00:00:00Z", ""), ("soon", odd), (7, odd), ("2999-01-31 00:00:00Z", odd), ("2020-01-31T00:00:00Z", late))
    for expires, words in cases:
        bundle = of_round(tmp_path / "bundle", key, 2, expires=expires)
        ran = called(program, "train", bundle, "0.5", path, "--out", out, key=bundle / "manifest.pub")
        assert (ran.returncode, words in ran.stderr) == (2 if words else 0, True), ran.stderr
    assert called(program, "train", bundle, "0.5", path, "--out", tmp_path / "other").returncode == 0
    assert header(out)["deadline"] == "2999-01-31T00:00:00Z"


def test_an_operation_that_fails_is_one_error_without_a_log_of_the_runtime(program, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    path = json.loads((bundle / "manifest.json").read_text())["tiers"][0]["forward"]
    model = onnx.load(bundle / path)
    nodes = [*model.graph.node]
    model.graph.ClearField("node")
    nodes[-1].output[0] = "right"
    sizes = onnx.numpy_helper.from_array(np.array([7, -1]), "sizes")  # of 30 values: known only when it runs
    model.graph.initializer.append(sizes)
    model.graph.node.extend([*nodes, onnx.helper.make_node("Reshape", ["right", "sizes"], ["logits"])])
    changed_file(bundle, path, model.SerializeToString())
    ran = called(program, "infer", bundle, "0.5", stored(tmp_path, *samples(10)), "--allow-unsigned")
    assert (ran.returncode, ran.stderr[:7], len(ran.stderr.strip().splitlines())) == (2, "Error: ", 1), ran.stderr


CODES = "\x1b[2J \x9b1m \u202e \u2066 \r \x08 \x7f \u2028 \ufeff \u200b \ue000 \U000e0041 \U0010fffd"


def test_names_of_a_bundle_do_not_change_the_terminal(program, tmp_path, network):
    bundle, name = shutil.copytree(network, tmp_path / "bundle"), "ä\u20ac\U0001f600" + CODES
    changed(bundle, class_names=[name] * 5)
    x, y = np.zeros((1, 1, 6, 6), np.float32), np.zeros(1, np.int64)
    ran = called(program, "infer", bundle, "0.5", stored(tmp_path, x, y))
    assert ran.returncode == 0, ran.stderr
    shown = ran.stdout.partition("\t")[0]
    assert shown == "".join(one if one.isprintable() else "\ufffd" for one in name)
    assert shown.startswith("ä\u20ac\U0001f600\ufffd[2J \ufffd1m \ufffd")


def test_an_error_of_the_runtime_does_not_change_the_terminal(program, tmp_path):
    bundle = Regression().write(tmp_path / "bundle")
    path = json.loads((bundle / "manifest.json").read_text())["tiers"][0]["forward"]
    model = onnx.load(bundle / path)
    model.graph.output[0].name = CODES
    changed_file(bundle, path, model.SerializeToString())
    ran = called(program, "infer", bundle, "0.5", stored(tmp_path, *samples(2)))
    assert (ran.returncode, ran.stderr.startswith("Error: "), "\ufffd[2J" in ran.stderr) == (2, True, True), ran.stderr
    assert all(one.isprintable() or one == "\n" for one in ran.stderr)


def test_what_it_refuses(program, tmp_path):
    path, out = stored(tmp_path, *samples(8)), tmp_path / "update"
    owner, other = SigningKey.new(tmp_path / "owner.pem"), SigningKey.new(tmp_path / "other.pem")
    bundle = sign_bundle(Regression().write(tmp_path / "bundle"), owner)

    def fails(status: int, words: str, *arguments: object, key: Path | None = None) -> None:
        ran = called(program, *arguments, key=key)
        assert (ran.returncode, words in ran.stderr) == (status, True), ran.stderr
        assert not out.exists()

    ways = ("train", bundle, "0.5", path, "--out", out)
    (tmp_path / "other.pub").write_bytes(other.public.pem)
    (tmp_path / "owner.pub").write_bytes(owner.public.pem)
    fails(2, "not a signature of this manifest", *ways, key=tmp_path / "other.pub")
    fails(2, 'the bundle has ["0.5"]', "train", bundle, "0.25", path, "--out", out)
    fails(2, "expected as many samples as labels", *ways[:3], stored(tmp_path, samples(8)[0], samples(7)[1]), "--out", out)
    stored(tmp_path, *samples(8))
    fails(1, ": training diverged", *ways, "--lr", 3e38, "--epochs", 9)
    fails(2, "train BUNDLE TIER DATA", "train", bundle)
    fails(2, "--epoch: train has no such option", *ways, "--epoch", 3)
    fails(2, "--epochs: infer has no such option", "infer", bundle, "0.5", path, "--epochs", 3)
    fails(2, "--epochs: got -1, expected a whole number above 0", *ways, "--epochs", -1)
    fails(2, "--lr: got 0.1x, expected a number above 0", *ways, "--lr", "0.1x")
    fails(2, "--seed: got 18446744073709551616, expected a whole number from 0 to", *ways, "--seed", 1 << 64)
    fails(2, "y: label 7, expected 0 to", *ways[:3], stored(tmp_path, samples(8)[0], np.full(8, 7)), "--out", out)
    stored(tmp_path, *samples(8))
    assert called(program, *ways, key=tmp_path / "owner.pub").returncode == 0
    out.unlink()
    graph = bundle / "0.5" / "train.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"\0")
    fails(2, "0.5/train.onnx: changed", *ways)
    manifest = bundle / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"ant"', '"auk"'))
    fails(2, "manifest.json: changed", *ways)
    held = replace(Regression(), objective="scaffold").write(tmp_path / "scaffold")
    fails(2, "objective scaffold", "train", held, "0.5", path, "--out", out)
