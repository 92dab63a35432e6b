"""One contract for inputs: every client prepares the same file once, and has torch's losses and weights after three steps.

A bundle's training reference has them too, for samples that are prepared, and every client's check compares its own with them.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from edgefl_client import Training, read_bundle, read_data, train
from handmade import changed_file
from python_client import ran
from test_cpp_client import program  # noqa: F401 - a fixture
from torch import nn
from ts_client import batch, node

from edgefl import export_network, verify
from edgefl.bundle.tier_check import kept_of
from edgefl.errors import BundleError
from tests.serve.page_use import add_file, update_of
from tests.serve.serving import serving

COUNT, STEPS, LR = 16, 3, 0.1
MEAN, STD = [120.0, 60.0], [50.0, 25.0]
RAW = np.random.default_rng(0).integers(0, 255, (COUNT, 2, 4, 4))
Y = np.arange(COUNT) % 3
GIVEN = {
    "float32": RAW.astype(np.float32),
    "float64": RAW.astype(np.float64),
    "uint8": RAW.astype(np.uint8),
    "uint16": (RAW * 257).astype(np.uint16),
}
"""The same values in the types that a file may have."""


def network() -> nn.Sequential:
    torch.manual_seed(0)  # noqa: TID251 - the network's first weights
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def of_torch() -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses and the tensors of three steps on all samples, prepared once."""
    return stepped((RAW - np.reshape(MEAN, (2, 1, 1))) / np.reshape(STD, (2, 1, 1)), Y)


def stepped(given: np.ndarray, y: np.ndarray) -> tuple[list[float], dict[str, np.ndarray]]:
    """Return the losses and the tensors of three steps of torch on prepared samples."""
    x = torch.tensor(given, dtype=torch.float32)
    module, losses = network(), []
    steps = torch.optim.SGD(module.parameters(), LR)
    for _ in range(STEPS):
        steps.zero_grad()
        loss = nn.functional.cross_entropy(module(x), torch.tensor(y))
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses, {name: tensor.numpy() for name, tensor in module.state_dict().items() if tensor.is_floating_point()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("same") / "bundle"
    note = {"scale": 1.0, "raw": "float32", "mean": MEAN, "std": STD}
    more = {"optimizer": "sgd", "lr": LR, "batch_size": COUNT, "epochs": STEPS, "sign": False}
    export_network("test_same_inputs:network", torch.tensor(RAW[:4] / 50, dtype=torch.float32), out, preprocessing=note, **more)
    return out


def same(found: dict[str, np.ndarray]) -> None:
    for name, tensor in of_torch()[1].items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("kind", GIVEN)
def test_python_and_node_train_what_torch_does(ts, bundle, tmp_path, kind, capsys):
    data = tmp_path / "own.npz"
    np.savez(data, x=GIVEN[kind], y=Y)
    for client in ("python", "node"):
        state = tmp_path / client
        command = ("train", bundle, "1", data, "--out", state, "--allow-unsigned")
        status, _, errors = ran(capsys, *command) if client == "python" else batch(ts, [command])[0]
        assert (status, errors) == (0, "")
        same(safetensors.numpy.load_file(state))


@pytest.mark.parametrize("kind", GIVEN)
def test_cpp_trains_what_torch_does(program, bundle, tmp_path, kind):  # noqa: F811 - the fixture
    data = tmp_path / "own.safetensors"
    safetensors.numpy.save_file({"x": GIVEN[kind], "y": Y}, data)
    state = tmp_path / "state"
    command = [program, "train", bundle, "1", data, "--state", state, "--allow-unsigned"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    losses = [float(word) for word in done.stdout.replace(",", "").split() if "." in word]
    assert losses == pytest.approx([of_torch()[0][0], of_torch()[0][-1]], rel=1e-4)
    same(safetensors.numpy.load_file(state))


@pytest.fixture(scope="module")
def page(browser, ort_web, bundle) -> Iterator[Any]:
    """The bundle in a browser, which opens it although it is not signed; skips without Chromium, Playwright or onnxruntime-web."""
    with serving(bundle, ort_web) as server, contextlib.closing(browser.new_context()) as context:
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.goto(server.url)
        page.click("#open-once")
        page.wait_for_selector("#tier:not([disabled])")
        yield page


@pytest.mark.parametrize("kind", GIVEN)
def test_the_browser_trains_what_torch_does(page, tmp_path, kind):
    data = tmp_path / "own.npz"
    np.savez(data, x=GIVEN[kind], y=Y)
    page.evaluate("() => { edgefl.samples.clear(); return edgefl.reset(); }")
    add_file(page, data)
    page.wait_for_function("count => edgefl.samples.length === count", arg=COUNT)
    given = "{ x: edgefl.samples.flat(), y: edgefl.samples.y, steps: 3, shuffle: false }"
    result = page.evaluate(f"() => edgefl.train({given})")
    np.testing.assert_allclose(result["losses"], of_torch()[0], rtol=1e-4)
    same(update_of(page, tmp_path)[0])


def test_a_training_that_is_stopped_in_the_browser_continues_to_the_same_bits(page, bundle, tmp_path):
    data, steps = tmp_path / "own.npz", 2000
    np.savez(data, x=GIVEN["float32"], y=Y)
    page.evaluate("() => { edgefl.samples.clear(); return edgefl.reset(); }")
    add_file(page, data)
    page.wait_for_function("count => edgefl.samples.length === count", arg=COUNT)
    given = "x: edgefl.samples.flat(), y: edgefl.samples.y, batchSize: 5, seed: 9"
    stopping = f"() => edgefl.train({{ {given}, steps: {steps}, onProgress: () => edgefl.model.stop() }})"
    first = page.evaluate(stopping)
    taken = len(first["losses"])
    assert (first["stopped"], 0 < taken < steps) == (True, True)
    rest = page.evaluate(f"() => edgefl.train({{ {given}, steps: {steps - taken} }})")
    parts = update_of(page, tmp_path)[0]
    page.evaluate("() => edgefl.reset()")
    whole = page.evaluate(f"() => edgefl.train({{ {given}, steps: {steps} }})")
    assert first["losses"] + rest["losses"] == whole["losses"]
    once, about = update_of(page, tmp_path)
    assert about["steps"] == str(steps)
    for name, tensor in once.items():
        np.testing.assert_array_equal(parts[name], tensor, err_msg=name)
    loaded = read_bundle(bundle)
    x, y = read_data(data, loaded.manifest, labels=True)
    of_python = train(loaded, "1", x, y, Training(epochs=steps // 4, batch_size=5, seed=9, max_seconds=0))
    early = slice(200)  # later, rounding grows: the labels are random
    np.testing.assert_allclose(whole["losses"][early], of_python.losses[early], rtol=1e-3)


def test_the_browser_has_the_losses_and_the_tensors_of_the_reference(page, reference):
    check = page.evaluate("() => edgefl.check()")
    np.testing.assert_allclose(check["losses"], reference["losses"], rtol=1e-4)
    assert check["apart"] < 0.1


@pytest.fixture(scope="module")
def reference(bundle) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(bundle / "1" / "train_reference.safetensors")


def near(found: dict[str, np.ndarray], reference: dict[str, np.ndarray]) -> None:
    names = [key for key in reference if key.startswith("after:")]
    assert {"after:0.weight", "after:1.running_var", "after:1.running_mean", "after:5.bias"} < set(names)
    for key in names:
        np.testing.assert_allclose(kept_of(found[key.removeprefix("after:")]), reference[key], rtol=0, atol=2e-5, err_msg=key)


def test_the_reference_has_the_losses_and_the_tensors_of_torch(bundle, reference):
    losses, tensors = stepped(reference["x"], reference["y"])
    np.testing.assert_allclose(reference["losses"], losses, rtol=1e-5)
    near(tensors, reference)
    verify(bundle)


def test_python_has_the_tensors_of_the_reference(bundle, reference):
    how = Training(epochs=STEPS, batch_size=len(reference["y"]), max_seconds=0)
    state = train(read_bundle(bundle), "1", reference["x"], reference["y"], how)
    near(state.tensors, reference)


APART = """
import {{ readBundle, Trainer }} from "./lib/core/index.js";
import {{ bundleFiles }} from "./lib/node/files.js";
import {{ nodeHost }} from "./lib/node/host.js";

const bundle = await readBundle(bundleFiles({folder}), nodeHost());
const trainer = await Trainer.create(bundle, "1");
const reference = await bundle.tensors("1/train_reference.safetensors");
const data = new Map([...reference].filter(([name]) => name === "x" || name === "y"));
const {{ losses }} = await trainer.run(data, {{ batchSize: data.get("y").dims[0], shuffle: false, epochs: 3 }});
console.log(JSON.stringify([losses, trainer.apart(reference)]));
"""


def test_node_has_the_tensors_of_the_reference_and_sees_others(ts, bundle, reference, tmp_path):
    losses, apart = node(ts, APART.format(folder=json.dumps(str(bundle))))
    np.testing.assert_allclose(losses, reference["losses"], rtol=1e-4)
    assert apart < 0.1
    _, apart = node(ts, APART.format(folder=json.dumps(str(normalised_twice(bundle, reference, tmp_path)))))
    assert apart > 2


def test_cpp_checks_the_tensors_of_the_reference(program, bundle, reference, tmp_path):  # noqa: F811 - the fixture
    for folder, status in ((bundle, 0), (normalised_twice(bundle, reference, tmp_path), 1)):
        done = subprocess.run([program, "check", folder, "--allow-unsigned"], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stdout + done.stderr
    assert "wrong" in done.stdout


def test_an_export_whose_tensors_differ_does_not_verify(bundle, reference, tmp_path):
    with pytest.raises(BundleError, match=r"1\.running_var after 3 steps differs from its reference"):
        verify(normalised_twice(bundle, reference, tmp_path))


def normalised_twice(bundle: Path, reference: dict[str, np.ndarray], out: Path) -> Path:
    """Return a copy of the bundle whose reference has another running variance, as that of samples that are normalised again."""
    folder = out / "copy"
    shutil.copytree(bundle, folder)
    wrong = {**reference, "after:1.running_var": reference["after:1.running_var"] + np.float32(0.072)}
    changed_file(folder, "1/train_reference.safetensors", safetensors.numpy.save(wrong))
    return folder
